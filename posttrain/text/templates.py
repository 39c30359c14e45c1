"""Chat templates rendered in a child process: one that loops or fills the memory ends that process and not the run."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.text import template_worker


@dataclass(frozen=True)
class Rendered:
    """A conversation as the template writes it."""

    text: str
    dated: bool
    """Whether the template asked for today's date, and got the fixed one."""


class TemplateProcess:
    """The child process; it starts in the background, and again after a template ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Any = None
        self._owner = 0

    def start(self) -> Any:
        """The running child, started if there is none, without waiting for it."""
        if self._child is not None and self._owner == os.getpid() and self._child.poll() is None:
            return self._child
        command = [sys.executable, "-P", str(template_worker.__file__)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._owner = os.getpid()  # a forked process must not share the pipes
        return self._child

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The child's answer; `error` where the template failed or ended the child."""
        with self._lock:
            child, answer = self.start(), ""
            try:
                child.stdin.write(json.dumps(request) + "\n")
                child.stdin.flush()
                answer = child.stdout.readline()
            except BrokenPipeError:
                answer = ""
            finally:
                whole = answer.endswith("\n")
                if not whole:  # it died, or we were interrupted: the next question needs a new child
                    self.stop()
            found: dict[str, Any] = json.loads(answer) if whole else {"error": _death(child.returncode)}
            return found

    def stop(self) -> None:
        """End the child."""
        if self._child is None or self._owner != os.getpid():
            return
        child, self._child = self._child, None
        child.terminate()
        child.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        child.wait()


PROCESS = TemplateProcess()
atexit.register(PROCESS.stop)


def render(
    template: str, messages: Sequence[Mapping[str, str]], *, generation: bool, specials: Mapping[str, Any], date: str
) -> Rendered:
    """The conversation by the template; an error says what the template did wrong."""
    values = {**specials, "messages": list(messages), "add_generation_prompt": generation}
    answer = PROCESS.ask({"template": template, "date": date, "values": values})
    if "error" in answer:
        raise RenderError(answer["error"])
    return Rendered(**answer)


class RenderError(Exception):
    """A template failed or broke a limit."""


def _death(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"it takes longer than {template_worker.SECONDS:.0f} s for one conversation"
    return f"it ended the process that renders it (exit status {code})"
