"""Runs of every kind by several processes: the weights of one, and checkpoints that any number of them resumes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.library.models.tiny import tiny_folder
from tests.pipeline.processes.launched import launch

MODULE = "tests.pipeline.processes.every_run"
RUNS = (
    *("sft", "dpo", "sdpo", "kto", "grpo", "ppo", "ppo_penalty", "trpo", "nash_md", "dapo", "replay", "gkd"),
    *("sft+lora", "dpo+lora", "sdpo+lora", "ppo+lora", "sft+dora"),
)
"""With a reference that moves, a critic, copies of the policy, a mixture that is sampled, a teacher, adapters."""
QUICK = ("grpo", "ppo+lora")
CUT = 3
"""The step at which a run is cut; each has at least six."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("start"))


class Place:
    """A workspace in which runs leave checkpoints."""

    def __init__(self, folder: Path, start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._start = folder, start
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("DVC_ROOT", str(folder))

    def run(self, size: int, end: str, names: tuple[str, ...]) -> dict[str, dict[str, Tensor]]:
        """Start or resume the runs with so many processes; their weights and updates at the end."""
        out = self.folder / f"out-{size}-{end}"
        launch(MODULE, size, self.folder / "logs", str(self.folder), str(self._start), end, str(out), *names)
        return {name: load_file(f"{out}/{name}.safetensors") for name in names}


def differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of a weight."""
    assert one.keys() == other.keys()
    weights = [key for key in one if not key.startswith("update.")]
    return max(float((one[key] - other[key]).abs().max()) for key in weights)


@pytest.mark.parametrize("names", [QUICK, pytest.param(RUNS, marks=pytest.mark.slow)], ids=["quick", "all"])
def test_a_run_that_changes_its_processes_ends_with_the_weights_of_one(
    names: tuple[str, ...], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Place(tmp_path / "whole", start, monkeypatch).run(1, "all", names)
    place = Place(tmp_path / "changed", start, monkeypatch)
    place.run(2, str(CUT), names)
    divided = {file.parents[2].name for file in (tmp_path / "changed").rglob("tensors-00001-of-00002.safetensors")}
    assert divided == {*names} - {"trpo"}
    changed = place.run(1, "all", names)
    for name in names:
        assert differ(whole[name], changed[name]) < 1e-5, name


@pytest.mark.slow
@pytest.mark.parametrize("saved", [1, 2, 4])
def test_any_number_of_processes_loads_the_same_bits(
    saved: int, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Place(tmp_path / "first", start, monkeypatch)
    expected = first.run(saved, str(CUT), RUNS)
    for size in (1, 2, 4):
        copy = tmp_path / f"copy-{size}"
        shutil.copytree(first.folder, copy)
        shutil.rmtree(copy / "logs")
        found = Place(copy, start, monkeypatch).run(size, str(CUT), RUNS)
        for name in RUNS:
            assert found[name].keys() == expected[name].keys(), name
            same = [torch.equal(part, expected[name][key]) for key, part in found[name].items()]
            assert all(same), f"{name}: saved by {saved}, loaded by {size}"
