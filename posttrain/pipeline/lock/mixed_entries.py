"""Remove entries of dvc.lock that do not match any run, so that DVC runs their stages again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.pipeline.lock.digests import dvc_lock, read_lock
from posttrain.pipeline.lock.fsync import cache_folder
from posttrain.pipeline.lock.lock_file import write_entries
from posttrain.pipeline.lock.run_records import RunRecords


def remove_contradicted(root: Path) -> list[str]:
    """Remove entries that contradict their run's record, here and in DVC's run cache. Return a line for each."""
    records = RunRecords(root)
    with dvc_lock(root):
        entries = read_lock(root)
        contradicted = {
            name: wrong for name, entry in entries.items() if (wrong := records.contradictions(name, entry))
        }
        if contradicted:
            _remove_runs(root, records)
            write_entries({name: entry for name, entry in entries.items() if name not in contradicted}, root)
    again = "removed from dvc.lock; `dvc repro` makes it again"
    return [
        f"{name}: dvc.lock does not say what ran ({'; '.join(wrong)}): {again}" for name, wrong in contradicted.items()
    ]


def _remove_runs(root: Path, records: RunRecords) -> None:
    """Remove such entries from the run cache. `dvc commit` fills it too, and DVC would restore their outputs."""
    from dvc.utils.serialize import load_yaml

    for file in sorted((cache_folder(root).parent.parent / "runs").glob("??/*/*")):
        entry: Any = load_yaml(str(file))
        if isinstance(entry, dict) and records.contradictions("", entry):
            file.unlink()
            if not any(file.parent.iterdir()):
                file.parent.rmdir()
