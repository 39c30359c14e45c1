"""The KL to a reference, against the logarithms of a whole softmax."""

from __future__ import annotations

import pytest
import torch

from posttrain.evaluate.kl import kl_to_reference
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rollout import token_rows
from tests.library.models.tiny import plain_logps, random_rows, tiny_model


def test_the_divergence_from_a_reference() -> None:
    prompts, completions = random_rows(4)
    policy, reference = tiny_model(), tiny_model(1)
    rows = [(row, row) for row in token_rows(prompts, completions)]
    with torch.no_grad():
        ratio = (plain_logps(reference, prompts, completions) - plain_logps(policy, prompts, completions)).double()
    found = kl_to_reference(policy, reference, rows, 1.0, Runtime(DeviceParams(device="cpu")))
    wanted = {"kl_k1": float(-ratio.sum()) / 4, "kl_k3": float((ratio.exp() - 1 - ratio).sum()) / 4}
    assert found == pytest.approx(wanted, rel=1e-4)
