"""Which policy settings are refused, and for which runs."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.algorithms.advantages import ADVANTAGES
from posttrain.algorithms.policy_config import (
    POLICY_ROWS,
    PolicyConfig,
    foreign_refusal,
    group_refusal,
    penalty_refusal,
    refusal,
    replay_refusal,
    reuse_refusal,
    truncation_refusal,
)
from posttrain.algorithms.surrogate import SURROGATES

REWARD_KL = {"type": "reward_sequence", "beta": 0.1}
TOKEN_KL = {"type": "reward_token", "beta": 0.1}
EXACT = {"type": "exact", "beta": 1.0}


def settings(**given: Any) -> PolicyConfig:
    return PolicyConfig.model_validate(given)


def test_every_row_is_accepted() -> None:
    for row in POLICY_ROWS.values():
        assert refusal(row.settings()) is None


def test_entries() -> None:
    knobs = settings(advantage="group_centred", surrogate="cispo")
    assert knobs.advantage_entry == ADVANTAGES["group_centred"] and knobs.surrogate_entry == SURROGATES["cispo"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"surrogate": "gspo", "aggregation": "token_mean"}, "is one number per sequence"),
        ({"surrogate": "gspo", "advantage": "gae"}, "differs from token to token"),
        ({"surrogate": "dppo_tv", "correction": "truncate"}, "count the difference twice"),
        ({"kl": {"type": "loss", "beta": 0.1, "estimator": "k1"}}, "has a gradient of expectation 0"),
        ({"kl": REWARD_KL, "advantage": "gdpo"}, "a KL penalty is not a reward"),
        ({"kl": REWARD_KL, "advantage": "maxrl"}, "needs rewards >= 0"),
        ({"kl": REWARD_KL, "advantage": "gae"}, "needs rewards per token"),
        ({"kl": TOKEN_KL}, "compares one number per sequence"),
        ({"update": "trpo"}, "Use surrogate importance"),
        ({"update": "trpo", "surrogate": "importance", "penalty": EXACT}, "Use penalty none"),
        ({"overlong": 0.2, "advantage": "maxrl"}, "overlong gives rewards below 0"),
        ({"resample": 2, "advantage": "batch_centred"}, "does not compare groups"),
    ],
)
def test_refusal(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        settings(**given)
    found = refusal(settings(**given, allow_unsupported=True))
    assert found is not None and reason in found


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"overlong": 50}, "is a number of tokens"),
        ({"correction": 2.0}, "Write {type: truncate, high: 2}"),
        ({"kl": {**REWARD_KL, "horizon": 5}}, "horizon only works with a target"),
        ({"kl": {**REWARD_KL, "target": 1.0, "end": 0.0, "steps": 3}}, "`target` and `end` both change beta"),
        ({"kl": {"type": "reward_sequence", "beta": 0.0, "target": 1.0}}, "a beta of 0 would stay 0"),
    ],
)
def test_values_that_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        settings(**given)


def test_values_that_are_kept() -> None:
    assert settings(overlong=0.5).overlong == 0.5 and settings(correction="truncate").correction.type == "truncate"


def said(found: str | None) -> str:
    assert found is not None
    return found


def test_runs_that_do_not_fit() -> None:
    plain, reinforce = settings(), POLICY_ROWS["reinforce"].settings()
    assert group_refusal(plain, 2) is None and "in a group of 1" in said(group_refusal(plain, 1))
    assert group_refusal(reinforce, 1) is None
    assert reuse_refusal(plain, 4) is None and reuse_refusal(reinforce, 1) is None
    assert "has no ratio, so 2 updates" in said(reuse_refusal(reinforce, 2))
    assert replay_refusal(reinforce, 0) is None and replay_refusal(plain, 2) is None
    assert "no ratio to correct" in said(replay_refusal(reinforce, 2))
    penalised = settings(penalty=EXACT)
    assert "earlier rounds used other policies" in said(replay_refusal(penalised, 2))
    assert penalty_refusal(penalised, 2) is None and penalty_refusal(plain, 1) is None
    assert "nothing follows penalty.target" in said(penalty_refusal(penalised, 1))
    assert truncation_refusal(plain) is None and "covers all tokens" in said(truncation_refusal(penalised))
    assert foreign_refusal(plain, foreign=False) is None
    assert foreign_refusal(settings(correction="truncate"), foreign=True) is None
    assert "Set correction: {type: truncate}" in said(foreign_refusal(plain, foreign=True))
