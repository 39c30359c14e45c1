"""A result is kept although its code changed, and the record says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.lock.accept import _check, _chosen, accept, changes
from posttrain.pipeline.lock.reasons import Reasons
from tests.pipeline.lock.project import CODE, RECORD, put

NEW = {"files": {"posttrain/a.py": "1"}, "packages": CODE["packages"]}


def test_a_change_of_the_code_is_accepted(made: Path) -> None:
    put(made / "code/mine/main.json", json.dumps(NEW))
    assert accept(["mine"], "a comment") == "mine@main: accepted: posttrain/a.py is used now"
    record = json.loads(RECORD.read_text())
    changed = {"files": {"posttrain/a.py": [None, "1"]}, "packages": {}}
    assert record["accepted"] == [{"reason": "a comment", "changed": changed}]
    assert Reasons().records.contradictions("mine@main", Reasons().lock["mine@main"]) == []


def test_what_cannot_be_accepted(made: Path) -> None:
    for targets, reason, words in (
        (["mine"], " ", "the reason is empty"),
        (["mine@main"], "r", "it is up to date"),
        (["miner"], "r", "no stage 'miner'"),
    ):
        with pytest.raises(PipelineError, match=words):
            accept(targets, reason)
    put(made / "data/raw.txt", "other")
    with pytest.raises(PipelineError, match=r"something other than its code changed: data/raw\.txt modified"):
        accept(["mine@main"], "r")


def test_stages_are_chosen_by_name_or_group() -> None:
    known = {"mine@b", "mine@a", "last"}
    assert _chosen(["mine"], known) == ["mine@a", "mine@b"]
    assert _chosen(["last", "mine@b", "last"], known) == ["last", "mine@b"]


def test_a_result_needs_its_record(made: Path) -> None:
    reasons = [{"changed deps": {"code/mine/main.json": "modified"}}]
    _check("mine@main", reasons)
    RECORD.write_text("{}")
    with pytest.raises(PipelineError, match="does not list the code that made the results"):
        _check("mine@main", reasons)
    RECORD.unlink()
    with pytest.raises(PipelineError, match="it has not run in this folder"):
        _check("mine@main", reasons)


def test_changes_between_two_versions() -> None:
    old, new = {"files": {"a": "1", "b": "1"}, "settings": {"seed": "0"}}, {"files": {"a": "2", "b": "1", "c": "1"}}
    assert changes(old, new) == {"files": {"a": ["1", "2"], "c": [None, "1"]}, "settings": {"seed": ["0", None]}}
    assert changes(old, old) == {"files": {}, "settings": {}}
