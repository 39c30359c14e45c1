"""Find the reasons why a stage must run, from dvc.lock, params.yaml and files, without running DVC."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from posttrain.measure.provenance import code_differences
from posttrain.measure.record import read_record, record_path
from posttrain.pipeline.lock.code_manifest import CODE, Code, Library, code_path, read_code
from posttrain.pipeline.lock.digests import Digests, read_settled
from posttrain.pipeline.lock.graph import NOT_SET, Pipeline, changed, value_at
from posttrain.pipeline.lock.plugin_check import install, is_missing, shown
from posttrain.pipeline.lock.run_records import RunRecords, is_record
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.plain import flattened

NEVER_RAN: Final = "never ran"
MISSING: Final = "its output {} is missing"
ALTERED: Final = (
    "its output {} is not what dvc.lock has: `dvc checkout` after a `git checkout` or a merge, "
    "else `posttrain repair verify`"
)
NOT_RUN: Final = "dvc.lock does not say what ran: {}. Run `posttrain repair`, then `dvc repro`"
MOST: Final = 6
"""The most changes of one kind in a line."""


class Reasons:
    """Find what is out of date in a workspace, as `dvc status` would after the stage `code` has run."""

    def __init__(self, root: Path = Path()) -> None:
        self.pipeline = Pipeline(root)
        self.lock = read_settled(root)
        self._root = root
        self.settings = read_yaml(root / PARAMS_FILE)
        self._digests = Digests(root)
        self.records = RunRecords(root)
        self._known: dict[str, tuple[str, ...]] = {}

    @cached_property
    def _library(self) -> Library:
        return Library()

    def keep(self) -> None:
        """Store the parsed code and the digests of files for the next process."""
        self._library.outlines.keep()
        self._digests.keep()

    def of(self, name: str) -> tuple[str, ...]:
        """Return the reasons why a stage itself must run, without upstream reasons; empty if it is up to date."""
        if name == CODE:  # compared by its files, which say more: those of the stages that a change cannot reach stay
            return ()
        if name not in self._known:
            self._known[name] = tuple(dict.fromkeys(self._of(name)))
        return self._known[name]

    def changes(self, name: str) -> bool:
        """Tell whether a stage itself must run. If only its outputs are missing, DVC restores them instead."""
        return any(not reason.startswith("its output ") for reason in self.of(name))

    def below(self, name: str) -> list[str]:
        """Return the stages that must run only because this stage must run."""
        stages, queue = {name}, [name] if self.changes(name) else []
        while queue:
            later = self.pipeline.downstream.get(queue.pop(), set()) - stages
            stages |= later
            queue += later
        return sorted(stage for stage in stages if not self.of(stage))

    def to_run(self, running: Collection[str]) -> list[str]:
        """Return the running stages and stale stages, in order."""
        spreading, names = set[str](), []
        for name in self.pipeline.order():
            below = not spreading.isdisjoint(self.pipeline.upstream[name])
            if below or name in running or self.of(name):
                names.append(name)
            if below or name in running or self.changes(name):
                spreading.add(name)
        return names

    def _of(self, name: str) -> Iterator[str]:
        stage, entry = self.pipeline.stages[name], self.lock.get(name)
        if stage.unknown:
            yield f"dvc.yaml names {', '.join(stage.unknown)}, which params.yaml lacks"
            return
        if entry is None:
            yield NEVER_RAN
            return
        if not stage.frozen:
            if stage.always:
                yield "it always runs"
            if entry.get("cmd") != stage.cmd:
                yield "its command changed"
            for file, keys in stage.params.items():
                if words := self._params(file, keys, entry):
                    yield _listed(words)
            yield from self._deps(name, entry)
        yield from self._outs(name, entry)
        yield from self._contradicted(name, entry)

    def _contradicted(self, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
        """Yield contradictions to the run's record. DVC itself would consider the entry current."""
        if wrong := self.records.contradictions(name, entry):
            yield NOT_RUN.format("; ".join(wrong))

    def _deps(self, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
        known = {dep["path"]: dep.get("md5") for dep in entry.get("deps", ())}
        deps = self.pipeline.stages[name].deps
        for path in deps:
            if path == code_path(name).as_posix():
                if path not in known or self._code_digest(name) != known[path]:
                    yield _listed(self._code_changes(name))
            elif path not in known:
                yield f"{path} new"
            elif (recorded := self._recorded(path)) is not None:
                if recorded != known[path]:
                    yield f"{path} modified"
            elif any(self.of(maker) for maker in self.pipeline.behind(path)):
                continue  # what is there now will be replaced
            elif (present := self._source(path, known[path])) != known[path]:
                yield f"{path} {'deleted' if present is None else 'modified'}"

    def _source(self, path: str, known: str | None) -> str | None:
        """Return the present digest of a dependency."""
        del known
        return self._digests.of(path)

    def _recorded(self, path: str) -> str | None:
        """Return the digest in dvc.lock of a dependency that is a stage's whole output; None for any other."""
        maker = self.pipeline.makers.get(path)
        outs = self.lock.get(maker, {}).get("outs", ()) if maker else ()
        return next((out.get("md5") for out in outs if out["path"] == path), None)

    def _outs(self, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
        known = {out["path"]: out.get("md5") for out in entry.get("outs", ())}
        for path in self.pipeline.stages[name].outs:
            if path not in known:
                yield f"{path} is a new output"
            elif (present := self._digests.of(path)) is None:
                pull = f", so the run is not verified: `dvc pull {path}`" if is_record(path) else ""
                yield MISSING.format(path) + pull
            elif known[path] is not None and present != known[path]:
                yield ALTERED.format(path)

    def is_absent(self, name: str) -> bool:
        """Tell whether a stage is stale only because all its outputs are missing, as in a fresh clone."""
        start, outs = MISSING.partition("{}")[0], self.pipeline.stages[name].outs
        needed = [out for out in outs if out not in self.pipeline.stages[name].uncached]
        why = self.of(name)
        return bool(why and needed) and all(one.startswith(start) for one in why) and len(why) >= len(needed)

    def _code_digest(self, name: str) -> str | None:
        """Return the digest of a stage's code file, as it is or will be once the stage `code` has written it."""
        path = code_path(name)
        code = self._library.code(name, self.settings)
        if read_code(path) == code:
            return self._digests.of(path.as_posix())
        text = json.dumps(code, indent=2) + "\n"
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    def _code_changes(self, name: str) -> list[str]:
        return code_changes(name, self._library.code(name, self.settings))

    def _params(self, file: str, keys: tuple[str, ...], entry: Mapping[str, Any]) -> list[str]:
        """Return the changed parameters with old and new values."""
        settings = self.settings if file == PARAMS_FILE else read_yaml(self._root / file)
        known = entry.get("params", {}).get(file, {})
        words = []
        for key in keys:
            old, new = known.get(key), value_at(settings, key)
            if old == new and key in known:
                continue
            words += [
                f"params {'.'.join(keys)} {before} -> {after}"
                for keys, before, after in changed(flattened(old, key), flattened(new, key), NOT_SET)
            ] or [f"params {key} changed"]
        return words


class DuringRun(Reasons):
    """The reasons of a stage that DVC is running: `code` has run before, and outputs are not read again."""

    def keep(self) -> None:
        """Store the digests of files that no stage writes for the next process."""
        self._digests.keep()

    def _code_digest(self, name: str) -> str | None:
        return self._digests.of(code_path(name).as_posix())

    def _code_changes(self, name: str) -> list[str]:
        return [f"the code of {name} changed"]

    def _contradicted(self, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
        del name, entry
        yield from ()

    def _outs(self, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
        del entry
        yield from (MISSING.format(out) for out in self.pipeline.stages[name].outs if not (self._root / out).exists())


def accepted_code(record: Mapping[str, Any]) -> Code | None:
    """Return the code of a run's result: the code used plus changes accepted since then; None if not recorded."""
    used = record.get("code")
    if not isinstance(used, Mapping):
        return None
    code: Code = {kind: dict(used[kind]) for kind in used}
    for acceptance in record.get("accepted", ()):
        for kind, changes in acceptance["changed"].items():
            named = code.setdefault(kind, {})  # a code has `settings` only where the run takes the shared seed
            for name, (_, new) in changes.items():
                if new is None:
                    named.pop(name, None)
                else:
                    named[name] = new
    return code


def code_changes(name: str, new: Code | None) -> list[str]:
    """Return the changes of a stage's code since its result was made or accepted, as text."""
    old = accepted_code(read_record(record_path(name)))
    if not old or not new:
        return ["its code changed"]
    gone = {distribution: made for distribution, made in old["packages"].items() if is_missing(distribution, made)}
    gone = {distribution: made for distribution, made in gone.items() if distribution not in new["packages"]}
    rest: Code = {**old, "packages": {key: value for key, value in old["packages"].items() if key not in gone}}
    words = [f"{shown(*entry)}, a package with a plugin, is not installed. {install(*entry)}" for entry in gone.items()]
    return [*words, *code_differences(rest, new)] or ["its code changed"]


def _listed(words: list[str]) -> str:
    more = f" and {len(words) - MOST} more" if len(words) > MOST else ""
    return ", ".join(words[:MOST]) + more
