"""How often the better answer scores higher."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.pipeline.runs import reward as module


def test_the_accuracy_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.tensor([2.0, 1.0, 0.0, 1.0, 3.0, 0.0, 1.0, 0.0])
    monkeypatch.setattr(module, "answer_scores", lambda models, examples: scores)
    models: Any = None
    found = module._accuracy(models, [])
    assert found.keys() == {"heldout_accuracy", "heldout_margin", "heldout_calibration_error"}
    assert found["heldout_accuracy"] == 0.75 and found["heldout_margin"] == 1.0
    assert 0 < found["heldout_calibration_error"] < 0.5
