"""The GPUs of this host, given to the stages of one flow."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from flows.gpu_slots import GpuSlots, devices
from flows.graph import Needs, Stage

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ALONE, PAIR = Stage("report", (), Needs(), ()), Stage("online@grpo", (), Needs(gpus=2), ())


def test_the_gpus_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, GPU-2,-1,")
    assert devices() == ["0", "GPU-2"]


def test_the_gpus_that_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices() == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: H200'\necho 'GPU 1: H200'\necho '  MIG 1g: no device of its own'\n")
    program.chmod(0o700)
    assert devices() == ["0", "1"]


def test_gpus_are_taken_in_order_while_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    slots = GpuSlots([])
    assert slots._pick(2) == ["0", "1"]
    assert slots._pick(2) == []
    assert slots._pick(1) == ["2"]


def test_a_stage_without_gpus_and_a_cancelled_one_hold_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    slots, cancel = GpuSlots([]), threading.Event()
    with slots.acquire(ALONE, cancel) as found:
        assert found == {}
    cancel.set()
    assert slots._wait(2, cancel) is None
    with slots.acquire(PAIR, cancel) as found:
        assert found == {}
    assert slots._pick(2) == ["0", "1"]
