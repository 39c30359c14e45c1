"""The task `guess`: its tables, its hints and its metrics."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from posttrain.pipeline.toy_tasks.turns.guess import TASKS, WASTED, GuessParams, metrics, reply
from posttrain.rollout import Prompt, Rollout
from posttrain.tasks.step import Step
from tests.library.models.tiny import rollout_of

SIZES = {"demonstrations": 4, "heldout_demonstrations": 1, "prompts": 4, "heldout_prompts": 1, "test_prompts": 1}
ASKED = {"role": "user", "content": "Guess my number from 10 to 20."}


def after(*guesses: str) -> Rollout:
    """An episode with the secret 15 and these guesses."""
    turns = [{"role": "assistant", "content": guess} for guess in guesses]
    return replace(rollout_of(guesses[-1]), prompt=Prompt("p", [ASKED], [], "15"), turns=turns)


def test_tables() -> None:
    generator = TASKS["guess"].generator
    assert generator is not None
    found = generator.tables(GuessParams(**SIZES, documents=20, heldout_documents=1, width=5))
    for row in found["prompts"].iter_rows(named=True):
        low, high = map(int, re.findall(r"\d+", row["prompt"][0]["content"]))
        assert high - low == 4 and low <= int(row["answer"]) <= high
    for row in found["chat"].iter_rows(named=True):
        secret = int(row["problem"].partition(":")[2])
        guesses = [int(turn["content"]) for turn in row["messages"] if turn["role"] == "assistant"]
        hints = [turn["content"] for turn in row["messages"][1:] if turn["role"] == "user"]
        assert guesses[-1] == secret and hints == ["higher" if guess < secret else "lower" for guess in guesses[:-1]]


@pytest.mark.parametrize(
    ("guesses", "hint", "reward"),
    [
        (["12"], "higher", 0.0), (["18"], "lower", 0.0), (["21"], "lower", WASTED), (["x"], "a number", WASTED),
        (["12", "11"], "higher", WASTED), (["18", "19"], "lower", WASTED), (["12", "18", "16"], "lower", 0.0),
    ],
)  # fmt: skip
def test_hints(guesses: list[str], hint: str, reward: float) -> None:
    info = {"guesses": 1, "wasted": int(reward < 0)}
    assert reply(after(*guesses)) == Step([{"role": "user", "content": hint}], reward, info=info)


def test_the_right_guess_ends_the_episode() -> None:
    found = reply(replace(after("12", "15"), info={"guesses": 1, "wasted": 1}))
    assert found == Step(reward=0.0, done=True, info={"guesses": 2, "wasted": 1, "found": True})
    with pytest.raises(ValueError, match="no range"):
        reply(replace(after("1"), prompt=Prompt("p", [{"role": "user", "content": "?"}], [], "1")))


def test_metrics() -> None:
    one, two = (
        replace(rollout_of(""), info=info) for info in ({"guesses": 3, "wasted": 1}, {"guesses": 1, "wasted": 0})
    )
    assert metrics([one, two], [1.0, 0.0]) == {"guesses": 2.0, "wasted": 0.25}
    assert metrics([rollout_of("")], [0.0]) == {"guesses": 0.0, "wasted": 0.0}
