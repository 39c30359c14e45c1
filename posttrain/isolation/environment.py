"""Python environments of other tools with their own packages: find them and run code in them.

Run as a program in such an environment, it calls the function `answer` of a file: JSON in, JSON out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PROBE_S: Final = 60.0
"""Seconds that a Python may take to report a package's version."""
TAIL: Final = 20
"""The number of output lines in an error."""


class ChildError(Exception):
    """The program failed. The message is the end of its output."""


def fault(python: str, packages: Sequence[str], shown: str, version: str) -> str | None:
    """Return the reason why a Python cannot be used, found without importing the package; None if it can.

    `version`: the prefix of supported versions, or the oldest supported one with a +, e.g. `0.30+`.
    """
    if shutil.which(python) is None:
        return f"there is no Python at {python}"
    command = probe(python, packages)
    try:
        asked = subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{python} does not work as a Python ({error!r:.200})"
    return version_fault(python, asked.stdout.strip(), shown, version)


def probe(python: str, packages: Sequence[str]) -> list[str]:
    """Return a command that prints the version of the first of these packages that is installed."""
    code = (
        "from importlib.metadata import distributions; "
        f"print(*(one.version for name in {tuple(packages)} for one in distributions(name=name)))"
    )
    return [python, "-c", code]


def version_fault(python: str, installed: str, shown: str, version: str) -> str | None:
    """Return the reason why the version found by `probe` cannot be used; None if it can."""
    if not installed:
        return f"{shown} is missing in the environment of {python}"
    oldest = version.removesuffix("+")
    if not (installed.startswith(version) if oldest == version else _numbers(installed) >= _numbers(oldest)):
        return f"{python} has {shown} {installed}, but posttrain supports {version}"
    return None


def _numbers(version: str) -> list[int]:
    """Return the first numbers of a version: `0.31.0rc1` -> [0, 31, 0]."""
    return [int(number) for number in re.findall(r"(?:^|\.)(\d+)", version.partition("+")[0])]


def answer_of(python: str, file: Path, request: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of a file's `answer` for a request in that Python.

    The Python process ends with this process.
    """
    with tempfile.TemporaryDirectory(prefix="posttrain-") as place:
        asked, answered, printed = (Path(place, name) for name in ("request.json", "answer.json", "log"))
        asked.write_text(json.dumps(request), encoding="utf-8")
        command = [python, "-I", __file__, str(file), str(asked), str(answered)]  # -I: nothing of ours is imported
        with printed.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=dict(environment))
            try:
                status = process.wait()
            finally:
                process.kill()
        if status or not answered.is_file():
            last = printed.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").strip().splitlines()
            raise ChildError("\n".join([f"status {status}", *last[-TAIL:]]))
        answer: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
        return answer


def _end_with_parent() -> None:
    """Exit when the parent ends. The parent holds stdin open and never writes to it."""
    with contextlib.suppress(OSError):
        os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = runpy.run_path(sys.argv[1])["answer"]
    result = answer(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    Path(sys.argv[3]).write_text(json.dumps(result), encoding="utf-8")
