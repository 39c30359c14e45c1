"""Checkpoints whose files are not what a run wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import CheckpointError
from posttrain.train.checkpoint import read_checkpoint


@pytest.mark.parametrize(
    "sums", ["[]", "5", "null", '"a"', "{}", '{"tensors-x": 5}', "[" * 5000, "\x00", '{"state.json": []}']
)
def test_sums_of_another_shape_are_damage(tmp_path: Path, sums: str) -> None:
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    for name in ("state.json", "tensors.safetensors"):
        (folder / name).write_text("[]")
    (folder / "sums.json").write_text(sums)
    with pytest.raises(CheckpointError, match="step-00000001: "):
        read_checkpoint(folder, "mark")
