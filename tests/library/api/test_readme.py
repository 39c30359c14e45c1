"""The README's program for the library alone runs as it is printed, with a tiny model in place of the real one."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

import posttrain

ROOT = Path(__file__).resolve().parents[3]
SECTION = "## In Python, without the pipeline"


def test_the_program_prints_a_falling_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    from tiny import model_and_tokenizer

    model, tokenizer = model_and_tokenizer(None, 0)
    for part in (model, tokenizer):
        part.save_pretrained("my/smollm2")
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition(SECTION)[2]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    program = program.replace("5e-5", "1e-2")  # a tiny random model learns at a higher rate
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "README.md", "exec"), {})
    losses = [float(line.split()[1]) for line in printed.getvalue().splitlines() if line.endswith("#")]
    assert len(losses) > 3 and losses[-1] < losses[0] / 2
    assert posttrain.load_model("out/model") and "tiny" in sys.modules
