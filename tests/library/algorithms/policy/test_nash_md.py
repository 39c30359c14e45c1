"""Nash-MD's win rates by hand."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.testing import assert_close

from posttrain.algorithms.policy.nash_md import win_rate
from tests.library.by_hand import QUARTER, advantage_of, rewards, t

GROUP, OPPONENT = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 1, 0])
REWARD = t(QUARTER, 0, QUARTER, 5)


def test_win_rate() -> None:
    # wins 3 / 4 against the first opponent and 1 / 2 against the second, less 1 / 2; the last row met none
    assert_close(win_rate(REWARD, OPPONENT, GROUP), t(0.125, 0, 0, 0))


def test_the_entry_subtracts_the_kl_penalty() -> None:
    given = rewards(2 * REWARD, rows={"group": GROUP, "opponent": OPPONENT})
    found = advantage_of("win_rate", replace(given, kl_penalty_B=t(0.5, 0, 0, 0)), scale=2.0)
    assert_close(found, t(0.125 - 0.5, 0, 0, 0))
