"""`posttrain accept STAGE --reason TEXT`: keep a result although the code changed, and record the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.errors import PipelineError
from posttrain.files import file_digest, write_json, write_text
from posttrain.measure.record import read_record, record_path
from posttrain.pipeline.lock.code_manifest import CODE, Code, code_path, read_code
from posttrain.pipeline.lock.digests import read_lock
from posttrain.pipeline.lock.lock_check import undo_interrupted_accept
from posttrain.pipeline.lock.reasons import accepted_code, code_changes
from posttrain.pipeline.lock.run_records import RunRecords
from posttrain.pipeline.lock.status import dvc_repo
from posttrain.pipeline.params.seeds import SEED
from posttrain.settings.params import did_you_mean


def accept(targets: Sequence[str], reason: str) -> str:
    """Make DVC treat the results of these stages as made by the present code. Each record stores the reason."""
    if not reason.strip():
        raise PipelineError(what="the reason is empty", where="--reason", fix="Say why the results stay the same")
    undo_interrupted_accept(Path())
    with dvc_repo() as repo:
        names = _chosen(targets, {stage.addressing for stage in repo.index.graph} - {CODE})
        changed, recorded = repo.status(), read_lock(Path())
        names = [
            name for name in names if name in targets or changed.get(name)
        ] or names  # of a group, those that need it
        for name in names:
            _check(name, changed.get(name, []))
            if wrong := RunRecords().contradictions(name, recorded[name]):
                fix = "Run `posttrain repair`, then `dvc repro`"
                raise PipelineError(what=f"dvc.lock does not match the run: {'; '.join(wrong)}", where=name, fix=fix)
        lines = []
        for name in names:
            words = code_changes(name, read_code(code_path(name)))
            _accept(repo, name, reason)
            lines.append(f"{name}: accepted: {', '.join(words)}")
    return "\n".join(lines)


def _chosen(targets: Iterable[str], known: set[str]) -> list[str]:
    """Return the stages by name or group."""
    names: dict[str, None] = {}
    for target in targets:
        matches = [name for name in sorted(known) if target in (name, name.partition("@")[0])]
        if not matches:
            fix = did_you_mean(target, sorted(known)) or "`dvc stage list` shows the stages"
            raise PipelineError(what=f"no stage '{target}'", where="dvc.yaml", fix=fix)
        names |= dict.fromkeys(matches)
    return list(names)


def _check(name: str, reasons: Sequence[Any]) -> None:
    """Raise if nothing changed, or if anything besides the code changed."""
    code = str(code_path(name))
    if not reasons:
        raise PipelineError(what="it is up to date", where=name, fix="Leave it out")
    if not record_path(name).is_file():
        raise PipelineError(what="it has not run in this folder", where=name, fix="Run `dvc pull`, or `dvc repro`")
    other = [
        f"{path}: {', '.join(how)}" if isinstance(how, Mapping) else f"{path} {how}"
        for reason in reasons
        for kind, paths in (reason.items() if isinstance(reason, Mapping) else [(reason, {reason: ""})])
        for path, how in paths.items()
        if path != code or kind != "changed deps"
    ]
    if other:
        what = f"something other than its code changed: {', '.join(other)}"
        raise PipelineError(what=what, where=name, fix="Run `dvc repro`; only code changes can be accepted")
    old, new = accepted_code(read_record(record_path(name))), read_code(Path(code))
    if old is None or new is None:
        what = "its record does not list the code that made the results"
        raise PipelineError(what=what, where=str(record_path(name)), fix="Run `dvc repro`")
    before, after = old.get("settings", {}), new.get("settings", {})
    if keys := sorted(key for key in before.keys() | after.keys() if key != SEED and before.get(key) != after.get(key)):
        changed = ", ".join(f"{key} {before.get(key, 'not set')} -> {after.get(key, 'not set')}" for key in keys)
        what, fix = (
            f"something other than its code changed: {changed}",
            "Run `dvc repro`; only code changes can be accepted",
        )
        raise PipelineError(what=what, where=name, fix=fix)


def _accept(repo: Any, name: str, reason: str) -> None:
    """Add the accepted changes to the record and commit. If DVC fails, restore the record."""
    from dvc.repo import lock_repo

    file, code = record_path(name), code_path(name)
    before, record = file.read_text(encoding="utf-8"), read_record(file)
    changed = changes(accepted_code(record) or {}, read_code(code) or {})
    record["accepted"] = [*record.get("accepted", []), {"reason": reason, "changed": changed}]
    record["inputs"][str(code)] = file_digest(code)
    with lock_repo(repo):
        try:
            write_json(file, record)
            repo.commit(name, force=True)
        except BaseException:  # Ctrl-C too: the record must not name what was not committed
            write_text(file, before)
            raise


def changes(old: Code, new: Code) -> dict[str, dict[str, list[str | None]]]:
    """Return the changes between two versions of code: name -> [before, after]."""
    differences: dict[str, dict[str, list[str | None]]] = {}
    for kind in {**new, **old}:
        before, after = old.get(kind, {}), new.get(kind, {})
        names = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
        differences[kind] = {name: [before.get(name), after.get(name)] for name in names}
    return differences
