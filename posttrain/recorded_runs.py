"""What DVC recorded of a run against what the run has used, once DVC has recorded it.

Between a stage's end and DVC's own look at the inputs an edit can still come. So a run leaves a note; who comes next (a
later stage, a flow, `posttrain sync` or `repair`) compares, and has the disk keep what DVC has cached.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from posttrain.digests import file_digest, recorded
from posttrain.errors import PipelineError
from posttrain.fsync import cache_folder, object_path, sync_cache
from posttrain.workspace import write_json

NOTES: Final = Path(".dvc/tmp/ended")


def note_finished(record: Path) -> None:
    """Note that DVC is about to record the run that wrote this record."""
    stage = os.environ.get("DVC_STAGE")
    if stage and NOTES.parent.is_dir():
        note = {"stage": stage, "path": record.as_posix(), "record": file_digest(record)}
        write_json(NOTES / f"{stage.replace('/', '@')}.json", note)


def check_and_sync(root: Path, stage: str = "") -> None:
    """Have the disk keep what DVC has recorded; raise if it names inputs that the stage (or any) has not used."""
    if lines := forget_mismatched(root, stage):
        raise PipelineError(what="\n".join(lines), where="dvc.lock", fix="Run it again")
    sync_cache(root)


def forget_mismatched(root: Path, stage: str = "") -> list[str]:
    """Make DVC forget a run for which it has recorded other inputs than the run has used; a line for each."""
    lines = []
    for file in sorted((root / NOTES).glob("*.json")):
        note = read_record(file)
        entry = recorded(root).get(note.get("stage", ""), {})
        names = {"path": note.get("path"), "md5": note.get("record")}
        if stage not in ("", note.get("stage")) or not any(
            names.items() <= out.items() for out in entry.get("outs", [])
        ):
            continue  # not asked for, or not recorded
        here, kept = root / note["path"], object_path(cache_folder(root), note["record"])
        whole = here.is_file() and file_digest(here) == note["record"]
        if wrong := unused_inputs(entry, read_record(here if whole else kept)):
            # Without its record neither dvc.lock's entry nor the run cache's can be taken for done.
            kept.unlink(missing_ok=True)
            if whole:
                here.unlink(missing_ok=True)
            lines.append(f"{note['stage']} has not used {', '.join(wrong)} as DVC recorded it: it has to run again")
        file.unlink(missing_ok=True)
    return lines


def unused_inputs(entry: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """The inputs that dvc.lock names for a stage and that its record, of what it has used, does not."""
    if "inputs" not in record:
        return []
    pairs = [(dep["path"], record["inputs"].get(dep["path"]), dep.get("md5")) for dep in entry.get("deps", [])]
    for file, values in entry.get("params", {}).items():
        taken = record["params"].get(file, {})
        pairs += [(f"{file}: {key}", taken.get(key), value) for key, value in values.items()]
    return [name for name, taken, named in pairs if _plain(taken) != _plain(named)]


def read_record(file: Path) -> dict[str, Any]:
    """A stage's record or note; an empty one where it is missing or damaged, which other checks report."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    return json.loads(json.dumps(value, default=str))
