"""Compare the inputs that DVC recorded for a run with the inputs that it used.

An input can be edited after a stage has ended and before DVC reads its digest. So a run leaves a note. A later stage, a
flow, `posttrain repair sync` or `repair` then compares, and writes DVC's cache to the disk (fsync).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PipelineError
from posttrain.files import file_digest, write_json, write_text
from posttrain.measure.record import read_record
from posttrain.pipeline.lock.digests import LOCK, Digests, dvc_lock, read_lock, recorded
from posttrain.pipeline.lock.fsync import cache_folder, object_path, sync_cache
from posttrain.pipeline.lock.run_records import contradictions, is_record

NOTES: Final = Path(".dvc/tmp/ended")


def note_finished(record: Path) -> None:
    """Write a note that DVC is about to record the run with this record."""
    stage = os.environ.get("DVC_STAGE")
    if stage and NOTES.parent.is_dir():
        note = {"stage": stage, "path": record.as_posix(), "record": file_digest(record)}
        write_json(NOTES / f"{stage.replace('/', '@')}.json", note)


def check_and_sync(root: Path, stage: str = "") -> None:
    """Write DVC's cache to the disk. Raise if dvc.lock lists an input that the stage (or any stage) did not use."""
    if lines := forget_mismatched(root, stage):
        raise PipelineError(what="\n".join(lines), where="dvc.lock", fix="Run it again")
    sync_cache(root)


def forget_mismatched(root: Path, stage: str = "") -> list[str]:
    """Remove results of runs for which DVC recorded inputs that they did not use. Return a line for each."""
    lines, digests, cache = [], Digests(root), cache_folder(root)
    notes = sorted((root / NOTES).glob("*.json"))
    for file in notes:
        note = read_record(file)
        entry = recorded(root).get(note.get("stage", ""), {})
        names = {"path": note.get("path"), "md5": note.get("record")}
        if stage not in ("", note.get("stage")) or not any(
            names.items() <= out.items() for out in entry.get("outs", [])
        ):
            continue  # another stage, or not recorded
        here, stored = root / note["path"], object_path(cache, note["record"])
        whole = here.is_file() and file_digest(here) == note["record"]
        if not whole and not stored.is_file():
            continue  # its outputs are gone too, e.g. with a removed cache; a pull may bring them back
        if wrong := contradictions(note["stage"], entry, read_record(here if whole else stored)):
            # Without its record DVC uses neither the entry of dvc.lock nor that of the run cache.
            stored.unlink(missing_ok=True)
            if whole:
                here.unlink(missing_ok=True)
            lines.append(f"{note['stage']} did not run as DVC recorded it: {', '.join(wrong)}: it has to run again")
        else:
            _adopt(root, entry, digests)
        file.unlink(missing_ok=True)
    if notes:
        digests.keep()
    return lines


def _adopt(root: Path, entry: Mapping[str, Any], digests: Digests) -> None:
    """Store the digests of a run's outputs that DVC has just computed, so that gigabytes are not read again."""
    until = (root / LOCK).stat().st_mtime_ns
    for out in entry.get("outs", []):
        if digest := out.get("md5"):
            digests.adopt(out["path"], digest, object_path(cache_folder(root), digest), until)


def undo_interrupted_accept(root: Path) -> list[str]:
    """Restore records that a killed `accept` changed before DVC recorded them. Return a line for each.

    If DVC's cached copy is a hard link, an edit in place changes it too. That is damage, which `verify` handles.
    """
    lines, cache, digests = [], cache_folder(root), Digests(root)
    with dvc_lock(root):  # an `accept` that is at work holds it
        for stage, out in ((name, out) for name, entry in read_lock(root).items() for out in entry.get("outs", [])):
            digest = out.get("md5") or "none"
            here, stored = root / out["path"], object_path(cache, digest)
            if not is_record(out["path"]) or digests.of(out["path"]) in (None, digest) or not stored.is_file():
                continue
            if file_digest(stored) != digest:
                lines.append(f"{out['path']} of {stage} was edited, and DVC's copy with it: `posttrain repair verify`")
            elif _before_accept(read_record(here)) == _before_accept(read_record(stored)):
                write_text(here, stored.read_text(encoding="utf-8"))
                lines.append(f"`accept` of {stage} was interrupted: undone, run it again")
    digests.keep()
    return lines


def _before_accept(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without the changes of `accept`: its list, and the digest of the code."""
    inputs = {path: digest for path, digest in record.get("inputs", {}).items() if not path.startswith("code/")}
    return {**{key: value for key, value in record.items() if key != "accepted"}, "inputs": inputs}
