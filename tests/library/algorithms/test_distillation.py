"""The distillation objective by hand, alone and next to a policy objective."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.algorithms.distillation import (
    DistillConfig,
    DistillObjective,
    TaughtConfig,
    TaughtObjective,
    TeacherConfig,
)
from posttrain.formulas.ragged import Ragged
from tests.library.by_hand import t

STEP = Ragged(torch.tensor([1, 2]), tokens={"teacher_kl": t(1, 2, 6)})


def test_the_formula_of_the_settings() -> None:
    teacher, student = t(0.75, 0.25).log()[None], t(0.5, 0.5).log()[None]
    found = TeacherConfig(divergence="reverse_kl").formula()(student, teacher)  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx([0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(2)])
    assert TeacherConfig(context="{answer}").context == "{answer}"
    with pytest.raises(ValueError, match="context is blank"):
        TeacherConfig(context=" ")


@pytest.mark.parametrize(("aggregation", "mean"), [("token_mean", 3.0), ("sequence_mean", 2.5)])
def test_distillation(aggregation: str, mean: float) -> None:
    objective = DistillObjective(DistillConfig.model_validate({"aggregation": aggregation}))
    assert objective.needs == {"teacher_kl"}
    loss = objective.loss(objective.prepare(STEP, {}).step, {})
    assert (float(loss.total), float(loss.metrics["teacher_kl"])) == pytest.approx((mean, 3.0))


def test_a_policy_objective_with_a_teacher() -> None:
    knobs = TaughtConfig.model_validate({"surrogate": "importance", "aggregation": "token_mean", "teacher_coef": 0.5})
    objective = TaughtObjective(knobs, 8)
    assert "teacher_kl" in objective.needs and "reward" in objective.needs
    weight = t(1, 1, 1) / 3
    columns = {"logp": t(-1, -1, -1), "old_logp": t(-1, -1, -1), "advantage": t(3, 0, 0), "weight": weight}
    step = STEP.with_tokens(**columns, token_mean_weight=weight, entropy=t(0, 0, 0))
    loss = objective.loss(step, objective.initial_state())
    assert float(loss.total) == pytest.approx(-1 + 0.5 * 3) and float(loss.metrics["teacher_kl"]) == pytest.approx(3)
