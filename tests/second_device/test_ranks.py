"""Models divided by FSDP2 among two ranks of the second device, each a thread, train as one does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg as threaded

from tests.pipeline.processes.every_objective import MIXTURES, run, start_model
from tests.pipeline.processes.test_every_objective import LIMITS

RANKS = 2


def in_ranks(work: Callable[[], Any]) -> list[Any]:
    """What the work gives in each of the ranks."""
    found: list[Any] = [None] * RANKS
    store = dist.HashStore()  # type: ignore[attr-defined]

    def rank(number: int) -> None:
        dist.init_process_group("threaded", rank=number, world_size=RANKS, store=store)
        try:
            found[number] = work()
        except BaseException as error:  # noqa: BLE001
            found[number] = error
            threaded.ProcessLocalGroup.exception_handle(error)  # type: ignore[no-untyped-call]  # wakes the others
        finally:
            dist.destroy_process_group()

    torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]
    threaded._install_threaded_pg()  # type: ignore[no-untyped-call]
    try:
        ranks = [threading.Thread(target=rank, args=(number,)) for number in range(RANKS)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
    finally:
        threaded.ProcessLocalGroup.reset()  # type: ignore[no-untyped-call]
        threaded._uninstall_threaded_pg()  # type: ignore[no-untyped-call]
        torch._C._distributed_c10d._set_thread_isolation_mode(False)  # type: ignore[attr-defined]
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


@pytest.mark.parametrize("name", ["likelihood", "grpo", MIXTURES[0]])
def test_two_ranks_train_what_one_does(name: str) -> None:
    start_model(experts=name in MIXTURES)  # once, since threads would draw from one generator
    weights, metrics = run(name, torch.float32, None, "cuda", 2)
    for own, own_metrics in in_ranks(lambda: run(name, torch.float32, None, "cuda", 2)):
        assert own.keys() == weights.keys()
        assert max(float((part - own[key]).abs().max()) for key, part in weights.items()) <= LIMITS["float32"][0]
        for one, other in zip(metrics, own_metrics, strict=True):
            assert one == pytest.approx(other, rel=1e-5, abs=1e-6)


def test_two_ranks_train_in_bf16_what_one_does() -> None:
    """Their sums round in another way: weights differ by a step at most, of a learning rate of 1e-3."""
    start_model(experts=False)
    weights, metrics = run("likelihood", torch.bfloat16, None, "cuda", 2)
    for own, own_metrics in in_ranks(lambda: run("likelihood", torch.bfloat16, None, "cuda", 2)):
        assert max(float((part.float() - own[key].float()).abs().max()) for key, part in weights.items()) <= 4e-3
        for one, other in zip(metrics, own_metrics, strict=True):
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-2)
