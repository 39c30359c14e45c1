"""Pairs of own samples, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.algorithms.objective import Objective
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.errors import ParamsError
from posttrain.online.config import OnlineConfig
from posttrain.online.sampled.pairs import (
    AllAbove,
    BestAgainstWorst,
    RejectionSampled,
    SampledPairRun,
    _accepted,
    _joined,
    all_against_all,
    best_against_worst,
    pair_rule,
    paired,
    rejection_sampled,
)
from posttrain.online.selection import FilteredSource
from posttrain.rollout import TokenRow
from posttrain.settings.choices import Options
from posttrain.train.batch_sources import EpochSource, Example
from tests.library.online.sampled.test_best import GROUP, REWARD, samples


def test_best_against_worst_leaves_out_groups_that_agree() -> None:
    chosen, rejected = best_against_worst(torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([0, 0, 1, 1]))
    assert (chosen.tolist(), rejected.tolist()) == ([1], [0])
    chosen, rejected = best_against_worst(REWARD, GROUP, gap=1.0)
    assert (chosen.tolist(), rejected.tolist()) == ([3], [1])


def test_all_against_all_takes_what_the_reward_model_is_sure_of() -> None:
    chosen, rejected = all_against_all(torch.tensor([0.0, 2.0, 5.0]), torch.zeros(3), threshold=0.9)
    assert list(zip(chosen.tolist(), rejected.tolist(), strict=True)) == [(2, 0), (2, 1)]
    with pytest.raises(ValueError, match="pass in both orders"):
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


ROLLOUT = {"rounds": 1, "prompts": 2, "group_size": 4, "sampling": {"max_tokens": 4}, "minibatches": 1}


def run(algorithm: str, **given: Any) -> SampledPairRun:
    found = OnlineConfig.preset(algorithm, **{"rollout": ROLLOUT, "reward": {"format": 1.0}, **given})
    assert isinstance(found, SampledPairRun)
    return found


def test_a_run_on_pairs_of_samples() -> None:
    found = run("online_dpo")
    assert isinstance(found.objective(), PreferenceObjective) and found.compares_groups is True
    assert (found.mixture_share, run("ipo_md").mixture_share) == (0.0, 0.25)
    assert found.step_tokens(10) == 2 * 4 * 14 * 3
    own = EpochSource([Example([TokenRow([1], [2])])], 1, 1.0, 0)
    assert isinstance(found.source(own, None), FilteredSource)  # type: ignore[arg-type]
    for wrong, fault in (
        ({"rollout": {**ROLLOUT, "group_size": 1}}, "a pair is two samples of one prompt"),
        ({"mixture": 0.5, "reference": False}, "mixture samples with the reference, but reference is false"),
        ({"loss": "kto"}, "needs single answers, but this algorithm makes pairs"),
    ):
        with pytest.raises(ParamsError, match=fault):
            run("online_dpo", **wrong)


def test_each_rule_selects_its_pairs() -> None:
    batch = samples(0.0, 2.0, 5.0)
    best = pair_rule(BestAgainstWorst(), 0)(batch, 0)
    assert best.columns.rows["reward"].tolist() == [5.0, 0.0]
    above = pair_rule(AllAbove(type="all_above", certainty=0.9), 0)(batch, 0)
    assert above.columns.rows["reward"].tolist() == [5.0, 0.0, 5.0, 2.0]
    accepted = pair_rule(RejectionSampled(type="rejection_sampled", keep=2), 0)(batch, 0)
    assert len(accepted) == 2 and accepted.columns.rows["side"].tolist() == [1.0, -1.0]
    with pytest.raises(TypeError, match="no rule for other"):
        pair_rule(Options(type="other"), 0)(batch, 0)
    assert _joined([]).tolist() == [] and _joined([torch.tensor([1]), torch.tensor([2])]).tolist() == [1, 2]
    assert len(_accepted(torch.tensor([0.0, 1.0, 2.0]), 2, 0.5, torch.Generator().manual_seed(0))) == 2
