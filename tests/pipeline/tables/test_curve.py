"""Tables of metrics per step."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.tables.curve import read_curve, write_curve


def test_curves_come_back(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    write_curve(file, [{"step": 1, "loss": 0.5}, {"step": 2, "kl": 3.0}])
    assert file.read_text() == "step,loss,kl\n1,0.5,\n2,,3.0\n"
    assert read_curve(file) == {"step": [1.0, 2.0], "loss": [0.5, None], "kl": [None, 3.0]}
    file.write_text("step,loss\n1,nan\n")
    assert read_curve(file) == {"step": [1.0], "loss": [None]}


@pytest.mark.parametrize("text", ["step\n1,2\n", "step\na\n", None])
def test_what_is_no_curve(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match="not readable as a table of metrics"):
        read_curve(tmp_path / "a.csv")
