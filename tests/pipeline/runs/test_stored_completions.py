"""The folder of completions: everything that a reward may read comes back, and damage is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.errors import DataError, TableError
from posttrain.evaluate.in_context import BY_CONTEXT
from posttrain.evaluate.sampled import SampledCompletions
from posttrain.pipeline.runs.stored_completions import (
    MEASURED,
    TABLE,
    read_completions,
    write_completions,
    write_no_completions,
)
from posttrain.pipeline.tables.store import read_table
from posttrain.rollout import Prompt, Rollout, Score, TokenRow

PROMPTS = [
    Prompt(f"p{nth}", [{"role": "user", "content": f"{nth} + 1"}], [7, nth], str(nth + 1), {"level": nth}, "", f"{nth}")
    for nth in range(2)
]
TURNS = (
    {"role": "assistant", "content": "a\n"},
    {"role": "user", "content": ""},
    {"role": "assistant", "content": "ü"},
)


def rollout(prompt: Prompt, sample: int, finish: str = "stop") -> Rollout:
    row = TokenRow(prompt.ids, [3, 4, 5], [True, False, True])
    return Rollout(
        prompt, sample, row, [-0.5, -0.25], "ü", finish, TURNS, "sft/main",  # type: ignore[arg-type]
        {BY_CONTEXT: Score(1.5)}, (0.5, 1.0), {"calls": [1, {"a": None}]}, "why" if finish == "error" else "",
    )  # fmt: skip


def given() -> SampledCompletions:
    rollouts = [rollout(prompt, sample) for prompt in PROMPTS for sample in range(2)]
    rollouts[3] = rollout(PROMPTS[1], 1, "error")
    greedy = [replace(rollout(prompt, 0), scores={}, row=TokenRow(prompt.ids, [3]), logps=[-1.0]) for prompt in PROMPTS]
    return SampledCompletions(rollouts, greedy, {"kl_k1": 0.1 + 0.2, "kl_k3": 1e-9})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_completions(given(), tmp_path / "c")
    asked = [replace(prompt, ids=()) for prompt in PROMPTS]
    found = read_completions(tmp_path / "c", asked, "sft/main")
    assert found is not None and found.metrics == given().metrics
    for mine, theirs in zip((*found.rollouts, *found.greedy), (*given().rollouts, *given().greedy), strict=True):
        assert (mine.row.prompt, mine.row.rest, mine.row.mask) == (theirs.row.prompt, theirs.row.rest, theirs.row.mask)
        plain = {"row": None, "prompt": None, "turns": None, "turn_rewards": None}
        assert {**vars(mine), **plain} == {**vars(theirs), **plain}
        assert list(mine.turns) == list(theirs.turns) and list(mine.turn_rewards) == list(theirs.turn_rewards)
        assert mine.prompt == theirs.prompt


def test_equal_completions_have_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_completions(given(), tmp_path / name)
    assert all(
        (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in (TABLE, MEASURED)
    )


def test_a_folder_without_completions(tmp_path: Path) -> None:
    write_no_completions(tmp_path / "c")
    assert read_completions(tmp_path / "c", PROMPTS, "sft/main") is None
    assert json.loads((tmp_path / "c" / MEASURED).read_text()) == {}


def test_other_prompts_and_damage_are_named(tmp_path: Path) -> None:
    write_completions(given(), tmp_path / "c")
    with pytest.raises(DataError, match="its completions answer other prompts"):
        read_completions(tmp_path / "c", PROMPTS[:1], "sft/main")
    (tmp_path / "c" / MEASURED).write_text('{"kl_k1": NaN}')
    with pytest.raises(DataError, match="the file has no readable metrics"):
        read_completions(tmp_path / "c", PROMPTS, "sft/main")
    (tmp_path / "c" / MEASURED).write_text("{}")
    (tmp_path / "c" / TABLE).write_bytes(b"PAR1")
    with pytest.raises(TableError, match=TABLE):
        read_completions(tmp_path / "c", PROMPTS, "sft/main")


def test_a_row_of_a_prompt_without_a_greedy_completion_is_named(tmp_path: Path) -> None:
    found = given()
    write_completions(replace(found, greedy=found.greedy[:1]), tmp_path / "c")
    assert read_table(tmp_path / "c" / TABLE, "completions").height == 5
    with pytest.raises(DataError, match="belongs to a prompt without a greedy completion"):
        read_completions(tmp_path / "c", PROMPTS[:1], "sft/main")
