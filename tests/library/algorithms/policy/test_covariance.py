"""Clip-Cov and KL-Cov by hand: covariances, ranks and which tokens they treat."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.policy.covariance import (
    ClipCovOptions,
    KlCovOptions,
    covariance,
    dropped,
    first_ranked,
    kl_cov,
    penalised,
    token_count,
)
from posttrain.formulas.ragged import Ragged
from tests.library.by_hand import t, tokens

# Advantages 2, 0, -2 (mean 0) and log-probs -1, -2, -3 (mean -2): covariances 2, 0, 2. The last token does not count.
STEP = Ragged(
    torch.tensor([2, 2]),
    {"sample_key": torch.tensor([11, 12])},
    {
        "weight": t(1, 1, 1, 0),
        "advantage": t(2, 0, -2, 9),
        "step_start_logp": t(-1, -2, -3, -9),
        "sampling_logp": t(-1, -2, -3, -9),
    },
)


def test_covariance() -> None:
    assert covariance(STEP).tolist() == [2, 0, 2, -torch.inf]


def test_first_ranked_sorts_by_the_last_column_first() -> None:
    candidate = torch.tensor([True, True, False, True])
    found = first_ranked(candidate, t(0, 1, 2, 3), t(5, 5, 0, 4), count=2)
    assert found.tolist() == [True, False, False, True]


def test_token_count() -> None:
    assert (token_count(STEP, 0.7), token_count(STEP, 0.1)) == (2, 1)


def test_dropped_takes_tokens_within_the_band() -> None:
    options = ClipCovOptions(type="clip_cov", share=0.9, cov_low=1.0, cov_high=3.0)
    assert dropped(STEP, options)["dropped"].tolist() == [True, False, True, False]
    narrow = ClipCovOptions(type="clip_cov", share=0.9, cov_low=-1.0, cov_high=1.0)
    assert dropped(STEP, narrow)["dropped"].tolist() == [False, True, False, False]


def test_options_without_a_band_are_refused() -> None:
    with pytest.raises(ValueError, match="cov_high must be above cov_low"):
        ClipCovOptions(type="clip_cov", cov_low=2.0, cov_high=2.0)


def test_penalised_takes_the_largest_and_breaks_ties_by_the_sample() -> None:
    one = penalised(STEP, KlCovOptions(type="kl_cov", share=0.4))["penalised"]
    assert one.tolist() == [True, False, False, False]
    two = penalised(STEP, KlCovOptions(type="kl_cov", share=0.7))["penalised"]
    assert two.tolist() == [True, False, True, False]


def test_kl_cov() -> None:
    ratio = t(2, 0.5)
    given = tokens(ratio, t(1, 3), penalised=torch.tensor([True, False]))
    assert_close(kl_cov(given, KlCovOptions(type="kl_cov", beta=0.5)), t(2 - 0.5 * float(t(2).log()), 1.5))
