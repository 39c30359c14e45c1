"""Judge each program in a process that the user's command starts and isolates: bwrap, runsc, docker run.

The command starts a Python that reads this package and the program from its input and prints the verdict. It judges as
elsewhere: with the same limits, the program and its tests in separate processes, and additionally the kernel's
isolation inside.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from posttrain.sandbox import linux
from posttrain.sandbox.parent import STARTED_IN, Limits, Sandbox, SandboxError, SandboxFailed
from posttrain.sandbox.verdicts import Verdict, judged

PYTHON: Final = ("env", "PYTHONHASHSEED=0", "python3", "-s", "-B", "-c")
START: Final = """
import json, pathlib, sys, tempfile
given = json.load(sys.stdin)
with tempfile.TemporaryDirectory() as root:
    for name, text in given["package"].items():
        file = pathlib.Path(root, "posttrain", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    sys.path.insert(0, root)
    from posttrain.sandbox.command import judge_here
    judge_here(given)
"""
SHOWN: Final = 300


class Command:
    """The user's command, which isolates programs. It is started again for each program."""

    alive: Final = True

    def __init__(self, words: str) -> None:
        self.words = shlex.split(words)
        if not self.words or shutil.which(self.words[0]) is None:
            what = f"sandbox: '{words.partition(' ')[0]}' must be kernel, none or a command on this machine"
            raise SandboxError(what=what, fix="Install it, or correct `sandbox` (docs/rewards.md)")
        folder = Path(__file__).parent
        self._package = {f"sandbox/{file.name}": file.read_text(encoding="utf-8") for file in folder.glob("*.py")}
        self._package["__init__.py"] = ""
        self.mechanisms: list[str] = []
        """The kernel's mechanisms that isolate programs in addition, inside the command."""
        try:
            self.judge({"code": "print(1)", "cases": [["", "1"]], "share": False}, Limits())
        except SandboxFailed as error:
            fix = "The command has to run `env python3` (3.11 or newer) with /proc and a folder for temporary files"
            raise SandboxError(what=f"sandbox: {words}: {error}", fix=f"{fix} (docs/rewards.md)") from error

    def judge(self, request: Mapping[str, Any], limits: Limits) -> Verdict:
        """Run the tests in the request and return their verdict (see verdicts.judged)."""
        message = {"package": self._package, "request": request, "limits": asdict(limits)}
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"}  # no secrets of ours
        longest = 2 * STARTED_IN + len(request.get("cases", [1])) * (limits.wall + 1)
        try:
            done = subprocess.run(
                [*self.words, *PYTHON, START], input=json.dumps(message).encode(), capture_output=True,
                env=environment, timeout=longest, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise SandboxFailed(f"`{self.words[0]}` gave no verdict in {longest:.0f} seconds") from error
        try:
            reply = json.loads(done.stdout)
        except ValueError as error:
            said = done.stderr.decode(errors="replace").strip()[-SHOWN:]
            raise SandboxFailed(f"`{self.words[0]}` ended with status {done.returncode}: {said}") from error
        self.mechanisms = reply["mechanisms"]
        if "failed" in reply:
            raise SandboxFailed(reply["failed"])
        return Verdict(**reply["verdict"])

    def close(self) -> None:
        """Do nothing, because its processes end by themselves."""


def judge_here(message: Mapping[str, Any]) -> None:
    """Judge a program in this process, which the command has started, and print the verdict."""
    linux.prctl(linux.PR_SET_DUMPABLE, 0)  # a program must not read the tests in this process
    with Sandbox(refuses=False) as box:
        reply: dict[str, Any] = {"mechanisms": box.mechanisms}
        try:
            reply["verdict"] = asdict(judged(box, message["request"], Limits(**message["limits"])))
        except SandboxFailed as error:
            reply["failed"] = str(error)
    sys.stdout.write(json.dumps(reply))
