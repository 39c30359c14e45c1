"""Two laws more for what ships with the library: loss and gradient are those of the oracle in plain Python."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from posttrain.algorithms.distillation import DistillObjective
from posttrain.algorithms.objective import Objective, State
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardObjective
from posttrain.algorithms.supervised import LikelihoodObjective
from posttrain.formulas.ragged import Ragged
from posttrain.laws import laws
from posttrain.laws.cases import Case, Shape, build, run
from posttrain.laws.laws import Law, relative
from tests.library.laws import oracle


def covered(objective: Objective) -> bool:
    """Whether the oracle has the formulas of an objective."""
    if isinstance(objective, PolicyObjective):
        knobs = objective.config
        return knobs.surrogate.type in oracle.SURROGATES and knobs.advantage.type in oracle.ADVANTAGES
    return not isinstance(objective, PreferenceObjective) or objective.config.loss.type in oracle.LOSSES


def value(objective: Objective, shape: Shape) -> float | None:
    """Double precision against loops in plain Python."""
    if not covered(objective):
        return None
    case = _stirred(build(objective, shape))
    return relative(float(run(case).loss), plain(case, case.leaves, case.leaves))


def gradient(objective: Objective, shape: Shape) -> float | None:
    """The gradient by every column against finite differences of the plain Python."""
    if not covered(objective):
        return None
    case = _stirred(build(objective, replace(shape, groups=min(shape.groups, 2), longest=min(shape.longest, 3))))
    outcome, step, worst = run(case), 1e-6, 0.0
    for name, leaf in case.leaves.items():
        for i in range(leaf.numel()):
            ends = []
            for sign in (1, -1):
                moved = leaf.clone()
                moved[i] += sign * step
                ends.append(plain(case, {**case.leaves, name: moved}, case.leaves))
            slope = (ends[0] - ends[1]) / (2 * step)
            worst = max(worst, relative(float(outcome.gradients[name][i]), slope))
    return worst


def plain(case: Case, leaves: dict[str, Tensor], still: dict[str, Tensor]) -> float:
    """The case's loss by the oracle, stop-gradient terms taken at `still`."""
    objective, rows = case.objective, _as_rows(case.step, leaves)
    match objective:
        case PolicyObjective():
            return oracle.policy(
                objective.config,
                objective.max_length,
                rows,
                case.state,
                _as_rows(case.step, still),
            )
        case PreferenceObjective():
            return oracle.preference(objective.config, rows, case.state, _as_rows(case.step, still))
        case RewardObjective():
            return oracle.reward(objective.config, rows)
        case LikelihoodObjective():
            if objective.config.by_probability:
                for row, fixed in zip(rows, _as_rows(case.step, still), strict=True):
                    row["logp"] = [math.exp(p) * logp for p, logp in zip(fixed["logp"], row["logp"], strict=True)]
            return oracle.tokens(objective.config, rows, "logp", -1.0)
        case DistillObjective():
            return oracle.tokens(objective.config, rows, "teacher_kl", 1.0)
    raise AssertionError(f"the oracle does not know {type(objective).__name__}: write it down from its definition")


def _as_rows(step: Ragged, leaves: dict[str, Tensor]) -> oracle.Rows:
    rows: oracle.Rows = [{"item": int(item)} for item in step.items]
    ends = step.lengths_B.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    for name, column in {**step.rows, **step.tokens, **leaves}.items():
        values = column.tolist()
        per_row = name in step.rows or name == "score"
        for i, row in enumerate(rows):
            row[name] = values[i] if per_row else values[starts[i] : ends[i]]
    return rows


def _stirred(case: Case) -> Case:
    """A state that is no longer the first one, where an objective has a state."""
    later: State = dict(case.state)
    for name, number in (
        ("beta", 0.07),
        ("next_beta", 0.07),
        ("penalty", 0.8),
        ("last_kl_old", 0.05),
        ("baseline", 0.3),
        ("baseline_weight", 0.4),
    ):
        if later.get(name, 0.0) or (name in ("last_kl_old", "baseline", "baseline_weight") and name in later):
            later[name] = number
    for name, number in (("shift", 0.2), ("steps", 3.0), ("next_step", 2.0)):
        if name in later:
            later[name] = number
    return replace(case, state=later)


LAWS: dict[str, Law] = {
    **laws.LAWS,
    "value": Law("the loss is that of the plain Python oracle", value, 1e-10),
    "gradient": Law("the gradient is the oracle's, by finite differences", gradient, 1e-6),
}
