"""Samples of Inspect's logs as plain data, with a stand-in for Inspect, which is not installed here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.plugins.inspect import inspect_samples_child as module
from posttrain.plugins.inspect.inspect_samples_child import answer
from tests.plugins.inspect import stand_in


def sample(**more: Any) -> SimpleNamespace:
    output = SimpleNamespace(completion="2", choices=[1], stop_reason="stop", usage=SimpleNamespace(output_tokens=3))
    given = {"id": "p", "epoch": 1, "target": "2", "input": "1+1?", "scores": {}, "error": None, "limit": None}
    return SimpleNamespace(**{**given, "output": output, **more})


def value(found: Any) -> SimpleNamespace:
    return SimpleNamespace(value=found)


def test_logs_are_read_in_the_order_of_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_eval_log(file: str) -> SimpleNamespace:
        if file == "bad":
            raise ValueError("no log")
        return SimpleNamespace(
            eval=SimpleNamespace(task="sums", model="m"), samples=[sample()] if file == "a" else None
        )

    stand_in.install(monkeypatch, read_eval_log=read_eval_log)
    found = answer({"files": ["b", "a"]})["logs"]
    assert [(log["file"], log["task"], log["model"], len(log["samples"])) for log in found] == [
        ("a", "sums", "m", 1), ("b", "sums", "m", 0),
    ]  # fmt: skip
    assert answer({"files": ["a", "bad"]}) == {"file": "bad", "fault": "ValueError: no log"}


def test_a_sample_as_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.install(monkeypatch)
    scores = {"match": value("C"), "parts": value({"a": 0.5, "b": None}), "none": value("N"), "many": value([1, 0])}
    turns = [SimpleNamespace(role="user", text="1+1?")]
    assert module._sample(sample(scores=scores, input=turns)) == {
        "id": "p", "epoch": 1, "target": "2", "prompt": [{"role": "user", "content": "1+1?"}], "completion": "2",
        "finish": "stop", "length": 3, "info": {},
        "scores": {
            "match": (1.0, "ok"), "parts.a": (0.5, "ok"), "parts.b": (0.0, "error"), "none": (0.0, "unparseable"),
            "many": (0.5, "ok"),
        },
    }  # fmt: skip
    failed = module._sample(sample(error=SimpleNamespace(message="no network")))
    assert (failed["finish"], failed["info"], failed["prompt"]) == ("error", {"error": "no network"}, "1+1?")


def test_scores_and_turns() -> None:
    assert module._scored("C", stand_in.to_float) == (1.0, "ok")
    assert module._scored(["C", "I"], stand_in.to_float) == (0.5, "ok")
    assert module._scored("N", stand_in.to_float) == (0.0, "unparseable")
    assert [module._unknown(one) for one in (None, [], float("nan"), 0.0, "N")] == [True, True, True, False, False]
    assert module._turn(SimpleNamespace(role="user", text="a")) == {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("more", "finish"),
    [
        ({}, "stop"),
        ({"error": "e"}, "error"),
        ({"limit": SimpleNamespace(type="time")}, "timeout"),
        ({"limit": SimpleNamespace(type="token")}, "length"),
        ({"output": SimpleNamespace(choices=[1], stop_reason="max_tokens")}, "length"),
        ({"output": SimpleNamespace(choices=[], stop_reason="max_tokens")}, "stop"),
    ],
)
def test_how_a_sample_ended(more: dict[str, Any], finish: str) -> None:
    assert module._finish(sample(**more)) == finish
