"""The settings of preference optimisation: presets, batches and sizes."""

from __future__ import annotations

from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.rollout import TokenRow
from posttrain.supervised.preference import PREFERENCES, PreferenceTraining, preference_source
from posttrain.train.batch_sources import EpochSource, Example, KtoSource

EXAMPLES = [Example([TokenRow([1], [2, 3])], {"label": [1.0]})] * 4


def test_preset_keeps_the_algorithms_values() -> None:
    found = PreferenceTraining.preset("simpo", epochs=2.0)
    assert (found.algorithm, found.epochs, found.reduce, found.reference) == ("simpo", 2.0, "mean", False)
    assert PREFERENCES.entry("dpo").model is PreferenceTraining


def test_goal_and_reference() -> None:
    dpo = PreferenceTraining.preset("dpo")
    assert isinstance(dpo.goal(), PreferenceObjective) and dpo.needs == {"side", "ref_logp"}
    assert dpo.reference_moves is False and PreferenceTraining.preset("sdpo").reference_moves is True
    assert dpo.mismatched is False and PreferenceTraining.preset("kto").mismatched is True


def test_sources_and_tokens() -> None:
    dpo, kto = PreferenceTraining.preset("dpo", batch=2), PreferenceTraining.preset("kto", batch=2)
    models = None
    assert type(dpo.source(EXAMPLES, models)) is EpochSource  # type: ignore[arg-type]
    source = preference_source(kto.goal(), EXAMPLES, 2, 1.0, 0, models)  # type: ignore[arg-type]
    assert type(source) is KtoSource and source.steps == 2
    assert kto.step_tokens(EXAMPLES) == 2 * dpo.step_tokens(EXAMPLES) == 2 * 6
