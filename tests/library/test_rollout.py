"""The data types from a prompt to a gradient."""

from __future__ import annotations

from dataclasses import replace

import torch

from posttrain.rollout import Kept, Score, TokenRow, stored_value, token_rows
from tests.library.models.tiny import rollout_of


def test_kept_tokens_of_a_part() -> None:
    kept = Kept(torch.tensor([1, 2, 3, 4]), torch.tensor([2, 0, 1, 1]))
    part = kept.part(slice(1, 3))
    assert (part.ids.tolist(), part.counts.tolist()) == ([3], [0, 1])


def test_token_rows() -> None:
    row = TokenRow([5, 6], [7, 8, 9, 10], [True, False, True, True])
    assert (len(row), list(row.trained), row.turn_ends) == (6, [0, 2, 3], [1, 3])
    assert list(TokenRow([5], [6, 7]).trained) == [0, 1] and list(TokenRow([], [6, 7]).trained) == [1]
    assert token_rows([[1], [2]], [[3], [4, 5]]) == [TokenRow([1], [3]), TokenRow([2], [4, 5])]


def test_stored_value() -> None:
    assert (
        stored_value({"status": "ok", "value": 0.5}) == 0.5 and stored_value({"status": "error", "value": 0.0}) is None
    )
    assert Score(0.0, reason="half a \ud800 character").reason == "half a \\ud800 character"


def test_rollouts() -> None:
    one = rollout_of("b")
    assert one.failed is None and one.transcript == "b" and not one.truncated
    assert rollout_of("b", truncated=True).truncated
    assert replace(one, finish="timeout", reason="late").failed == Score(0.0, "timeout", "late")
    turns = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    assert replace(one, turns=turns).transcript == "assistant: a\n\nuser: b"
