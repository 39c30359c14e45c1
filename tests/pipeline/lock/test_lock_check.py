"""What DVC recorded of a run is compared with what the run has used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.lock.digests import read_lock
from posttrain.pipeline.lock.lock_check import (
    NOTES,
    _before_accept,
    check_and_sync,
    forget_mismatched,
    note_finished,
    undo_interrupted_accept,
)
from tests.pipeline.lock.project import RECORD, cache, md5, put, put_lock


def leave_note(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DVC_STAGE", "mine@main")
    note_finished(RECORD)
    return NOTES / "mine@main.json"


def test_a_run_as_recorded_is_kept(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = leave_note(monkeypatch)
    assert json.loads(note.read_text()) == {
        "stage": "mine@main", "path": RECORD.as_posix(), "record": md5(RECORD.read_bytes()),
    }  # fmt: skip
    assert forget_mismatched(made, "raw") == [] and note.is_file(), "it is a note of another stage"
    assert forget_mismatched(made) == [] and not note.exists()
    assert RECORD.is_file()


def test_a_run_with_other_inputs_is_forgotten(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = read_lock(made)
    stages["mine@main"]["deps"][1]["md5"] = md5("other")
    put_lock(made, stages)
    leave_note(monkeypatch)
    line = "mine@main did not run as DVC recorded it: data/raw.txt (the run read another version): it has to run again"
    kept = cache(made, md5(RECORD.read_bytes()))
    assert forget_mismatched(made) == [line]
    assert not RECORD.exists() and not kept.exists()
    assert forget_mismatched(made) == []


def test_a_run_whose_results_are_gone_is_not_judged_until_they_are_back(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache was removed, and DVC has removed the outputs to run the stage again: that run must not be refused."""
    stages = read_lock(made)
    stages["mine@main"]["deps"][1]["md5"] = md5("other")
    put_lock(made, stages)
    note, text = leave_note(monkeypatch), RECORD.read_bytes()
    kept = cache(made, md5(text))
    RECORD.unlink(), kept.unlink()
    assert forget_mismatched(made) == [] and note.is_file()
    RECORD.write_bytes(text)  # e.g. pulled
    assert len(forget_mismatched(made)) == 1 and not RECORD.exists()


def test_the_command_fails_where_a_run_did_not_run_so(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_and_sync(made)
    stages = read_lock(made)
    stages["mine@main"]["deps"][1]["md5"] = md5("other")
    put_lock(made, stages)
    leave_note(monkeypatch)
    with pytest.raises(PipelineError, match="mine@main did not run as DVC recorded it"):
        check_and_sync(made)


def test_an_interrupted_accept_is_undone(made: Path) -> None:
    before = RECORD.read_text()
    assert undo_interrupted_accept(made) == []
    record = json.loads(before)
    changed = {**record, "accepted": [{"reason": "r"}], "inputs": {**record["inputs"], "code/mine/main.json": "2"}}
    put(RECORD, json.dumps(changed))
    assert undo_interrupted_accept(made) == ["`accept` of mine@main was interrupted: undone, run it again"]
    assert RECORD.read_text() == before
    put(RECORD, json.dumps({**record, "seed": 1}))
    assert undo_interrupted_accept(made) == [], "accept has not written this"
    cache(made, md5(before)).write_text("edited too")
    assert undo_interrupted_accept(made) == [
        f"{RECORD} of mine@main was edited, and DVC's copy with it: `posttrain repair verify`"
    ]


def test_a_record_without_what_accept_adds() -> None:
    record = {"seed": 1, "accepted": [1], "inputs": {"code/a.json": "1", "data": "2"}}
    assert _before_accept(record) == {"seed": 1, "inputs": {"data": "2"}}
