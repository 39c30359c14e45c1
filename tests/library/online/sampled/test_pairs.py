"""Pairs of own samples, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.algorithms.objective import Objective
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.online.sampled.pairs import _accepted, all_against_all, best_against_worst, paired, rejection_sampled
from tests.library.online.sampled.test_best import GROUP, REWARD, samples


def test_best_against_worst_leaves_out_groups_that_agree() -> None:
    chosen, rejected = best_against_worst(torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([0, 0, 1, 1]))
    assert (chosen.tolist(), rejected.tolist()) == ([1], [0])
    chosen, rejected = best_against_worst(REWARD, GROUP, gap=1.0)
    assert (chosen.tolist(), rejected.tolist()) == ([3], [1])


def test_all_against_all_takes_what_the_reward_model_is_sure_of() -> None:
    chosen, rejected = all_against_all(torch.tensor([0.0, 2.0, 5.0]), torch.zeros(3), threshold=0.9)
    assert list(zip(chosen.tolist(), rejected.tolist(), strict=True)) == [(2, 0), (2, 1)]
    with pytest.raises(ValueError, match="both ways round"):
        all_against_all(REWARD, GROUP, threshold=0.4)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 10_000), keep=st.integers(2, 6))
def test_rejection_sampled_pairs_are_siblings_and_the_better_one_is_chosen(seed: int, keep: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    reward, group = torch.randn(12, generator=draw), torch.arange(12) % 2
    chosen, rejected = rejection_sampled(reward, group, keep, 0.5, draw)
    assert bool((reward[chosen] > reward[rejected]).all())
    assert bool((group[chosen] == group[rejected]).all())
    assert len({*chosen.tolist(), *rejected.tolist()}) == 2 * len(chosen) == 2 * 2 * (keep // 2)


@pytest.mark.slow
def test_rejection_sampling_follows_the_tilted_distribution() -> None:
    """Of two answers, the worse one is accepted before the better one with probability e^(-1/beta) in its turn."""
    draw = torch.Generator().manual_seed(0)
    reward = torch.tensor([0.0, 1.0])
    first = [int(_accepted(reward, 1, 1.0, draw)[0]) for _ in range(4000)]
    # One pass accepts the first answer with p = e^-1, else the second, whose acceptance is certain.
    assert first.count(0) / 4000 == pytest.approx(math.exp(-1), abs=0.03)


@pytest.mark.parametrize(("outcomes", "counts"), [((0.0, 1.0), True), ((1.0, 1.0), False)])
def test_a_step_without_a_pair_counts_nothing(outcomes: tuple[float, ...], counts: bool) -> None:
    batch = samples(*outcomes)
    pairs = paired(batch, *best_against_worst(batch.columns.rows["reward"], batch.columns.rows["group"]))
    objective: Objective = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings())
    columns = pairs.columns.with_tokens(ref_logp=torch.zeros(2 * len(pairs)))
    assert objective.prepare(columns, {}).counts is counts
