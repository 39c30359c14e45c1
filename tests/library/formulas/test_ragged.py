"""Rows of unequal length as flat columns, and the weights of their tokens."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from posttrain.formulas import ragged
from posttrain.formulas.ragged import Ragged, fixed_length, kept_rows, per_item, sequence_mean, sequence_sum, token_mean
from tests.library.by_hand import t

LENGTHS = torch.tensor([2, 0, 3])
VALUES = t(1, 2, 3, 4, 5)


def step() -> Ragged:
    return Ragged(LENGTHS, {"reward": t(10, 20, 30)}, {"logp": VALUES}, torch.tensor([0, 1, 1]))


def test_sums_means_and_spreading() -> None:
    assert_close(ragged.sum_rows(VALUES, LENGTHS), t(3, 0, 12))
    assert_close(ragged.mean_rows(VALUES, LENGTHS), t(1.5, 0, 4))
    assert_close(ragged.repeat_to_tokens(t(7, 8, 9), LENGTHS), t(7, 7, 9, 9, 9))
    assert_close(ragged.sum_rows(t(), torch.tensor([0, 0])), t(0, 0))


def test_padding_comes_and_goes() -> None:
    padded = ragged.to_padded(VALUES, LENGTHS, fill=-1)
    assert padded.tolist() == [[1, 2, -1], [-1, -1, -1], [3, 4, 5]]
    flat, lengths = ragged.from_padded(padded, padded >= 0)
    assert_close(flat, VALUES)
    assert_close(lengths, LENGTHS)


def test_select_takes_every_column_along() -> None:
    taken = step().select(torch.tensor([2, 0]))
    assert_close(taken.tokens["logp"], t(3, 4, 5, 1, 2))
    assert_close(taken.rows["reward"], t(30, 10))
    assert taken.items.tolist() == [1, 0]
    assert len(step().select(torch.tensor([False, True, False]))) == 1


def test_overlaid_puts_a_parts_new_columns_back_on_its_rows() -> None:
    chosen = torch.tensor([False, True, True])
    part = step().select(chosen).with_tokens(weight=t(7, 8, 9)).with_rows(seen=t(1, 2))
    whole = step().overlaid(part, chosen)
    assert_close(whole.tokens["weight"], t(0, 0, 7, 8, 9))
    assert_close(whole.rows["seen"], t(0, 1, 2))
    assert_close(whole.tokens["logp"], VALUES)


def test_a_column_that_does_not_fit_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="token column 'logp'"):
        Ragged(LENGTHS, {}, {"logp": t(1, 2)})
    with pytest.raises(ValueError, match="row column 'reward'"):
        Ragged(LENGTHS, {"reward": t(1, 2)}, {})
    with pytest.raises(ValueError, match="differ in shape"):
        ragged.from_padded(torch.zeros(2, 3), torch.ones(2, 4))


ROWS = torch.tensor([1, 3, 2])
KEPT = t(1, 0, 1)


def test_weights_by_hand() -> None:
    third, half = 1 / 3, 1 / 2
    assert_close(sequence_sum(ROWS, KEPT), t(half, 0, 0, 0, half, half))
    assert_close(sequence_mean(ROWS, KEPT), t(half, 0, 0, 0, 0.25, 0.25))
    assert_close(token_mean(ROWS, KEPT), t(third, 0, 0, 0, third, third))
    assert_close(fixed_length(ROWS, KEPT, 10), t(0.05, 0, 0, 0, 0.05, 0.05))
    assert_close(per_item(torch.tensor([4, 4, 9])), t(half, half, half))


def test_a_masked_and_an_empty_row_leave_the_denominator() -> None:
    kept = kept_rows(torch.tensor([2, 0, 3]), torch.tensor([False, False, True]), t(1.0))
    assert kept.tolist() == [1, 0, 0]
    assert kept_rows(torch.tensor([2]), None, torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.float32


def test_parts_and_methods_of_a_step() -> None:
    assert ragged.last_tokens(torch.tensor([2, 1, 3])).tolist() == [1, 2, 5]
    part = step().tokens_in(slice(1, 4))
    assert part.lengths_B.tolist() == [3] and part.tokens["logp"].tolist() == [2, 3, 4] and not part.rows
    assert_close(step().sum_rows(VALUES), t(3, 0, 12))
    assert_close(step().mean_rows(VALUES), t(1.5, 0, 4))


def test_random_numbers_are_the_same_on_every_machine() -> None:
    """SplitMix64 (Steele 2014) gives 0xE220A8397B1DCDAF first."""
    assert ragged._mix(torch.tensor([ragged._GOLDEN])).tolist() == [0xE220A8397B1DCDAF - 2**64]
    assert ragged._shift(torch.tensor([-1, 8]), 2).tolist() == [2**62 - 1, 2]
    keys = ragged.row_keys(3, ["a", "b"])
    assert keys.tolist() == [-1302338193992761053, -4469421954797768507]
    found = ragged.uniform(keys, 2)
    assert_close(
        found, torch.stack([t(0.6145717512845476, 0.2633964804054738), t(0.5894227719776944, 0.5616910876884781)])
    )
    assert_close(ragged.uniform(keys, 1, torch.tensor([1, 0])), torch.stack([found[0, 1:], found[1, :1]]))
    assert_close(ragged.uniform_at(keys, torch.tensor([1, 1])), found[:, 1])
