"""Chat templates, rendered in a child process: a template that loops or fills the memory ends only that process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from posttrain.text import template_worker


class RenderRequest(NamedTuple):
    """A conversation to render."""

    messages: Sequence[Mapping[str, Any]]
    opened: bool
    """add_generation_prompt: whether to end with the start of an answer."""
    tools: Sequence[Any] | None = None


BATCH = 256
"""Most conversations sent to the child at a time."""
BATCH_CHARACTERS = 1_000_000
"""Most characters sent at a time, so that long conversations fit the child's memory."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as the template renders it."""

    text: str
    dated: bool
    """Whether the template asked for today's date, and got the fixed one."""
    blocks: list[tuple[int, int]]
    """Where its `{% generation %}` blocks lie in the text."""


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

    def ask(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The child's answers, one for each conversation; one error where the child died."""
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
                if not whole:  # it died, or we were interrupted: the next request needs a new child
                    self.stop()
            answers: list[dict[str, Any]] = json.loads(answer) if whole else [{"error": _exit_reason(child.returncode)}]
            return answers

    def stop(self) -> None:
        """End the child."""
        if self._child is None or self._owner != os.getpid():
            return
        child, self._child = self._child, None
        child.kill()
        child.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        child.wait()


PROCESS = TemplateProcess()
atexit.register(PROCESS.stop)


@dataclass(frozen=True)
class Template:
    """A chat template, with its special tokens and the date that `strftime_now` returns."""

    source: str
    specials: Mapping[str, Any]
    date: str

    def render(self, requests: Sequence[RenderRequest]) -> Iterator[Rendered]:
        """The conversations in their order; an error says what the template does wrong with the next one."""
        for part in _batches(requests):
            conversations = [
                {"messages": list(one.messages), "add_generation_prompt": one.opened, "tools": one.tools}
                for one in part
            ]
            shared = {"template": self.source, "specials": dict(self.specials), "date": self.date}
            answers = PROCESS.ask({**shared, "conversations": conversations})
            if len(answers) < len(part):  # one of them ended the child: find it by rendering one at a time
                answers = [PROCESS.ask({**shared, "conversations": [one]})[0] for one in conversations]
            for answer in answers:
                if "error" in answer:
                    raise RenderError(answer["error"])
                yield Rendered(**answer)


class RenderError(Exception):
    """A template failed or broke a limit."""


def _exit_reason(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"it takes longer than {template_worker.SECONDS:.0f} s for one conversation"
    return f"it ended the process that renders it (exit status {code})"


def _batches(requests: Sequence[RenderRequest]) -> Iterator[list[RenderRequest]]:
    part: list[RenderRequest] = []
    size = 0
    for one in requests:
        part.append(one)
        size += sum(len(turn["content"]) for turn in one.messages)
        if len(part) == BATCH or size >= BATCH_CHARACTERS:
            yield part
            part, size = [], 0
    if part:
        yield part
