"""What objectives carry from step to step, by hand."""

from __future__ import annotations

import pytest
import torch

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import (
    PolicyObjective,
    doubling_factor,
    proportional_factor,
    updated_coefficients,
)
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.formulas.ragged import Ragged


def test_the_rules_that_move_beta() -> None:
    assert proportional_factor(12.0, 6.0, 100, 1000) == pytest.approx(1.02)
    assert proportional_factor(0.0, 6.0, 100, 1000) == pytest.approx(0.98)
    assert proportional_factor(6.3, 6.0, 100, 1000) == pytest.approx(1.005)
    assert proportional_factor(0.0, 6.0, 10_000, 1000) == pytest.approx(0.8), "a short horizon never turns beta around"
    assert doubling_factor(0.016, 0.01) == 2
    assert doubling_factor(0.006, 0.01) == 0.5
    assert doubling_factor(0.01, 0.01) == 1


def moved(age: float, by: float) -> Ragged:
    old = torch.full((4,), -1.0)
    rows = {
        "reward": torch.tensor([1.0, 0.0]),
        "truncated": torch.zeros(2, dtype=torch.bool),
        "age": torch.full((2,), age),
        "fresh": torch.full((2,), not age),
    }
    return Ragged(
        torch.tensor([2, 2]), rows, {"old_logp": old, "step_start_logp": old + by, "old_value": torch.zeros(4)}
    )


def test_the_penalty_follows_the_last_reused_step_once_per_batch() -> None:
    objective = PolicyObjective(POLICY_ROWS["ppo_penalty"].settings(), 8)
    state = objective.initial_state()
    for age, by, price in (
        (0, 0.0, 1.0),
        (1, 0.3, 1.0),
        (2, 0.4, 1.0),
        (0, 0.0, 2.0),
        (1, 0.01, 2.0),
        (0, 0.0, 1.0),
        (0, 0.0, 1.0),
    ):
        state = objective.prepare(moved(age, by), state).state
        assert state["penalty"] == price, (age, by)


@pytest.mark.parametrize(
    ("fresh", "opponent", "expected"),
    [
        ((True, True), None, 1 + 0.2 * 2 / 10),
        ((True, False), None, 1 - 0.2 * 1 / 10),
        ((False, False), None, 1.0),
        ((True, True), (False, True), 1 - 0.2 * 1 / 10),
        ((True, True), (True, True), 1.0),
    ],
)
def test_beta_counts_each_sample_of_the_policy_once(
    fresh: tuple[bool, ...], opponent: tuple[bool, ...] | None, expected: float
) -> None:
    """The first row has no KL to the reference, the second a large one."""
    kl = {"type": "reward_sequence", "beta": 1.0, "target": 1.0, "horizon": 10}
    knobs = POLICY_ROWS["nash_md" if opponent else "rloo"].settings(kl=kl)
    objective = PolicyObjective(knobs, 8)
    rows = {"fresh": torch.tensor(fresh), "group": torch.zeros(2, dtype=torch.long)}
    rows |= {} if opponent is None else {"opponent": torch.tensor(opponent)}
    step = moved(0, 0.0).with_rows(**rows).with_tokens(ref_logp=torch.tensor([-1.0, -1.0, -9.0, -9.0]))
    state = updated_coefficients(knobs, step, step.tokens["old_logp"], objective.initial_state())
    assert state["next_beta"] == pytest.approx(expected)


def test_the_moving_average_forgets_its_start() -> None:
    knobs = POLICY_ROWS["reinforce"].settings(advantage={"type": "moving_average", "decay": 0.5}, kl="none")
    objective = PolicyObjective(knobs, 8)
    state, baselines = objective.initial_state(), []
    for reward in (2.0, 4.0, 4.0):
        step = moved(0, 0.0).with_rows(reward=torch.full((2,), reward))
        prepared = objective.prepare(step, state)
        baselines.append(reward - float(prepared.step.tokens["advantage"][0]))
        state = prepared.state
    assert baselines == pytest.approx([2.0, 2.0, (0.5 * 2 + 4) / 1.5])
    assert objective.prepare(moved(1, 0.0), state).state == state, "a batch counts once"


def test_bcos_shift_is_the_mean_of_all_steps() -> None:
    objective = PreferenceObjective(PREFERENCE_ROWS["bco"].settings())
    state, shifts = objective.initial_state(), []
    for by in (1.0, 3.0):
        columns = {"ref_logp": torch.zeros(2), "step_start_logp": torch.full((2,), by)}
        prepared = objective.prepare(Ragged(torch.tensor([1, 1]), {"label": torch.tensor([1.0, -1.0])}, columns), state)
        state = prepared.state
        shifts.append(prepared.metrics["shift"])
    assert shifts == [1.0, 2.0]


def test_ktos_shift_is_never_negative_and_0_without_mismatched_rows() -> None:
    objective = PreferenceObjective(PREFERENCE_ROWS["kto"].settings())
    for start_logps, labels, expected in (
        ((1.0, 4.0), (1.0, 0.0), 4.0),
        ((1.0, -4.0), (1.0, 0.0), 0.0),
        ((1.0, 1.0), (1.0, -1.0), 0.0),
    ):
        columns = {"ref_logp": torch.zeros(2), "step_start_logp": torch.tensor(start_logps)}
        prepared = objective.prepare(Ragged(torch.tensor([1, 1]), {"label": torch.tensor(labels)}, columns), {})
        assert prepared.metrics["z0"] == expected
        assert len(prepared.step) == sum(label != 0 for label in labels)
