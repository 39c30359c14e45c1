"""Read the origin of an output from dvc.lock: settings, tables, models, code and versions, back to the sources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from posttrain.errors import PosttrainError
from posttrain.measure.record import read_record, record_path
from posttrain.pipeline.lineage.tree import NOT_STORED, Node
from posttrain.pipeline.lock.digests import LOCK, Digests, recorded
from posttrain.pipeline.lock.git import git_or_none
from posttrain.pipeline.lock.graph import value_at
from posttrain.pipeline.lock.reasons import Reasons
from posttrain.pipeline.lock.run_records import RunRecords
from posttrain.pipeline.params.yaml_files import read_yaml

ROLLOUTS: Final = Path("rollouts")
PARTS: Final = "part-?????.parquet"
"""The folder in which online runs store the rows that they trained on."""
NONE: Final = ("data/none.parquet", "models/none")
"""The value for an input that a run does not use."""


class Lineage:
    """The stages of dvc.lock as a graph."""

    def __init__(self) -> None:
        self.lock = recorded()
        self._digests, self.records = Digests(), RunRecords()
        self._files: dict[str, Mapping[str, Any]] = {}
        """The files of settings, parsed."""
        self._versions: dict[str, str] = {}
        """The versions that are said already."""
        self._outs = {str(out["path"]): stage for stage, entry in self.lock.items() for out in entry.get("outs", ())}

    def maker(self, path: str) -> str | None:
        """Return the stage that makes a file or the folder that contains it."""
        return next((self._outs[place] for place in (path, *map(str, Path(path).parents)) if place in self._outs), None)

    def output(self, path: str) -> Node:
        """Return a file or folder that a stage made, with all its inputs back to the sources."""
        return self._output(path, self._recorded_digest(path), set())

    def stage(self, name: str) -> Node:
        """Return a stage with its inputs."""
        return self._stage(name, set())

    def above(self, stage: str) -> list[str]:
        """Return the stages whose outputs reach a stage, including itself."""
        stages, waiting = dict[str, None](), [stage]
        while waiting:
            name = waiting.pop()
            if name not in stages:
                stages[name] = None
                waiting += [made for dep in self.inputs(name) if (made := self.maker(dep))]
        return list(stages)

    def sources(self, stage: str) -> list[str]:
        """Return the user's own files that a stage depends on, directly or through other stages."""
        deps = {dep for name in self.above(stage) for dep in self.inputs(name)}
        return sorted(dep for dep in deps if self.maker(dep) is None and self._unrecorded(dep) is None)

    def inputs(self, stage: str) -> Iterator[str]:
        """Yield the tables, models and files that a stage depends on.

        For a folder such as results/, yield its stages' outputs.
        """
        for path in (str(dep["path"]) for dep in self.lock.get(stage, {}).get("deps", ())):
            if path not in NONE and not path.startswith("code/"):
                made = [out for out in self._outs if Path(path) in Path(out).parents and self.maker(path) is None]
                yield from made or [path]

    def _output(self, path: str, digest: str, seen: set[str]) -> Node:
        stage = self.maker(path)
        node = Node(path, {"digest": digest, **self._changes(path, digest)})
        if stage is None and (unrecorded := self._unrecorded(path)):
            why = f"dvc.lock has no entry of {unrecorded}, which makes it: `dvc repro {unrecorded}`"
            return Node(path, {**node.facts, "not current": why})
        if stage is None:
            return Node(f"{path} (a source: no stage makes it)", node.facts)
        node.parts.append(self._stage(stage, seen))
        return node

    def _stage(self, name: str, seen: set[str]) -> Node:
        if name in seen:
            return Node(f"made by {name} (above)")
        seen.add(name)
        entry = self.lock[name]
        facts = {"command": entry.get("cmd", ""), **self._settings(entry), **self._code(name)}
        node = Node(f"made by {name}", facts | self._verdict(name, entry))
        digests = {str(dep["path"]): str(dep.get("md5", "")) for dep in entry.get("deps", ())}
        node.parts += [
            self._output(path, digests.get(path) or self._recorded_digest(path), seen) for path in self.inputs(name)
        ]
        if name.startswith(("online@", "distill@", "external_rollouts@")):
            run = name.replace("@", "/").replace("external_rollouts/", "external/")
            node.parts.append(self._training_rollouts(run, entry))
        return node

    def _verdict(self, name: str, entry: Mapping[str, Any]) -> dict[str, str]:
        """Return what contradicts a run's entry, that it has no record, or why it is out of date."""
        if wrong := self.records.contradictions(name, entry):
            return {"NOT WHAT RAN": f"{'; '.join(wrong)}. Run `posttrain repair`, then `dvc repro`"}
        if not self.records.is_verified(entry):
            return {"not verified": f"its record is missing: `dvc pull {record_path(name)}`"}
        known = self._reasons is not None and name in self._reasons.pipeline.stages
        why = self._reasons.of(name) if self._reasons is not None and known else ()
        return {"not current": "; ".join(why)} if why else {}

    def _unrecorded(self, path: str) -> str | None:
        """Return the stage in dvc.yaml for an output that dvc.lock does not contain."""
        makers = {} if self._reasons is None else self._reasons.pipeline.makers
        return next((makers[place] for place in (path, *map(str, Path(path).parents)) if place in makers), None)

    def _training_rollouts(self, run: str, entry: Mapping[str, Any]) -> Node:
        """Return the rows that a run trained on, and whether they match dvc.lock."""
        folder = ROLLOUTS / run
        digest = next((str(out.get("md5", "")) for out in entry.get("outs", ()) if out["path"] == str(folder)), None)
        changes = {} if digest is None else {"digest": digest, **self._changes(str(folder), digest)}
        return Node("training rollouts", {**training_rollouts(folder), **changes})

    def _settings(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recorded settings, and which of them have changed in params.yaml since."""
        recorded_settings: dict[str, Any] = {}
        for file, values in entry.get("params", {}).items():
            if file not in self._files:
                self._files[file] = read_yaml(file) if Path(file).is_file() else {}
            settings = self._files[file]
            recorded_settings |= {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
            if changed := [key for key, value in values.items() if value_at(settings, key) != value]:
                recorded_settings["stale"] = f"{file} has other settings now: {', '.join(changed)}"
        return recorded_settings

    def _code(self, name: str) -> dict[str, Any]:
        """Return the code and the versions that made a stage's output."""
        dep = next((entry for entry in self.lock[name].get("deps", ()) if str(entry["path"]).startswith("code/")), None)
        facts: dict[str, Any] = {}
        if dep is not None:
            count = len(read_record(Path(dep["path"])).get("files", ()))
            facts["code"] = f"{dep['path']}, {count} files, digest {dep['md5']}"
            facts |= self._changes(str(dep["path"]), str(dep["md5"]))
        record = self.records.of(self.lock[name]) or {}
        run_facts = {key: record[key] for key in ("seed", "device", "precision", "threads") if key in record}
        facts["record"] = {str(record_path(name)): "", **run_facts} if record else NOT_STORED
        said = self._versions
        if versions := {key: value for key, value in record.get("versions", {}).items() if said.get(key) != value}:
            facts["versions"] = versions
            self._versions |= versions
        return facts

    def _changes(self, path: str, digest: str) -> dict[str, str]:
        """Return what differs from the recorded digest: an edit, or a later run of the stage that makes it."""
        now, made = self._digests.of(path), self._recorded_digest(path)
        if now is None:
            return {"missing": f"{path} is not in the workspace"}
        if now != digest:
            return {"stale": f"{path} was {'made again' if now == made else 'edited'} since"}
        return {}

    def _recorded_digest(self, path: str) -> str:
        """Return the digest of an output in dvc.lock; for a file in an output folder, the file's own digest."""
        outs = (out for entry in self.lock.values() for out in entry.get("outs", ()))
        exact = next((str(out.get("md5", "")) for out in outs if out["path"] == path), None)
        return exact if exact is not None else str(self._digests.of(path))

    @cached_property
    def _reasons(self) -> Reasons | None:
        """Why stages are out of date; None if params.yaml or dvc.yaml cannot be read, which `check` explains."""
        try:
            return Reasons()
        except PosttrainError:
            return None

    @cached_property
    def commit(self) -> str:
        """The commit with the same dvc.lock, or a note that there is none."""
        last = (git_or_none("log", "-1", "--format=%h %s", "--", LOCK) or b"").decode().strip()
        if not last:
            return "dvc.lock is not committed"
        return f"{'after ' if git_or_none('diff', '--quiet', 'HEAD', '--', LOCK) is None else ''}{last}"


def training_rollouts(folder: Path) -> dict[str, Any]:
    """Return the rows that a run trained on, if they are stored."""
    files = sorted(folder.glob(PARTS))
    if not files:
        return {"rows": NOT_STORED}
    frame = pl.concat([pl.read_parquet(file, columns=["id", "prompt_id", "round", "reward"]) for file in files])
    ordered = frame.sort("reward", nulls_last=True)
    return {
        "folder": str(folder),
        "rows": frame.height,
        "prompts": frame["prompt_id"].n_unique(),
        "rounds": frame["round"].n_unique(),
        "worst": ordered["id"].head(3).to_list(),
        "best": ordered.drop_nulls("reward")["id"].tail(3).to_list(),
    }
