"""Completions that several processes sample together are those of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.pipeline.processes.launched import launch


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_dealt_completions_are_those_of_one_process(size: int, tmp_path: Path) -> None:
    found = {}
    for number in (1, size):
        launch("tests.pipeline.processes.sampling", number, tmp_path / str(number), str(tmp_path / f"{number}.json"))
        found[number] = json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8"))
    assert len({tuple(ids) for ids, *_ in found[1]}) > 10 and sum(bool(kept) for *_, kept in found[1]) == 28
    for (ids, logps, *same), (other_ids, other_logps, *others) in zip(found[1], found[size], strict=True):
        assert [ids, *same] == [other_ids, *others], "the same end, and drawn from the same tokens"
        assert other_logps == pytest.approx(logps, abs=1e-5)
    files = [f"{folder}/model.safetensors" for folder in ("one", "two", "three", "merged", "frozen")]
    for file in (*files, "lora/adapter_model.safetensors"):
        alone, shared = (load_file(tmp_path / f"{number}" / file) for number in (1, size))
        assert alone.keys() == shared.keys()
        assert all(torch.equal(alone[name], shared[name]) for name in alone), "the server gets the same weights"
    merged, frozen = (load_file(tmp_path / "1" / file) for file in files[-2:])
    assert sum(not torch.equal(merged[name], frozen[name]) for name in merged) == 2, "q_proj of both layers"
    one, other = (json.loads((tmp_path / f"{number}" / "probe.json").read_text()) for number in (1, size))
    assert other == pytest.approx(one, abs=1e-5) and len(one) == 2


def test_each_process_resumes_with_its_own_random_numbers(tmp_path: Path) -> None:
    launch("tests.pipeline.processes.random_states", 2, tmp_path)
