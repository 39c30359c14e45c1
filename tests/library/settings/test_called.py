"""Settings that a script makes by a call."""

from __future__ import annotations

import pytest

from posttrain.errors import ParamsError
from posttrain.supervised.preference import PreferenceTraining
from posttrain.supervised.sft import SftConfig


def test_settings_by_name() -> None:
    assert SftConfig(epochs=2.0).epochs == 2.0


def test_settings_of_an_algorithm_keep_its_values() -> None:
    assert PreferenceTraining(algorithm="simpo", epochs=2.0).reduce == "mean"


def test_mistakes_are_params_errors() -> None:
    with pytest.raises(ParamsError, match="settings must be passed by name"):
        SftConfig(2.0)  # type: ignore[call-arg]
    with pytest.raises(ParamsError, match=r"PreferenceTraining\.algorithm is missing"):
        PreferenceTraining(epochs=1.0)  # type: ignore[call-arg]
    with pytest.raises(ParamsError, match="epochs"):
        SftConfig(epochs=-1.0)
