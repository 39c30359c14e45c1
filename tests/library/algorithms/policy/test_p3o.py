"""P3O by hand: comparisons within a prompt, and what the clip takes from them."""

from __future__ import annotations

import math

import torch
from torch.testing import assert_close

from posttrain.algorithms.policy.p3o import clipped, compared, p3o
from posttrain.algorithms.policy.ppo import ClipOptions
from posttrain.formulas.ragged import Ragged
from tests.library.by_hand import t, tokens

OPTIONS = ClipOptions(type="p3o", low=0.2, high=0.2)


def test_compared_weighs_each_difference_by_the_other_samples_ratio() -> None:
    two = math.log(2)
    step = Ragged(
        torch.tensor([2, 1]),
        {"group": torch.tensor([4, 4])},
        {"step_start_logp": t(two, 0, 0), "sampling_logp": t(0, 0, 0), "advantage": t(3, 3, 1)},
    )
    # ratios 2 and 1; differences 2 * 1 for the first sample, -2 * 2 for the second; each is a mean over 2 samples
    found = compared(step, OPTIONS)
    assert_close(found["better"], t(1, 1, 0))
    assert_close(found["worse"], t(0, 0, -2))


def test_p3o_clips_each_side_and_shares_it_out_to_the_tokens() -> None:
    given = tokens(t(1.5, 1.5, 0.5), t(0, 0, 0), 2, 1, better=t(4, 4, 2), worse=t(-2, -2, -6))
    assert_close(p3o(given, OPTIONS), t((1.2 * 4 - 1.5 * 2) / 2, (1.2 * 4 - 1.5 * 2) / 2, 0.5 * 2 - 0.8 * 6))


def test_clipped_is_the_share_of_the_comparisons() -> None:
    given = tokens(t(1.5, 0.5, 1), t(0, 0, 0), 1, 1, 1, better=t(3, 3, 3), worse=t(-1, -1, -1))
    assert_close(clipped(given, OPTIONS), t(0.75, 0.25, 0))
