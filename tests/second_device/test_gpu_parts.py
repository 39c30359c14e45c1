"""The parts of `make gpu` run as on CUDA: in bf16, with attention over rows of any length and captured steps."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.gpu_parts.__main__ import PARTS
from benchmarks.gpu_parts.figures import Figures, read
from benchmarks.gpu_parts.sizes import SMALL
from posttrain.models.forward import kernels

COMPILED = ("compiled", "compiled, not deterministic", "compiled step of 2 rows")
"""Figures that need Triton."""


@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("G", "E")])
def test_a_part_runs_as_on_cuda(part: str, tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({part: {name: {"speed": 1.0} for name in COMPILED}}))
    figures = Figures(file, part, 300.0)
    import_module(f"benchmarks.gpu_parts.{PARTS[part].module}").run(figures, "cuda", SMALL.on("cuda"))
    found = read(file)[part]
    assert not figures.left and not [name for name, figure in found.items() if "failed" in figure]
    if part == "C" and kernels.liger() is not None:
        assert found["fused layers"]["speed"] > 0, "the layers of the benchmarks' models are fused as a run's are"
    if part == "A":
        assert found["attention backward of the case's rows, cut (1, 2) / free"]["ratio"] > 0
