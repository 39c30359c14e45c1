"""Which requests are decoded next."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.errors import ParamsError
from posttrain.sampling.sampler import SamplingParams
from posttrain.sampling.scheduler import Admission


class Sizes:
    """Keys and values of a byte a token of a prompt, and of ten bytes a row."""

    def kv_bytes(self) -> tuple[int, int]:
        return 1, 10


def admission(prompts: list[tuple[int, ...]], **settings: Any) -> Admission:
    backends: Any = [Sizes()]
    return Admission(prompts, SamplingParams(**settings), torch.device("cpu"), backends, "sampling")


def test_as_many_rows_as_there_are_slots() -> None:
    some = admission([(1,), (1, 2), (1, 2, 3)], rows=2)
    assert some.take([]) == [0, 1] and some.take([0, 1]) == [] and some.take([1]) == [2]


def test_memory_limits_the_rows_and_long_prompts_go_first() -> None:
    some = admission([(1,), (1, 2, 3, 4, 5)], kv_gb=24e-9)
    assert some.take([]) == [1] and some.take([1]) == [] and some.take([]) == [0]


def test_a_request_that_does_not_fit_alone() -> None:
    with pytest.raises(ParamsError, match="the keys and values of a prompt of 20 tokens"):
        admission([tuple(range(20))], kv_gb=24e-9).take([])
