"""What commands print at 80 columns, and what those import that compute nothing."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from posttrain.measure.text_table import folded
from posttrain.pipeline.commands.line import DOES, overview
from posttrain.pipeline.commands.line import parser as posttrain_parser
from tests.marks import slow_except
from tests.pipeline.commands.test_help import PARSERS, commands

PRINTS = (
    "params online",
    "params online/grpo",
    "params metrics",
    "params algorithms",
    "params grpo",
    "params nothing",
    "checkpoints",
    "status",
    "show",
    "show timings",
    "check",
    "plan",
    "compare",
    "compare dpo grpo",
    "why grpo.score",
    "where nothing",
    "reward test format --table results/grpo/rollouts.parquet",
    "push grpo --to hf:me/it --dry-run",
    "promote grpo --as champion",
    "completion bash",
    "completion zsh",
)
"""Commands that end by themselves and write nothing outside of the workspace."""
LIGHT = ("checkpoints", "status", "show timings", "repair", "completion bash show results --against", "--version")
HEAVY = {"torch", "transformers", "pandas", "polars", "pandera", "datasets", "prefect", "pydantic"}
IMPORTED = """
import contextlib, io, sys
from posttrain.__main__ import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
print(*sys.modules)
"""


def words(line: str, limit: int = 80) -> bool:
    """Whether a line fits; a single word, as a path or a digest, cannot be folded."""
    return len(line) <= limit or len(line.split()) <= 2


def test_help_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = [one for parser in (lambda: posttrain_parser(*DOES), *PARSERS) for one in commands(parser())]
    texts = [overview(), *(one.format_help() for one in found)]
    assert not [line for text in texts for line in text.splitlines() if not words(line)]


def test_a_line_is_folded_below_its_second_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    assert folded("  key  one two three four") == "  key  one two three\n       four"
    assert folded("    one two three four five") == "    one two three four\n    five"
    assert folded("\x1b[32mone two three four five") == "\x1b[32mone two three four five"
    assert folded("x" * 40) == "x" * 40
    monkeypatch.setenv("COLUMNS", "80")
    assert folded("  key  one two three four") == "  key  one two three four"


def posttrain(workspace: Path, line: str, program: str = "") -> subprocess.CompletedProcess[str]:
    from tests.workspace import ROOT, environment

    start = ["-c", program] if program else ["-m", "posttrain"]
    env = {**environment(), "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *start, *line.split()]
    return subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("line", slow_except(("show timings",), PRINTS))
def test_what_a_command_prints_fits_80_columns(line: str, smoke_workspace: Path) -> None:
    done = posttrain(smoke_workspace, line)
    assert "Traceback" not in done.stderr
    lines = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr).splitlines()
    assert lines and not [one for one in lines if not words(one)]


@pytest.mark.slow
@pytest.mark.parametrize("line", LIGHT)
def test_what_computes_nothing_imports_no_library_that_does(line: str, smoke_workspace: Path) -> None:
    done = posttrain(smoke_workspace, line, IMPORTED)
    assert done.stdout and not HEAVY & set(done.stdout.split()), done.stderr


@pytest.mark.parametrize("line", ["check", "params nothing", "compare nothing", "plan nothing"])
def test_a_terminal_says_at_once_what_a_command_does(line: str, smoke_workspace: Path) -> None:
    """Before anything is computed; the text is gone once there is an answer, and is in no file or pipe."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "posttrain", *line.split()]
    child = subprocess.Popen(command, cwd=smoke_workspace, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    chunks = []
    with contextlib.suppress(OSError):  # Linux says so when the other side has closed it
        while chunk := os.read(ours, 65536):
            chunks.append(chunk.decode())
    os.close(ours)
    child.wait()
    doing = import_module(f"posttrain.pipeline.commands.{line.split(maxsplit=1)[0]}").DOING
    assert chunks[0] == f"{doing} ..."
    assert "".join(chunks[1:]).startswith("\r\033[2K") and len("".join(chunks)) > len(doing) + 20
    assert doing not in posttrain(smoke_workspace, line).stderr
