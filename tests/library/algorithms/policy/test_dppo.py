"""DPPO by hand: its divergences and the tokens that it masks."""

from __future__ import annotations

import math

import pytest
from torch.testing import assert_close

from posttrain.algorithms.policy.dppo import SURROGATES, binary_kl, total_variation
from tests.library.by_hand import t, tokens


def test_divergences() -> None:
    new, old = t(0.75).log(), t(0.5).log()
    assert_close(total_variation(new, old), t(0.25))
    assert_close(binary_kl(new, old), t(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)))


@pytest.mark.parametrize(("name", "limit"), [("dppo_tv", 0.2), ("dppo_kl", 0.1)])
def test_a_token_that_moves_on_beyond_the_limit_is_masked(name: str, limit: float) -> None:
    entry = SURROGATES[name]
    options = entry.options(type=name, limit_pos=limit, limit_neg=limit)
    logp = t(0.75, 0.75, 0.5, 0.25, 0.55).log()  # all were 0.5: up, up, still, down, up a little
    given = tokens(t(1.5, 1.5, 1, 0.5, 1.1), t(1, -1, 1, -1, 1), logp=logp)
    assert entry.clipped is not None
    assert entry.clipped(given, options).tolist() == [True, False, False, True, False]
    assert_close(entry.term(given, options), t(0, -1.5, 1, 0, 1.1) * logp)
