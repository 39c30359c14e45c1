"""Logs as Inspect's own classes, with a stand-in for Inspect, which is not installed here."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.plugins.inspect import inspect_child as module
from posttrain.plugins.inspect.inspect_child import answer
from tests.plugins.inspect import stand_in

TURNS = [{"role": "user", "content": "1+1?"}]


def sample(epoch: int, **scores: float) -> dict[str, Any]:
    return {
        "id": "p", "epoch": epoch, "row": f"r{epoch}", "input": TURNS, "target": "2", "completion": "2",
        "truncated": epoch == 2, "scores": scores, "metadata": {"a": 1},
    }  # fmt: skip


LOG: dict[str, Any] = {
    "file": "a.eval", "created": "2024-05-01", "task": "sums", "id": "i", "model": "m", "data": "mine/prompts",
    "packages": {"posttrain": "1"}, "metadata": {"b": 2}, "figures": {"score": 0.5},
    "samples": [sample(1, correct=1.0), sample(2, correct=0.0, brief=0.5)],
}  # fmt: skip


def test_each_log_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Any, str, str]] = []

    def write_eval_log(log: Any, file: str, format: str) -> None:  # noqa: A002  Inspect's own name
        written.append((log, file, format))

    stand_in.install(monkeypatch, write_eval_log=write_eval_log)
    assert answer({"logs": [LOG]}) == {"version": "inspect_ai 1"}
    ((log, file, kind),) = written
    assert (file, kind, log.status, log.eval.task, log.eval.model) == ("a.eval", "eval", "success", "sums", "m")
    assert (log.eval.config.epochs, log.eval.dataset.sample_ids, log.results.total_samples) == (2, ["p"], 2)
    assert [one.uuid for one in log.samples] == ["r1", "r2"] and log.stats.started_at == "2024-05-01"


def test_scores_are_means_over_scored_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.install(monkeypatch)
    found = {one.name: one for one in module._scores(LOG)}
    assert {name: one.scored_samples for name, one in found.items()} == {"correct": 2, "brief": 1, "figures": 2}
    assert found["correct"].metrics["mean"].value == 0.5 and found["figures"].metrics["score"].value == 0.5
    assert [one.name for one in module._scores({**LOG, "figures": {}})] == ["correct", "brief"]


def test_a_sample_has_its_turns_and_output(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.install(monkeypatch)
    one, cut = (module._sample(found, "m") for found in LOG["samples"])
    assert (one.id, one.epoch, one.input, one.target, one.metadata) == ("p", 1, TURNS, "2", {"a": 1})
    assert one.messages[:-1] == TURNS and one.messages[-1].content == "2" and one.scores["correct"].value == 1.0
    assert (one.output.stop_reason, cut.output.stop_reason) == ("stop", "max_tokens")
    assert module._log(LOG).eval.packages == {"posttrain": "1"}
