"""The episodes that prime-rl writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.plugins.rollouts import prime_rl_traces as module
from posttrain.plugins.rollouts.prime_rl_traces import read
from posttrain.rollout import Score, TokenRow

NODES: list[dict[str, Any]] = [
    {"message": {"role": "user", "content": "1+1?"}, "token_ids": [1, 2], "mask": [False, False], "logprobs": []},
    {"message": {"role": "assistant", "content": "2"}, "parent": 0, "sampled": True, "token_ids": [3, 4],
     "mask": [True, True], "logprobs": [-0.5, -0.25], "advantages": [1.0, 0.0]},
]  # fmt: skip
TRACE: dict[str, Any] = {
    "id": "t", "task": {"data": {"prompt": "1+1?", "idx": 3}}, "agent": {"name": "solver"}, "nodes": NODES, "ok": True,
    "rewards": {"correct": {"score": 1, "weight": 0.5}}, "calls": [{"sampling": {"temperature": 0.7}}],
}  # fmt: skip
EPISODE: dict[str, Any] = {
    "id": "e", "traces": [TRACE], "task": {"data": {"prompt": "1+1?"}}, "env": {"name": "sums"}, "group": {"id": "g"},
    "run": {"work": {"policy": {"start": 4}}},
}  # fmt: skip


def write(folder: Path, name: str, *episodes: dict[str, Any]) -> Path:
    file = folder / name / "traces.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(episode)}\n" for episode in episodes))
    return file


def test_a_trace_is_a_rollout(tmp_path: Path) -> None:
    write(tmp_path, "step_4/train/all", EPISODE, {**EPISODE, "id": "f"})
    write(tmp_path, "step_4/train/effective", {**EPISODE, "id": "f"})
    write(tmp_path, "step_4/eval/all", {**EPISODE, "id": "x"})
    first, second = read(tmp_path)
    assert (first.group, first.round, first.completion, first.step) == (("g", "solver"), 4, "2", None)
    assert (first.scores, dict(first.weights)) == ({"correct": Score(1.0)}, {"correct": 0.5})
    assert (first.finish, first.version, first.advantage, first.length) == ("stop", "step 4", 0.5, 2)
    assert first.prompt == [("user", "1+1?")] and first.task == "sums" and first.sampling == {"temperature": 0.7}
    assert second.step == 4, "a step was trained on it"
    write(tmp_path, "step_5/train/all", {**EPISODE, "traces": [{**TRACE, "task": 1}]})
    with pytest.raises(DataError, match="it cannot be read"):
        list(read(tmp_path))


def test_rows_are_episodes(tmp_path: Path) -> None:
    assert list(module._rows(write(tmp_path, "a", EPISODE))) == [(1, EPISODE)]
    with pytest.raises(DataError, match="it is not an episode"):
        list(module._rows(write(tmp_path, "b", {"id": 3})))


def test_an_episode_that_failed_early_has_a_trace(tmp_path: Path) -> None:
    assert module._traces(EPISODE) == [TRACE]
    watched = {**TRACE, "agent": {"trainable": False}}
    empty = [{"task": EPISODE["task"], "agent": {}, "ok": False, "errors": []}]
    assert module._traces({**EPISODE, "traces": [watched]}) == empty
    write(tmp_path, "step_1/train/all", {**EPISODE, "traces": []}, EPISODE)
    failed = next(one for one in read(tmp_path) if one.finish == "error")
    assert failed.group == ("g", "solver") and failed.prompt == [("user", "1+1?")] and failed.completion == ""


def test_parts_of_a_trace() -> None:
    assert module._step(Path("rollouts/step_12/train/a")) == 12 and module._step(Path("a")) == 0
    branches = [{"n": 0}, {"n": 1, "parent": 0}, {"n": 2, "parent": 0}]
    assert [node["n"] for node in module._branch(branches)] == [0, 2] and module._branch([]) == []
    assert module._tokens(NODES) == (TokenRow([1, 2], [3, 4], [True, True]), [-0.5, -0.25])
    assert module._tokens(NODES[:1]) is None
    assert module._score(None) == Score(0.0, "error") and module._score({"score": 1}) == Score(1.0)
    assert module._version({"policy": {"start": 4}}) == "step 4" and module._version({}) == ""
    turn = {
        "content": [{"text": "a"}, {"text": "b"}],
        "reasoning_content": "r",
        "tool_calls": [{"name": "f", "arguments": "1"}],
    }
    assert module._content(turn) == "r\na\nb\nf(1)" and module._content({"content": None}) == ""


@pytest.mark.parametrize(
    ("trace", "calls", "finish"),
    [
        ({"ok": True}, [], "stop"),
        ({"ok": True, "stop_condition": "max_turns"}, [], "turns"),
        ({"ok": True, "stop_condition": "context_length"}, [], "length"),
        ({"ok": True}, [{"finish_reason": "length"}, {"error": "e"}], "length"),
        ({"ok": False}, [], "error"),
        ({"ok": False, "is_timeout": True}, [], "timeout"),
        ({"ok": False, "errors": [{"type": "ReadTimeout"}]}, [], "timeout"),
    ],
)
def test_how_a_trace_ended(trace: dict[str, Any], calls: list[dict[str, Any]], finish: str) -> None:
    assert module._finish(trace, calls) == finish
