"""What this host lacks for the processes of runs."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.pipeline.processes import notes as module
from posttrain.pipeline.processes.notes import process_notes
from posttrain.pipeline.processes.schedulers import LAUNCH


def run(processes: int = 1, device: str = "cpu", threads: int = 1, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(processes=processes, device=SimpleNamespace(device=device, threads=threads), **more)


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(LAUNCH, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)


def test_runs_with_the_same_lack_are_noted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    many = run(2, threads=10_000)
    line = f"processes = 2, each with device.threads = 10000: this host has {os.cpu_count()} CPU cores"
    typed = {"sft.runs.a": many, "sft.runs.b": many, "sft.runs.c": run()}
    assert process_notes(typed) == [f"note: sft.runs.a, sft.runs.b: {line}"]
    assert process_notes({"sft.runs.c": run()}) == []
    monkeypatch.setenv(LAUNCH, "srun")
    assert process_notes(typed) == []


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    (line,) = process_notes({"sft.runs.a": run(threads=3), "sft.runs.b": run(threads=2)})
    assert line.startswith("note: sft.runs.a: device.threads = 3: this host has 2 CPU cores")
    monkeypatch.setenv(LAUNCH, "srun")  # it runs elsewhere
    assert process_notes({"sft.runs.a": run(threads=3)}) == []


def test_processes_without_rows_and_shards_without_processes() -> None:
    (line,) = process_notes({"sft.runs.a": run(shards=2)})
    assert line == "note: sft.runs.a: shards = 2 changes nothing with processes = 1"
    (line,) = process_notes({"sft.runs.a": run(2, batch=1)})
    assert line == "note: sft.runs.a: processes = 2, more than the rows of a step (1): some have nothing to do"
    rollout = SimpleNamespace(prompts=1, group_size=4, minibatches=2)
    assert process_notes({"online.runs.a": run(2, rollout=rollout, batch=1)}) == []
    rollout.minibatches = 4
    assert "the rows of a step (1)" in process_notes({"online.runs.a": run(2, rollout=rollout)})[0]


def test_gpus() -> None:
    assert module._gpus("cpu") is None and module._gpus("auto") is None and module._gpus("cuda") == 2
    (line,) = process_notes({"sft.runs.a": run(3, "cuda")})
    assert line == "note: sft.runs.a: processes = 3: this host has 2 GPUs, and each process needs one"
    assert process_notes({"sft.runs.a": run(2, "cuda")}) == []


def test_gpus_of_an_engines_servers() -> None:
    assert module._served_gpus(run(engine_servers=[[0, 1], [3]])) == 4
    assert module._served_gpus(run(engine_servers=2)) == 0 and module._served_gpus(run()) == 0
    assert module._served_gpus(run(rollout=SimpleNamespace(engine_servers=[[5]]))) == 6
    (line,) = process_notes({"sft.runs.a": run(engine_servers=[[3]])})
    assert line == "note: sft.runs.a: engine_servers names GPU 3: this host has 2 GPUs"


def test_gpus_that_dvc_yaml_reserves() -> None:
    Path("dvc.yaml").write_text("stages: {sft: {foreach: [a], do: {cmd: a, meta: {gpus: 1}}}}\n")
    (line,) = process_notes({"sft.runs.a": run(2, "cuda")})
    assert line.endswith("meta.gpus = 1 of the stage sft in dvc.yaml, so a flow shows it no more GPUs")
