"""Entries of dvc.lock that no run has made are removed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from posttrain.pipeline.lock.digests import read_lock
from posttrain.pipeline.lock.mixed_entries import remove_contradicted


def entry(run: str, data: str, digest: str) -> dict[str, Any]:
    outs = [{"path": f"records/sft/{run}.json", "hash": "md5", "md5": digest, "size": 1}]
    return {"cmd": "c", "deps": [{"path": "data", "hash": "md5", "md5": data, "size": 1}], "outs": outs}


def test_entries_against_their_record_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / "records/sft").mkdir(parents=True)
    stages = {}
    for run, data in (("a", "1" * 32), ("b", "2" * 32)):
        content = json.dumps({"stage": f"sft@{run}", "inputs": {"data": "1" * 32}})
        (tmp_path / f"records/sft/{run}.json").write_text(content)
        stages[f"sft@{run}"] = entry(run, data, hashlib.md5(content.encode()).hexdigest())
    (tmp_path / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
    (line,) = remove_contradicted(tmp_path)
    assert line.startswith("sft@b: dvc.lock does not say what ran (data (the run read another version)): removed")
    assert list(read_lock(tmp_path)) == ["sft@a"] and remove_contradicted(tmp_path) == []
