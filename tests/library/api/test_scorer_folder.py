"""The reward model of a call, and the reward that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from posttrain import EvaluateConfig
from posttrain.api.scorer_folder import scorer_folder
from posttrain.errors import ParamsError
from tests.library.models.tiny import tiny_folder


def starts_with_a(rollouts: Sequence[Any]) -> list[float]:
    return [float(one.text.startswith("a")) for one in rollouts]


def test_the_folder_of_the_reward_model(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    learned = EvaluateConfig(reward={"model": 1.0}, samples=1)
    assert scorer_folder(learned, folder) == scorer_folder(learned, str(folder)) == folder
    assert scorer_folder(EvaluateConfig(reward=starts_with_a), None) is None
    with pytest.raises(ParamsError, match="Give reward_model: the folder of a reward model"):
        scorer_folder(learned, None)
