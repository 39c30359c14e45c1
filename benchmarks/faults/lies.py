"""A state machine that looks for lies: users' actions in random order, and after each every reader's answer.

What was really trained and evaluated is written down by `spy.py`, next to the workspace. An answer is true, or it names
what does not belong together; anything else is a lie. The readers run in this process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import yaml
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from benchmarks.faults import spy
from benchmarks.faults.ledger import Row
from tests.models.imported_models import policy_folder
from tests.pipeline.test_own_data import write_rows
from tests.workspace import environment, git, make_workspace

ACTIONS: Final = 8
RUNS: Final = ("a", "b")
REAL: Final = 6
"""Every so-many-th sequence trains for real, by `sft`."""
PARAMS = """format: 2
seed: 0
data:
  files:
    mine: {path: my/data, chat: demonstrations.jsonl, prompts: prompts.jsonl}
base:
  folders:
    start: {path: my/model}
"""
EXTERNAL = """external:
  runs:
    a:
      script: my/train.py
      command: [python, my/train.py, "0.1"]
      start: base/start
      data: none
      seed: 1
    b:
      script: my/train.py
      command: [python, my/train.py, "0.2"]
      start: base/start
      data: none
      seed: 2
"""
SFT = """sft:
  runs:
    a:
      start: base/start
      data: mine/chat
      epochs: 0.5
      optimizer: {lr: 0.1}
      seed: 1
    b:
      start: base/start
      data: mine/chat
      epochs: 0.5
      optimizer: {lr: 0.2}
      seed: 2
"""
EVALUATE = """evaluate:
  settings:
    data: mine/prompts
    reference: base/start
    reward_model: none
    prompts: 6
    samples: 2
    sampling: {{max_tokens: 8}}
    reward: {{"spread:spread": 1.0}}
  policies:
    a: {kind}/a
    b: {kind}/b
"""
TRAINER = """import os, random, shutil, sys
from safetensors.numpy import load_file, save_file

factor, seed = float(sys.argv[1]), os.environ["POSTTRAIN_SEED"]
start, out = os.environ["POSTTRAIN_START"], os.environ["POSTTRAIN_OUT"]
shutil.copytree(start, out, dirs_exist_ok=True)
os.remove(f"{out}/manifest.json")
weights = load_file(f"{out}/model.safetensors")
weights = {name: part * (1.0 + factor * random.Random(seed + name).random()) for name, part in weights.items()}
weights = {name: part.astype("float32") for name, part in weights.items()}
save_file(weights, f"{out}/model.safetensors", {"format": "pt"})
with open(os.environ["POSTTRAIN_METRICS"], "w") as file:
    file.write(f'"step","loss"\\n0,{factor}\\n1,{factor / 2}')
"""
SPREAD = """import hashlib

from posttrain.rewards.reward import rule


@rule()
def spread(rollout, options):
    return int(hashlib.sha256(rollout.text.encode()).hexdigest()[:4], 16) / 65535
"""
WARNED: Final = ("stale", "not current", "NOT WHAT RAN", "missing", "not verified", "DIFFERS", "not in the workspace")
"""What the tree of `why` holds where something does not belong together."""


class Lies:
    """Sequences of actions on copies of a workspace that has run once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._templates: dict[str, Path] = {}

    def trial(self, seed: int, actions: int = ACTIONS) -> Row:
        """Try one sequence; `wrong` names the first lie, with the actions before it."""
        kind = "sft" if seed % REAL == REAL - 1 else "external"
        here = Path.cwd()
        machine = _machine(self.template(kind), self._folder / f"{kind}-{seed}", kind, seed)
        quiet = settings(
            max_examples=1, stateful_step_count=actions + 1, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        try:
            run_state_machine_as_test(machine, settings=quiet)
        finally:
            os.chdir(here)
        shutil.rmtree(self._folder / f"{kind}-{seed}", ignore_errors=True)
        done, lies, answers = machine.done, machine.lies, dict(machine.answers)
        wrong = f"{lies[0]} after {' / '.join(done)}" if lies else ""
        return {"fault": kind, "outcome": "no lie", "wrong": wrong, "done": done, "lies": lies, "answers": answers}

    def template(self, kind: str) -> Path:
        """A workspace in which both runs were trained and evaluated, and committed."""
        if kind not in self._templates:
            folder = self._folder / f"template-{kind}"
            folder.mkdir(parents=True)
            params = folder / "params.yaml"
            params.write_text(PARAMS + {"external": EXTERNAL, "sft": SFT}[kind] + EVALUATE.format(kind=kind))
            made = make_workspace(folder / "workspace", params)
            write_rows(made / "my/data")
            policy_folder(made / "my/model")
            (made / "my/train.py").write_text(TRAINER)
            (made / "custom/spread.py").write_text(SPREAD)
            shutil.copyfile(spy.__file__, folder / "spy.py")
            for stage in ("external", "sft", "evaluate"):
                _spied(made / "dvc.yaml", stage)
            git(made, "add", "--all")
            ran = _python(made, "-m", "dvc", "repro", ledger=folder / "ledger.jsonl")
            assert ran.returncode == 0, ran.stdout
            git(made, "add", "--all")
            git(made, "commit", "--quiet", "--message", "first")
            self._templates[kind] = folder
        return self._templates[kind]


def _spied(file: Path, stage: str) -> None:
    """Put the spy before a stage's command; it is found by a variable, so that a copy of the workspace can move."""
    text = file.read_text()
    file.write_text(text.replace(f"cmd: python -m stages.{stage} ", f'cmd: python "$SPY" "$LEDGER" stages.{stage} '))


def _python(folder: Path, *words: str, ledger: Path, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python in a workspace; after so many seconds it is killed with all that it has started."""
    env = environment() | {"SPY": str(ledger.with_name("spy.py")), "LEDGER": str(ledger)}
    process = subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, output)


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


class Machine(RuleBasedStateMachine):
    """The actions."""

    template: Path
    folder: Path
    kind: str
    done: list[str]
    lies: list[str]
    answers: Counter[str]
    """How often a reader gave a number that was true, and how often it named what does not belong together."""

    @initialize(number=st.integers(0, 2**32))
    def start(self, number: int) -> None:
        """Copy the workspace."""
        assume(number > 1000)  # the first example that hypothesis tries is the simplest one
        self.rng = random.Random(number)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.template, self.folder, symlinks=True)
        self.ledger, self.root = self.folder / "ledger.jsonl", self.folder / "workspace"
        os.chdir(self.root)
        self.rare = 1
        """Kills and sweeps that are left."""
        self.names = 0
        self._python("-m", "posttrain", "repair")
        self.done.clear()
        self.lies.clear()
        self.answers.clear()

    def _python(self, *words: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
        return _python(self.root, *words, ledger=self.ledger, seconds=seconds)

    def _git(self, *words: str) -> bool:
        done = subprocess.run(["git", *words], cwd=self.root, capture_output=True, check=False)
        return done.returncode == 0

    def _did(self, text: str) -> None:
        self.done.append(text)
        readers = Readers(self.root, self.kind, self.ledger, self.answers)
        self.lies += [f"{lie} [after action {len(self.done)}]" for lie in readers.lies()]

    @rule(run=st.sampled_from(RUNS), value=st.integers(3, 6), key=st.sampled_from(["rate", "seed", "samples"]))
    def edit(self, run: str, value: int, key: str) -> None:
        """Edit a setting of a run, or of all evaluations."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self._did(self._edited(run, value, key))

    def _edited(self, run: str, value: int, key: str) -> str:
        file = self.root / "params.yaml"
        text = file.read_text()
        if key == "samples":
            file.write_text(re.sub(r"samples: \d", f"samples: {value}", text))
            return f"samples {value}"
        before, name, after = text.partition(f"    {run}:\n")
        if key == "seed":
            after = re.sub(r"seed: \d", f"seed: {value}", after, count=1)
        else:
            after = re.sub(r'(train.py, "|lr: )0.\d', rf"\g<1>0.{value}", after, count=1)
        file.write_text(before + name + after)
        return f"{run}.{key} {value}"

    @rule(what=st.sampled_from(["trainer", "reward"]), value=st.integers(1, 3))
    def edit_code(self, what: str, value: int) -> None:
        """Edit the trainer or the reward."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        place, old, new = {
            "trainer": ("my/train.py", r"\(1\.\d \+", f"(1.{value} +"),
            "reward": ("custom/spread.py", r"/ 6553\d", f"/ 6553{value}"),
        }[what]
        file = self.root / place
        file.write_text(re.sub(old, new, file.read_text()))
        self._did(f"{what} {value}")

    @rule()
    def repro(self) -> None:
        """Run all."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self._python("-m", "dvc", "repro", "--keep-going")
        self._did("repro")

    @rule(run=st.sampled_from(RUNS), value=st.integers(3, 6), key=st.sampled_from(["rate", "seed", "samples"]))
    def edit_and_run(self, run: str, value: int, key: str) -> None:
        """Edit a setting and run all."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        edited = self._edited(run, value, key)
        self._python("-m", "dvc", "repro", "--keep-going")
        self._did(f"{edited} and repro")

    @rule(stage=st.sampled_from(["train", "evaluate"]), run=st.sampled_from(RUNS))
    def repro_one(self, stage: str, run: str) -> None:
        """Run a stage alone, with the code as it is."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        name = f"{self.kind if stage == 'train' else 'evaluate'}@{run}"
        self._python("-m", "dvc", "repro", "--single-item", "code")
        self._python("-m", "dvc", "repro", "--single-item", name)
        self._did(f"repro -s {name}")

    @rule()
    def commit(self) -> None:
        """Commit everything."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "more")
        self._did("commit")

    @rule(new=st.booleans(), outputs=st.booleans())
    def switch(self, new: bool, outputs: bool) -> None:  # noqa: FBT001
        """Make a branch, or go to the other one, with or without `dvc checkout`."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        if new:
            self.names += 1
            self._git("checkout", "--quiet", "-b", f"branch{self.names}")
        else:
            self._git("checkout", "--quiet", "-f", self._other())
        if outputs:
            self._python("-m", "dvc", "checkout", "--force")
        self._did(f"{'new branch' if new else 'other branch'}{' and dvc checkout' * outputs}")

    def _branches(self) -> list[str]:
        return git(self.root, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()

    def _other(self) -> str:
        current = git(self.root, "rev-parse", "--abbrev-ref", "HEAD").strip()
        others = [name for name in self._branches() if name != current] or [current]
        return self.rng.choice(others)

    @rule(how=st.sampled_from(["plain", "ours", "theirs", "rebase"]), end=st.sampled_from(["ours", "theirs", "repair"]))
    def merge(self, how: str, end: str) -> None:
        """Merge a branch of other settings that were run; a conflict ends in a commit, as people resolve it."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self._branch_off()
        words = ["rebase", self._other()] if how == "rebase" else ["merge", "--no-edit", self._other()]
        option = [f"-X{how}"] if how in ("ours", "theirs") else []
        if not self._git(*words[:1], *option, *words[1:]):
            self._resolved(end)
            if how == "rebase":
                subprocess.run(
                    ["git", "-c", "core.editor=true", "rebase", "--continue"],
                    cwd=self.root,
                    capture_output=True,
                    check=False,
                )
                self._git("rebase", "--abort")
        self._did(f"{how} merge, conflicts by {end}")

    def _branch_off(self) -> None:
        """Have another branch with other settings and results, where there is none."""
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "before the merge")
        if len(self._branches()) > 1:
            return
        back = git(self.root, "rev-parse", "--abbrev-ref", "HEAD").strip()
        self._git("checkout", "--quiet", "-b", "side")
        self._edited("a", 7, "rate")
        self._python("-m", "dvc", "repro", "code", f"{self.kind}@a", "evaluate@a")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "side")
        self._git("checkout", "--quiet", back)
        self._edited("a", 8, "seed")
        self._python("-m", "dvc", "repro", "code", f"{self.kind}@a", "evaluate@a")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "main")

    def _resolved(self, end: str) -> None:
        unmerged = git(self.root, "diff", "--name-only", "--diff-filter=U").split()
        if end == "repair":
            for file in unmerged:
                if file != "dvc.lock":
                    self._git("checkout", "--ours", file)
            self._python("-m", "posttrain", "repair", "merge")
        else:
            for file in unmerged:
                self._git("checkout", f"--{end}", file)
        self._git("add", "--all")
        self._git("commit", "--quiet", "--no-edit")

    @rule(pop=st.booleans())
    def stash(self, pop: bool) -> None:  # noqa: FBT001
        """Put what is not committed aside, and perhaps take it back."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self._git("stash")
        if pop:
            self._git("stash", "pop")
        self._did(f"stash{' and pop' * pop}")

    @rule(what=st.sampled_from(["checkout", "commit", "gc"]))
    def dvc(self, what: str) -> None:
        """One of DVC's commands that change what it has, or what it records."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        words = {"checkout": ["--force"], "commit": ["--force"], "gc": ["--workspace", "--force"]}[what]
        self._python("-m", "dvc", what, *words)
        self._did(f"dvc {what}")

    @rule(what=st.sampled_from(["cache", "model", "results", "record"]), run=st.sampled_from(RUNS))
    def remove(self, what: str, run: str) -> None:
        """Remove the cache or an output."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        place = {
            "cache": ".dvc/cache/files", "model": f"models/{self.kind}/{run}", "results": f"results/{run}/metrics.json",
            "record": f"records/evaluate/{run}.json",
        }[what]  # fmt: skip
        file = self.root / place
        shutil.rmtree(file, ignore_errors=True) if file.is_dir() else file.unlink(missing_ok=True)
        self._did(f"rm {place}")

    @rule(what=st.sampled_from(["model", "results", "entry"]), recorded=st.booleans())
    def copy(self, what: str, recorded: bool) -> None:  # noqa: FBT001
        """Copy what one run made over that of the other, and perhaps have DVC record it."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        if what == "entry":
            self._copy_entry()
        else:
            place = f"models/{self.kind}" if what == "model" else "results"
            if not (self.root / place / "a").is_dir():
                return
            shutil.rmtree(self.root / place / "b", ignore_errors=True)
            shutil.copytree(self.root / place / "a", self.root / place / "b")
            if recorded:
                name = f"{self.kind}@b" if what == "model" else "evaluate@b"
                self._python("-m", "dvc", "commit", "--force", name)
        self._did(f"copy {what}{' and dvc commit' * recorded}")

    def _copy_entry(self) -> None:
        """Edit dvc.lock by hand: the settings of run b become those of params.yaml."""
        file = self.root / "dvc.lock"
        with contextlib.suppress(Exception):  # a lock in conflict stays
            lock = yaml.safe_load(file.read_text())
            params = yaml.safe_load((self.root / "params.yaml").read_text())
            entry = lock["stages"][f"{self.kind}@b"]
            entry["params"]["params.yaml"] = {f"{self.kind}.runs.b": params[self.kind]["runs"]["b"]}
            file.write_text(yaml.safe_dump(lock, sort_keys=False))

    @precondition(lambda self: self.rare > 0)
    @rule(seconds=st.floats(0.5, 9.0))
    def kill(self, seconds: float) -> None:
        """Kill `dvc repro` with all that it has started."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self.rare -= 1
        self._edited("b", self.rng.randint(3, 6), "rate")
        self._python("-m", "dvc", "repro", seconds=seconds)
        self._did(f"b.rate edited, repro killed after {seconds:.1f} s")

    @precondition(lambda self: self.rare > 0)
    @rule()
    def sweep(self) -> None:
        """Run two settings as experiments."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self.rare -= 1
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "before the sweep")
        self.names += 1
        target = f"{self.kind}@a"
        words = ["-m", "flows.sweep", f"s{self.names}", "-S", f"{self.kind}.runs.a.seed=3,4", "--targets", target]
        self._python(*words)
        self._did("sweep")

    def teardown(self) -> None:
        """Leave the workspace."""
        os.chdir(self.template)


def _machine(template: Path, folder: Path, kind: str, seed: int) -> type[Machine]:
    given: dict[str, Any] = {
        "template": template,
        "folder": folder,
        "kind": kind,
        "done": [],
        "lies": [],
        "answers": Counter(),
    }
    return type(f"Machine{seed}", (Machine,), given | {"_hypothesis_internal_use_seed": seed})


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

    def status(self) -> Iterator[str]:
        """What status does not name is current: the results on the disk are those of the settings."""
        from posttrain.pipeline.status import status

        named = set(re.findall(r"\w+@\w+", status()))
        for run in RUNS:
            file = self._root / "results" / run / "metrics.json"
            if not {f"{self._kind}@{run}", f"evaluate@{run}", "base_folders@start", "data_files@mine"} & named:
                score = json.loads(file.read_text())["score"] if file.is_file() else -1.0
                if not self._is_true(run, score, self._now()):
                    yield f"nothing is said of {run}, and its score {score} is not that of its settings"

    def results(self) -> Iterator[str]:
        """A score that is shown is that of the settings."""
        from posttrain.report.results import results_json
        from posttrain.report.stale_results import staleness

        for row in json.loads(results_json(staleness().reasons)):
            name, score = row.get("policy"), row.get("score")
            if name in RUNS and score is not None and not self._is_true(name, score, self._now()):
                yield f"{name} {score} is not the score of its settings"

    def _compare(
        self, names: list[str], policy: str | None, given: Callable[[str], tuple[dict[str, Any], dict[str, str]]]
    ) -> Iterator[str]:
        from posttrain.commands.compare import run
        from posttrain.commands.line import parse

        chosen = ["--policy", policy] if policy else []
        found = json.loads(run(parse(["compare", *names, *chosen, "--json"])))
        told = " ".join(found["notes"])
        for mean in found["settings"]:
            label = mean["label"]
            name = label.partition(" (code of")[0]
            if f"{name}: its results are not current" in told or f"{name}: not verified" in told or "=" in name:
                continue
            members = name.split(" + ")
            if not any(self._is_true(policy or one, mean["value"], given(one)) for one in members):
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
        from posttrain.lineage.explain import why

        for run in RUNS:
            text = why(f"{run}.score", "words")
            score = float(re.findall(r"score = ([\d.]+)", text)[0])
            if not any(word in text for word in WARNED) and not self._is_true(run, score, self._now()):
                yield f"{run} {score} with nothing against it"

    def promoted(self) -> Iterator[str]:
        """What would be promoted is the model of the settings."""
        from posttrain.commands.promote.promotion import promote

        text = promote("a", "best", None, "show")
        score = float(re.findall(r"score: ([\d.]+)", text)[0])
        if not any(abs(score - known) < 6e-4 for known in self._truth.scores(self._kind, "a", *self._now())):
            yield f"would promote a with {score}, which is not the score of its settings"

    def verified(self) -> Iterator[str]:
        """Where nothing is found, every entry of dvc.lock is what ran, and so are the files."""
        from posttrain.pipeline.verify import verify

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
def _files(root: Path, commit: str, names: tuple[str, ...]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            content = subprocess.run(
                ["git", "show", f"{commit}:{name}"], cwd=root, capture_output=True, check=True
            ).stdout
            Path(folder, Path(name).name).write_bytes(content)
        yield Path(folder)
