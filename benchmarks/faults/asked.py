"""Asks every reader of a workspace, and compares the answers with the ledger of what was trained and evaluated."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.faults import spy
from tests.workspace import git

RUNS: Final = ("a", "b")
DOUBTED: Final = ("its results are not current", "not verified")
"""What a note of `compare` says of a policy whose score is not to be believed."""
WARNED: Final = ("stale", "not current", "NOT WHAT RAN", "missing", "not verified", "DIFFERS", "not in the workspace")
"""What the tree of `why` holds where something does not belong together."""


class Truth:
    """What was really trained and evaluated."""

    def __init__(self, ledger: Path) -> None:
        lines = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.is_file() else []
        self._trained = [line for line in lines if line["kind"] != "evaluate"]
        self._evaluated = [line for line in lines if line["kind"] == "evaluate"]

    def scores(self, kind: str, run: str, params: Mapping[str, Any], code: Mapping[str, str]) -> list[float]:
        """The scores that were measured of models that were trained with these settings and this code."""
        wanted = {"settings": params[kind]["runs"][run], "code": code["train"] if kind == "external" else ""}
        models = {one["made"]["model"] for one in self._trained if one["run"] == run and one["given"] == wanted}
        measuring = {"settings": params["evaluate"]["settings"], "code": code["spread"]}
        return [
            one["made"]["score"]
            for one in self._evaluated
            if one["run"] == run and one["given"]["model"] in models and measuring.items() <= one["given"].items()
        ]

    def made(self, kind: str, run: str, content: str, given: Mapping[str, Any]) -> bool:
        """Whether a stage with these settings wrote this content."""
        lines = self._evaluated if kind == "evaluate" else self._trained
        key = "rows" if kind == "evaluate" else "model"
        return any(
            one["run"] == run and one["made"][key] == content and given.items() <= one["given"].items() for one in lines
        )


class Readers:
    """Asks every reader, and compares what it says with what was done."""

    def __init__(self, root: Path, kind: str, ledger: Path, answers: Counter[str]) -> None:
        self._root, self._kind, self._truth, self._answers = root, kind, Truth(ledger), answers

    def lies(self) -> Iterator[str]:
        """Yield the lies."""
        from posttrain.errors import PosttrainError

        for reader in (self.status, self.results, self.compared, self.commits, self.why, self.promoted, self.verified):
            try:
                with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                    found = list(reader())
            except (PosttrainError, SystemExit):
                self._answers[f"{reader.__name__} named"] += 1
                continue
            except Exception:  # noqa: BLE001
                yield f"{reader.__name__}: {traceback.format_exc(limit=-3)}"
                continue
            yield from (f"{reader.__name__}: {lie}" for lie in found)

    def _now(self) -> tuple[dict[str, Any], dict[str, str]]:
        params = yaml.safe_load((self._root / "params.yaml").read_text())
        return params, {
            "train": spy.digest(self._root / "my/train.py"),
            "spread": spy.digest(self._root / "custom/spread.py"),
        }

    def _at(self, commit: str) -> tuple[dict[str, Any], dict[str, str]]:
        params = yaml.safe_load(git(self._root, "show", f"{commit}:params.yaml"))
        with _files(self._root, commit, ("my/train.py", "custom/spread.py")) as folder:
            return params, {"train": spy.digest(folder / "train.py"), "spread": spy.digest(folder / "spread.py")}

    def _is_true(self, run: str, score: float, given: tuple[dict[str, Any], dict[str, str]]) -> bool:
        found = any(abs(score - known) < 1e-4 for known in self._truth.scores(self._kind, run, *given))
        self._answers["true"] += found
        return found

    def _is_mean(
        self, policy: str | None, members: list[str], value: float,
        given: Callable[[str], tuple[dict[str, Any], dict[str, str]]],
    ) -> bool:  # fmt: skip
        """Whether a value is the mean of scores that were measured of each member."""
        scores = [self._truth.scores(self._kind, policy or one, *given(one)) for one in members]
        found = any(abs(sum(chosen) / len(chosen) - value) < 1e-4 for chosen in itertools.product(*scores))
        self._answers["true"] += found
        return found

    def status(self) -> Iterator[str]:
        """What status does not name is current: the results on the disk are those of the settings."""
        from posttrain.pipeline.lock.status import status

        named = set(re.findall(r"\w+@\w+", status()))
        for run in RUNS:
            file = self._root / "results" / run / "metrics.json"
            if not {f"{self._kind}@{run}", f"evaluate@{run}", "base_folders@start", "data_files@mine"} & named:
                score = json.loads(file.read_text())["score"] if file.is_file() else -1.0
                if not self._is_true(run, score, self._now()):
                    yield f"nothing is said of {run}, and its score {score} is not that of its settings"

    def results(self) -> Iterator[str]:
        """A score that is shown is that of the settings."""
        from posttrain.pipeline.report.results import results_json
        from posttrain.pipeline.report.stale_results import staleness

        for row in json.loads(results_json(staleness().reasons)):
            name, score = row.get("policy"), row.get("score")
            if name in RUNS and score is not None and not self._is_true(name, score, self._now()):
                yield f"{name} {score} is not the score of its settings"

    def _compare(
        self, names: list[str], policy: str | None, given: Callable[[str], tuple[dict[str, Any], dict[str, str]]]
    ) -> Iterator[str]:
        from posttrain.pipeline.commands.compare import run
        from posttrain.pipeline.commands.line import parse

        chosen = ["--policy", policy] if policy else []
        found = json.loads(run(parse(["compare", *names, *chosen, "--json"])))
        told = " ".join(found["notes"])
        for mean in found["settings"]:
            label = mean["label"]
            name = re.split(r" \((?:code of|not current)", label)[0]
            members = name.split(" + ")  # runs that differ in their seeds alone are one setting
            if any(f"{one}: {why}" in told for one in members for why in DOUBTED) or "=" in name:
                continue
            if not self._is_mean(policy, members, mean["value"], given):
                yield f"{label} {mean} is not the score of its settings"

    def compared(self) -> Iterator[str]:
        """The policies of the workspace."""
        yield from self._compare(list(RUNS), None, lambda _: self._now())

    def commits(self) -> Iterator[str]:
        """Every branch, experiment and HEAD, alone."""
        from posttrain.errors import PosttrainError

        branches = git(self._root, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()
        exps = git(self._root, "for-each-ref", "--format=%(refname) %(objectname)", "refs/exps").splitlines()
        names = {name: name for name in [*branches[:2], "HEAD"]}
        for line in exps:
            ref, sha = line.split()
            if re.fullmatch(r"refs/exps/\w{2}/\w{38}/.+", ref):
                names[ref.split("/", 4)[4]] = sha
        for name, sha in names.items():
            with contextlib.suppress(PosttrainError):
                yield from self._compare([name], "a", lambda _, sha=sha: self._at(sha))  # type: ignore[misc]

    def why(self) -> Iterator[str]:
        """A score with nothing against it in its tree is that of the settings."""
        from posttrain.pipeline.lineage.explain import why

        for run in RUNS:
            text = why(f"{run}.score", "words")
            score = float(re.findall(r"score = ([\d.]+)", text)[0])
            if not any(word in text for word in WARNED) and not self._is_true(run, score, self._now()):
                yield f"{run} {score} with nothing against it"

    def promoted(self) -> Iterator[str]:
        """What would be promoted is the model of the settings; asked in a copy where all files are committed."""
        from posttrain.pipeline.commands.promote.promotion import promote

        with _committed(self._root):
            text = promote("a", "best", None, "show")
        score = float(re.findall(r"score: ([\d.]+)", text)[0])
        if not any(abs(score - known) < 6e-4 for known in self._truth.scores(self._kind, "a", *self._now())):
            yield f"would promote a with {score}, which is not the score of its settings"

    def verified(self) -> Iterator[str]:
        """Where nothing is found, every entry of dvc.lock is what ran, and so are the files."""
        from posttrain.pipeline.lock.verify import verify

        verify(Path())
        lock = yaml.safe_load((self._root / "dvc.lock").read_text())["stages"]
        for kind in (self._kind, "evaluate"):
            for run in RUNS:
                if (entry := lock.get(f"{kind}@{run}")) is None:
                    continue
                section = f"{kind}.runs.{run}" if kind != "evaluate" else "evaluate.settings"
                given = {"settings": entry["params"]["params.yaml"][section]}
                place = f"results/{run}/rollouts.parquet" if kind == "evaluate" else f"models/{kind}/{run}"
                if not self._truth.made(kind, run, spy.digest(self._root / place), given):
                    yield f"{kind}@{run} passes, and no run with {given} wrote {place}"


@contextlib.contextmanager
def _committed(root: Path) -> Iterator[None]:
    """Go to a copy of the workspace in which everything is committed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "workspace")
        shutil.copytree(root, copy, symlinks=True)
        git(copy, "add", "--all")
        subprocess.run(["git", "commit", "--quiet", "--message", "all"], cwd=copy, capture_output=True, check=False)
        os.chdir(copy)
        try:
            yield
        finally:
            os.chdir(root)


@contextlib.contextmanager
def _files(root: Path, commit: str, names: tuple[str, ...]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            content = subprocess.run(
                ["git", "show", f"{commit}:{name}"], cwd=root, capture_output=True, check=True
            ).stdout
            Path(folder, Path(name).name).write_bytes(content)
        yield Path(folder)
