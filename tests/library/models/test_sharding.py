"""A model of one process is not divided."""

from __future__ import annotations

import torch

from posttrain.models.sharding import (
    as_divided,
    fill,
    full,
    gathered,
    is_divided,
    is_sharded,
    is_whole,
    own_part,
    own_rows,
    whole,
)
from tests.library.models.tiny import tiny_model


def test_one_process() -> None:
    model, part = tiny_model(), torch.tensor([1.0, 2.0])
    assert not is_sharded(model) and is_whole(model) and not is_divided(part)
    assert own_part(part) is full(part) is own_rows(part, part) is as_divided(part, part) is part
    assert gathered(model, lambda: 3) == 3
    with whole(model):
        assert is_whole(model)
    fill(part, torch.tensor([5.0, 6.0]))
    assert part.tolist() == [5.0, 6.0]
