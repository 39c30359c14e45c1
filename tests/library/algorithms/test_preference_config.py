"""Which preference settings are refused, and what the loss makes of them."""

from __future__ import annotations

import pytest

from posttrain.algorithms.preference_config import PREFERENCE_ROWS, PreferenceConfig, refusal
from posttrain.algorithms.preference_loss import LOSSES


def test_every_row_is_accepted() -> None:
    for row in PREFERENCE_ROWS.values():
        assert refusal(row.settings()) is None


def test_paired_and_the_entry() -> None:
    dpo, kto = PREFERENCE_ROWS["dpo"].settings(), PREFERENCE_ROWS["kto"].settings()
    assert dpo.paired is True and kto.paired is False
    assert dpo.loss_entry == LOSSES["dpo"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"loss": "orpo"}, "orpo uses the odds"),
        ({"loss": "aot", "reference": False}, "aot sorts log-probs relative to a reference"),
        ({"loss": "kto", "reference": False}, "kto compares an answer's shift"),
        ({"parts": 2, "reference": False}, "parts updates the reference"),
    ],
)
def test_refusal(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=f"{reason}.*, or allow_unsupported: true"):
        PreferenceConfig.model_validate(settings)
    found = refusal(PreferenceConfig.model_validate({**settings, "allow_unsupported": True}))
    assert found is not None and reason in found
