"""The best of own samples, by hand."""

from __future__ import annotations

import pytest
import torch

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.online.config import OnlineConfig
from posttrain.online.sampled.best import Reaching, Rising, above, best_of_group, best_rule, rising_threshold
from posttrain.online.selection import FilteredSource
from posttrain.rollout import TokenRow, token_rows
from posttrain.settings.choices import Options
from posttrain.train.batch_sources import EpochSource, Example
from posttrain.train.step import Batch, make_batch

REWARD = torch.tensor([1.0, 3.0, 2.0, 5.0, 5.0, 4.0])
GROUP = torch.tensor([0, 1, 0, 1, 2, 2])


def samples(*outcomes: float) -> Batch:
    outcome = torch.tensor(outcomes)
    columns = {"reward": outcome, "outcome": outcome, "group": torch.zeros(len(outcomes))}
    return make_batch(token_rows([[1]] * len(outcomes), [[2, 3]] * len(outcomes)), columns)


def test_thresholds_and_the_best_of_a_group() -> None:
    assert above(REWARD, 4.0).tolist() == [3, 4, 5]
    assert best_of_group(REWARD, GROUP).tolist() == [2, 3, 4]
    quantiles = (0.5, 0.75)
    assert rising_threshold(torch.arange(5.0), 0, quantiles) == 2
    assert rising_threshold(torch.arange(5.0), 9, quantiles) == 3
    with pytest.raises(ValueError, match="must not decrease"):
        rising_threshold(REWARD, 0, (0.9, 0.5))


def test_where_no_sample_reaches_the_threshold_nothing_is_learned() -> None:
    rule, objective = best_rule(Reaching(type="reaching"), 1), LikelihoodObjective(LikelihoodConfig())
    good = rule(samples(0.0, 1.0, 1.0), 0)
    assert len(good) == 2 and objective.prepare(good.columns, {}).counts
    none = objective.prepare(rule(samples(0.0, 0.5, 0.0), 0).columns, {})
    assert not none.counts and len(none.step) == 1 and not none.step.tokens["weight"].any()


def test_the_rule_of_a_step() -> None:
    batch = samples(0.0, 1.0, 0.5, 0.25)
    assert best_rule(Options(type="best"), 1)(batch, 0).columns.rows["reward"].tolist() == [1.0]
    rising = best_rule(Rising(type="rising", quantiles=[0.0, 0.5], rounds=2), 3)
    assert len(rising(batch, 5)) == 4 and rising(batch, 6).columns.rows["reward"].tolist() == [1.0, 0.5]
    with pytest.raises(ValueError, match="must not decrease"):
        Rising(type="rising", quantiles=[0.9, 0.5])


def test_a_run_on_the_best_samples() -> None:
    found = OnlineConfig.preset("raft", reward={"format": 1.0})
    assert isinstance(found.objective(), LikelihoodObjective)
    source = EpochSource([Example([TokenRow([1], [2])])], 1, 1.0, 0)
    assert isinstance(found.source(source, None), FilteredSource)  # type: ignore[arg-type]
