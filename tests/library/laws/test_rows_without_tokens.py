"""A row without a token changes nothing: it is no sample of its group, has no KL, and does not count in a mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.laws.cases import LONGEST, Case, Shape, build, run
from posttrain.losses import policy_loss


def with_an_empty_row(case: Case) -> Case:
    """The same step with a row that has the numbers of the first one, and no token."""
    step = case.step
    rows = {name: torch.cat([part, part[:1]]) for name, part in step.rows.items()}
    rows |= {"row": torch.arange(len(step) + 1)}
    if "reward" in rows:
        rows["reward"][-1] = 5.0
    lengths = torch.cat([step.lengths_B, torch.zeros(1, dtype=step.lengths_B.dtype)])
    item = None if step.item_B is None else torch.cat([step.item_B, step.item_B[:1]])
    return replace(case, step=replace(step, lengths_B=lengths, rows=rows, item_B=item))


@pytest.mark.parametrize("name", [name for name, row in POLICY_ROWS.items() if name != "nash_md"])
@pytest.mark.parametrize("place", ["", "loss", "reward_token", "reward_sequence"])
def test_of_every_preset_with_every_place_of_the_kl(name: str, place: str) -> None:
    kl = {"type": place, "estimator": "k1" if place != "loss" else "k3", "beta": 0.1, "target": 0.5}
    try:
        knobs = POLICY_ROWS[name].settings(**({"kl": kl} if place else {}))
    except ValueError:
        pytest.skip("the preset cannot have the KL there")
    case = build(PolicyObjective(knobs, LONGEST), Shape(3))
    plain, found = run(case), run(with_an_empty_row(case))
    torch.testing.assert_close(found.loss, plain.loss, rtol=1e-12, atol=1e-12)
    for key, gradient in plain.gradients.items():
        torch.testing.assert_close(found.gradients[key], gradient, rtol=1e-10, atol=1e-12)
    assert found.state == pytest.approx(plain.state, rel=1e-12)
    for key, value in plain.metrics.items():
        assert found.metrics[key] == pytest.approx(value, rel=1e-9, abs=1e-12), key


@pytest.mark.parametrize("name", ["top_entropy", "kl_cov", "clip_cov"])
def test_a_public_loss_is_a_function_of_its_arguments(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    logp, old = (-torch.rand(8, 6, generator=draw) for _ in range(2))
    mask = torch.ones(8, 6, dtype=torch.bool)
    entropy = torch.ones(8, 6)  # all equal: the keys decide
    before = torch.get_rng_state()
    given = {"entropy": entropy} if name == "top_entropy" else {}
    losses = [
        float(
            policy_loss(name, logp, old, torch.randn(8, generator=torch.Generator().manual_seed(1)), mask, **given)[0]
        )
        for _ in range(6)
    ]
    assert len(set(losses)) == 1
    assert torch.equal(torch.get_rng_state(), before), "the caller's generator does not move"


@pytest.mark.parametrize("name", ["p3o", "clip_cov"])
def test_the_setting_decides_which_log_probs_a_ratio_is_to(name: str) -> None:
    """Without `correction` a column of recomputed log-probs, which a step may have, is not read."""
    settings = {"surrogate": {"cov_low": -100.0, "cov_high": 100.0, "share": 0.3}} if name == "clip_cov" else {}
    case = build(PolicyObjective(POLICY_ROWS[name].settings(**settings), LONGEST), Shape(5))
    assert "recomputed_logp" not in case.step.tokens
    other = case.step.with_tokens(recomputed_logp=case.step.tokens["old_logp"] - 1.0)
    plain, found = run(case), run(replace(case, step=other))
    assert torch.equal(plain.loss, found.loss)
    assert torch.equal(plain.gradients["logp"], found.gradients["logp"])
