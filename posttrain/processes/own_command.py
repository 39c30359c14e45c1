"""A command of the user's as the work of a stage: what it is given, what it prints, and how it fails."""

from __future__ import annotations

import codecs
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from posttrain.errors import ParamsError, PipelineError
from posttrain.isolation.command import run_command
from posttrain.workspace import PARAMS_FILE

PASSED: Final = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)  # fmt: skip
"""Variables that every command gets; the others it gets only if its run names them."""
LAST_LINES: Final = 5
"""Lines of the output that an error has."""


def run_own(
    command: str | Sequence[str], given: Mapping[str, str], env: Sequence[str], folder: Path, section: str
) -> None:
    """Run a command and print what it prints; raise with its last lines if it fails.

    It has {NAME} and POSTTRAIN_NAME for each of `given`, and the variables of this process that `env` names. It writes
    in `folder`, which is removed if this process is killed.
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
    """What a command prints, printed by this process as it comes."""

    def __init__(self) -> None:
        self.last = deque[str](maxlen=LAST_LINES)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def show(self, part: bytes) -> None:
        """Print whole lines: the values of secrets are hidden in each text that is printed."""
        *lines, self._rest = re.split(r"(?<=[\r\n])", self._rest + self._decoder.decode(part))
        print(*lines, sep="", end="", flush=True)
        self.last.extend(line.strip() for line in lines if line.strip())

    def end(self) -> None:
        """Print the last line, which may not have ended."""
        if self._rest:
            self.show(b"\n")


def _filled(word: str, given: Mapping[str, str]) -> str:
    """Return a word with its places filled in; other braces stay, as a shell or a JSON has them."""
    return re.sub(r"\{(\w+)\}", lambda found: given.get(found[1], found[0]), word)


def _environment(given: Mapping[str, str], env: Sequence[str], section: str) -> dict[str, str]:
    for name in env:
        if name not in os.environ:
            fix = "Set it where you start the pipeline, or remove its name there"
            what = f"the environment variable {name} is not set"
            raise ParamsError(what=what, where=f"{section}.env ({PARAMS_FILE})", fix=fix)
    kept = {name: os.environ[name] for name in (*PASSED, *env) if name in os.environ}
    # no files of bytecode, which would change a folder that the run depends on
    own = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **own, **{f"POSTTRAIN_{name.upper()}": value for name, value in given.items()}}
