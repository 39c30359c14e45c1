"""Run the user's own command as a stage: its inputs, its output, and its errors."""

from __future__ import annotations

import codecs
import os
import re
import shutil
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import Field

from posttrain.errors import ParamsError, PipelineError
from posttrain.files import is_outside
from posttrain.isolation.command import run_command
from posttrain.isolation.library import PASSED
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import Params

LAST_LINES: Final = 5
"""The number of output lines in an error."""


class OwnCommand(Params):
    """The user's own command and its inputs."""

    command: str | list[str] = Field(
        min_length=1,
        description="a shell command line, or a list of words; {start}, {data}, {out}, {metrics} and {seed} are "
        "replaced",
    )
    script: str = Field(
        min_length=1, description="the file or folder with the command's code; if it changes, the run must run again"
    )
    env: list[str] = Field(
        [], description="additional environment variables for the command; their values are not stored"
    )
    seed: int = Field(0, ge=0, description="the seed that the command gets")


@contextmanager
def written_by(params: OwnCommand, section: str, output: Path, start: Path | None, data: Path | None) -> Iterator[Path]:
    """Run the command and yield a temporary folder with its files, `out` and `metrics.csv`.

    The folder is next to `output`, the run's own folder.
    """
    if is_outside(params.script):
        where = f"{section}.script = {params.script} ({PARAMS_FILE})"
        raise ParamsError(what="it is outside the workspace", where=where, fix="Copy it into the workspace")
    scratch = output.with_name(f".{output.name}.scratch.tmp")
    shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed together with its keeper
    out = scratch / "out"
    out.mkdir(parents=True)
    given = {
        "start": "" if start is None else str(start),
        "data": "" if data is None else str(data),
        "out": str(out),
        "metrics": str(scratch / "metrics.csv"),
        "seed": str(params.seed),
    }
    try:
        run_own(params.command, given, params.env, scratch, section)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_own(
    command: str | Sequence[str], given: Mapping[str, str], env: Sequence[str], folder: Path, section: str
) -> None:
    """Run a command and print its output. Raise with its last lines if it fails.

    {NAME} and POSTTRAIN_NAME are set for each of `given`, and the variables in `env` are passed on. The command writes
    into `folder`, which is removed if this process is killed.
    """
    words = ["sh", "-c", command] if isinstance(command, str) else command
    printed = _Printed()
    status = run_command(
        [_filled(word, given) for word in words], _environment(given, env, section), folder, printed.show
    )
    printed.end()
    if status:
        said = "".join(f"\n  {text}" for text in printed.last) or " nothing"
        what, fix = (
            f"exit status {status}. It printed last:{said}\n",
            "Fix it; the log of the stage in logs/ has all lines",
        )
        raise PipelineError(what=what, where=f"{section}.command ({PARAMS_FILE})", fix=fix)


class _Printed:
    """The output of a command, printed by this process as it arrives."""

    def __init__(self) -> None:
        self.last = deque[str](maxlen=LAST_LINES)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def show(self, part: bytes) -> None:
        """Print complete lines. A carriage return from the command redraws the line."""
        said = (self._rest + self._decoder.decode(part)).replace("\r\n", "\n")
        *lines, self._rest = re.split(r"(?<=\n)|(?=\r)", said)
        for line in lines:
            sys.stdout.write(line)
        sys.stdout.flush()
        self.last.extend(line.strip() for line in lines if line.strip())

    def end(self) -> None:
        """Print the last line, even if it is incomplete."""
        if self._rest:
            self.show(b"\n")


def _filled(word: str, given: Mapping[str, str]) -> str:
    """Return a word with its placeholders filled in. Other braces stay, e.g. for a shell or JSON."""
    return re.sub(r"\{(\w+)\}", lambda match: given.get(match[1], match[0]), word)


def _environment(given: Mapping[str, str], env: Sequence[str], section: str) -> dict[str, str]:
    for name in env:
        if name not in os.environ:
            fix = "Set it where you start the pipeline, or remove its name there"
            what = f"the environment variable {name} is not set"
            raise ParamsError(what=what, where=f"{section}.env ({PARAMS_FILE})", fix=fix)
    passed = {name: os.environ[name] for name in (*PASSED, *env) if name in os.environ}
    # no files of bytecode, which would change a folder that the run depends on
    fixed = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**passed, **fixed, **{f"POSTTRAIN_{name.upper()}": value for name, value in given.items()}}
