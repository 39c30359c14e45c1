"""Objectives on padded tensors: settings, refusals and the loss of one step."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.padded import check_arguments, entry, flat, padded, padded_loss, settings_of
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.errors import ParamsError
from tests.library.by_hand import QUARTER, t

MASK = torch.tensor([[True, False], [True, True]])


def test_settings_of_an_algorithm() -> None:
    assert settings_of(POLICY_ROWS, "grpo", {"entropy": 0.5}).entropy == 0.5
    assert entry({"grpo": 3}, "grpo", "algorithm") == 3
    with pytest.raises(ParamsError, match="'grp' is unknown"):
        entry({"grpo": 3}, "grp", "algorithm")


def test_arguments() -> None:
    check_arguments("grpo", {"a": (None, False, False), "b": (1, True, True)})
    with pytest.raises(ParamsError, match="'grpo' needs it"):
        check_arguments("grpo", {"a": (None, True, True)})
    with pytest.raises(ParamsError, match="'grpo' does not use it"):
        check_arguments("grpo", {"a": (1, False, False)})


def test_flat_and_padded() -> None:
    column = torch.tensor([[1, 9], [2, 3]], dtype=torch.bfloat16)
    values = flat("a", column, MASK)
    assert values.dtype == torch.float32 and values.tolist() == [1, 2, 3]
    assert flat("a", torch.tensor([[1, 9], [2, 3]]), MASK).dtype == torch.long
    assert padded(values, MASK).tolist() == [[1, 0], [2, 3]]
    with pytest.raises(ParamsError, match="the mask's shape is"):
        flat("a", column[:, :1], MASK)


def test_the_loss_of_a_policy_step() -> None:
    objective = PolicyObjective(POLICY_ROWS["grpo"].settings(kl="none"), 8)
    old = torch.full((2, 2), -1.0)
    columns = {"old_logp": old, "advantage": torch.tensor([[2.0, 0], [1, 1]]), "entropy": torch.ones(2, 2)}
    columns |= {"truncated": torch.zeros(2)}
    logp = old.clone().requires_grad_()
    state: dict[str, float] = {}
    loss, metrics = padded_loss(objective, logp, columns, MASK, state)
    assert float(loss.detach()) == pytest.approx(-(2 + 1) / 2)
    assert metrics["entropy"] == pytest.approx(1) and metrics["ratio"] == pytest.approx(1)
    (gradient,) = torch.autograd.grad(loss, logp)
    assert_close(gradient, torch.tensor([[-1.0, 0], [-0.25, -0.25]]))


def test_the_loss_of_pairs() -> None:
    objective = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings(loss={"type": "dpo", "beta": 1.0}))
    logp, ref = t(QUARTER - 1, -1)[:, None], t(-1, -1)[:, None]
    columns = {"side": t(1, -1), "ref_logp": ref}
    loss, metrics = padded_loss(objective, logp, columns, torch.ones(2, 1), None, pairs=1)
    assert float(loss) == pytest.approx(-math.log(0.75)) and metrics["accuracy"] == 1.0
