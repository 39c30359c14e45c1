"""What an entry of dvc.lock says against the record of its run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from posttrain.pipeline.lock.run_records import RunRecords, contradictions, is_record

RECORD = {
    "stage": "sft@a", "params": {"params.yaml": {"sft": {"lr": 1}}}, "inputs": {"data": "1"},
    "outputs": {"models": "2"},
}  # fmt: skip


def entry(lr: int = 1, data: str = "1", models: str = "2", record: str = "records/sft/a.json") -> dict[str, Any]:
    outs = [{"path": "models", "md5": models}, {"path": record, "md5": "3"}]
    return {"params": {"params.yaml": {"sft": {"lr": lr}}}, "deps": [{"path": "data", "md5": data}], "outs": outs}


def test_is_record() -> None:
    assert is_record("records/sft/a.json") and not is_record("models/records/a")


def test_contradictions() -> None:
    assert contradictions("sft@a", entry(), RECORD) == []
    assert contradictions("sft@a", entry(lr=2), RECORD) == ["params.yaml: sft.lr 2 (the run had 1)"]
    assert contradictions("sft@a", entry(data="9"), RECORD) == ["data (the run read another version)"]
    assert contradictions("sft@a", entry(models="9"), RECORD) == ["models (the run wrote another version)"]
    other = contradictions("sft@b", entry(record="records/sft/b.json"), RECORD)
    assert other == ["records/sft/b.json is the record of sft@a, not of sft@b"]
    many = {**RECORD, "inputs": {str(nth): "1" for nth in range(6)}}
    found = contradictions("sft@a", entry(), many)
    assert len(found) == 5 and found[-1] == "3 more"
    assert contradictions("sft@a", entry(lr=2, data="9"), {"stage": "sft@a"}) == []


def test_records_are_read_by_their_digest(tmp_path: Path) -> None:
    (tmp_path / "records/sft").mkdir(parents=True)
    content = json.dumps(RECORD)
    file = tmp_path / "records/sft/a.json"
    file.write_text(content)
    records, digest = RunRecords(tmp_path), hashlib.md5(content.encode()).hexdigest()
    known = entry(lr=2)
    known["outs"][1]["md5"] = digest
    assert records.of(known) == RECORD and records.is_verified(known)
    assert records.contradictions("sft@a", known) == ["params.yaml: sft.lr 2 (the run had 1)"]
    assert (
        records.of(entry()) is None and not records.is_verified(entry()) and records.contradictions("a", entry()) == []
    )
    assert records.is_verified({"outs": []}) and records.of({}) is None
    cached = tmp_path / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
    cached.parent.mkdir(parents=True)
    file.rename(cached)
    assert records.of(known) == RECORD
