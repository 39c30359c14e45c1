"""The preference objective by hand: pairs, labels, shifts, matches and held-out items."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.preference_config import PreferenceConfig
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.formulas.ragged import Ragged
from tests.library.by_hand import QUARTER, t


def objective(**settings: Any) -> PreferenceObjective:
    return PreferenceObjective(PreferenceConfig.model_validate(settings))


DPO = objective(loss={"type": "dpo", "beta": 1.0})
KTO = objective(loss={"type": "kto", "beta": 1.0})
BCO = objective(loss={"type": "bco", "beta": 1.0})
AOT = objective(loss={"type": "aot", "beta": 1.0})


def pairs(*margins: float) -> Ragged:
    """Pairs of answers of one token each, the chosen one so much likelier relative to the reference."""
    logp = [part for margin in margins for part in (margin - 1, -1)]
    rows = {"side": t(*[1, -1] * len(margins))}
    columns = {"logp": t(*logp), "ref_logp": t(*[-1] * len(logp)), "step_start_logp": t(*logp)}
    items = torch.arange(len(margins)).repeat_interleave(2)
    return Ragged(torch.ones(len(logp), dtype=torch.long), rows, columns, items)


def feedback(labels: list[float], shifts: list[float]) -> Ragged:
    shifted = t(*shifts)
    columns = {"logp": shifted - 1, "ref_logp": torch.full_like(shifted, -1.0), "step_start_logp": shifted - 1}
    return Ragged(torch.ones(len(labels), dtype=torch.long), {"label": t(*labels)}, columns)


def test_what_it_needs() -> None:
    assert DPO.needs == {"side", "ref_logp"} and KTO.needs == {"label", "step_start_logp", "ref_logp"}
    assert AOT.needs == {"side", "step_start_logp", "ref_logp"}
    assert (DPO.matched, AOT.matched, DPO.mismatched, KTO.mismatched, BCO.mismatched) == (
        False,
        True,
        False,
        True,
        False,
    )
    assert DPO.initial_state() == {} and KTO.initial_state() == {"shift": 0.0}
    assert BCO.initial_state() == {"shift": 0.0, "steps": 0.0}


def test_pairs() -> None:
    prepared = DPO.prepare(pairs(QUARTER, -QUARTER), {})
    assert_close(prepared.step.rows["weight"], t(0.5, 0.5, 0.5, 0.5))
    assert prepared.counts is True
    loss = DPO.loss(prepared.step, prepared.state)
    assert float(loss.total) == pytest.approx((-math.log(0.75) - math.log(0.25)) / 2)
    found = {name: float(value) for name, value in loss.metrics.items()}
    assert found == pytest.approx({"accuracy": 0.5, "margin": 0, "chosen": 0, "rejected": 0, "logp_shift": 0})


def test_the_likelihood_of_the_chosen_answers() -> None:
    both = objective(loss={"type": "dpo", "beta": 1.0}, nll=2.0)
    loss = both.loss(both.prepare(pairs(QUARTER), {}).step, {})
    nll = 1 - QUARTER
    assert float(loss.metrics["nll"]) == pytest.approx(nll)
    assert float(loss.total) == pytest.approx(-math.log(0.75) + 2 * nll)
    assert float(both.heldout(pairs(QUARTER)).loss_I) == pytest.approx(-math.log(0.75) + 2 * nll)


def test_items_are_pairs() -> None:
    with pytest.raises(ValueError, match="one chosen row"):
        DPO.prepare(pairs(1.0).with_rows(side=t(1, 1)), {})


def test_without_a_reference_and_by_the_mean() -> None:
    alone = objective(loss="simpo", reference=False, reduce="mean")
    loss = alone.loss(alone.prepare(pairs(0.5), {}).step, {})
    assert float(loss.total) == pytest.approx(-math.log(0.5))  # beta 2 times a margin of 0.5, less gamma 1
    assert "logp_shift" not in loss.metrics


def test_matched_answers_meet_those_of_the_same_rank() -> None:
    step = pairs(QUARTER, -QUARTER)
    prepared = AOT.prepare(step, {})
    # the reference's margins are 0, so each side is compared with what it is worth by itself
    assert_close(prepared.step.rows["against"], t(QUARTER, 0, -QUARTER, 0)[[1, 0, 3, 2]])
    assert float(AOT.loss(prepared.step, {}).total) == pytest.approx((-math.log(0.75) - math.log(0.25)) / 2)
    assert_close(AOT.heldout(prepared.step).loss_I, t(-math.log(0.75), -math.log(0.25)))


def test_mismatched_rows_are_the_shift() -> None:
    prepared = KTO.prepare(feedback([1, -1, 0, 0], [QUARTER + 1, 1 - QUARTER, 0, 2]), KTO.initial_state())
    assert prepared.state == {"shift": 1.0} and prepared.metrics == {"z0": 1.0} and len(prepared.step) == 2
    loss = KTO.loss(prepared.step, prepared.state)
    assert float(loss.total) == pytest.approx(0.25) and float(loss.metrics["accuracy"]) == 1.0


def test_the_running_shift_is_a_mean_of_steps() -> None:
    prepared = BCO.prepare(feedback([1, -1], [1, 3]), BCO.initial_state())
    assert prepared.state == {"shift": 2.0, "steps": 1.0} and prepared.metrics == {"shift": 2.0}
    again = BCO.prepare(feedback([1, -1], [0, 0]), prepared.state)
    assert again.state == {"shift": 1.0, "steps": 2.0}


def test_heldout() -> None:
    found = DPO.heldout(pairs(QUARTER, -QUARTER))
    assert_close(found.loss_I, t(-math.log(0.75), -math.log(0.25)))
    assert found.weight_I.tolist() == [1, 1] and found.figures["accuracy"].tolist() == [True, False]
    assert found.logps_IK is not None
    assert_close(found.logps_IK, t(QUARTER - 1, -1, -QUARTER - 1, -1).view(2, 2))
    judged = KTO.heldout(feedback([1, -1], [QUARTER, QUARTER]))
    assert_close(judged.loss_I, t(0.25, 0.75))
    assert judged.figures["accuracy"].tolist() == [True, False] and judged.logps_IK is None
