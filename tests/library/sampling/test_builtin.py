"""The mixture of two policies by hand."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.sampling.builtin import mixture_logits


def test_the_mixture_is_geometric() -> None:
    policy, ref = torch.tensor([0.8, 0.2]), torch.tensor([0.5, 0.5])
    mixed = mixture_logits(policy.log(), ref.log(), 0.5).softmax(-1)
    root = [math.sqrt(0.4), math.sqrt(0.1)]
    assert mixed.tolist() == pytest.approx([part / sum(root) for part in root])
