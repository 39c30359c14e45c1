"""Render chat templates in a child process. A template that loops or fills the memory ends only that process."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from posttrain.isolation.child import Child, DiedError
from posttrain.text import template_worker


class RenderRequest(NamedTuple):
    """A conversation to render."""

    messages: Sequence[Mapping[str, Any]]
    opened: bool
    """add_generation_prompt: whether the text ends with the start of an answer."""
    tools: Sequence[Any] | None = None
    variables: Mapping[str, Any] = {}
    """More variables for the template, e.g. enable_thinking."""


OWN_NAMES: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "strftime_now"}
    | {"raise_exception", "dict", "namespace", "range", "lipsum", "cycler", "joiner", "loop", "self", "caller"}
)
"""Names that mean something else in every template."""
BATCH = 256
"""Maximum number of conversations sent to the child at a time."""
BATCH_CHARACTERS = 1_000_000
"""Maximum number of characters sent at a time, so that long conversations fit the child's memory."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as rendered by the template."""

    text: str
    dated: bool
    """True if the template asked for today's date and got the fixed one."""
    blocks: list[tuple[int, int]]
    """The places of its `{% generation %}` blocks in the text."""


class TemplateProcess:
    """The child process. It starts in the background, and starts again after a template has ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None

    def start(self) -> Child:
        """Return the running child. Start it if there is none, without waiting."""
        if self._child is None or not self._child.alive:
            command = [sys.executable, "-P", str(template_worker.__file__)]
            self._child = Child(command, os.environ, silent=True)
        return self._child

    def ask(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the child's answers, one per conversation, or a single error if the child died."""
        with self._lock:
            try:
                answers: list[dict[str, Any]] = self.start().ask(request)
            except DiedError as error:
                self.stop()
                return [{"error": _exit_reason(error.code)}]
            except BaseException:  # an interrupt: the next request needs a new child
                self.stop()
                raise
            return answers

    def stop(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()


PROCESS = TemplateProcess()


@dataclass(frozen=True)
class Template:
    """A chat template with its special tokens and the date that `strftime_now` returns."""

    source: str
    specials: Mapping[str, Any]
    date: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables of every conversation. A conversation's own variables take precedence."""

    def render(self, requests: Sequence[RenderRequest]) -> Iterator[Rendered]:
        """Yield the conversations in order. An error explains why the template fails on the next conversation."""
        for part in _batches(requests):
            conversations = [
                {
                    **self.variables,
                    **request.variables,
                    "messages": list(request.messages),
                    "add_generation_prompt": request.opened,
                    "tools": request.tools,
                }
                for request in part
            ]
            shared = {"template": self.source, "specials": dict(self.specials), "date": self.date}
            answers = PROCESS.ask({**shared, "conversations": conversations})
            if len(answers) < len(part):  # one of them ended the child: find it by rendering one at a time
                answers = [
                    PROCESS.ask({**shared, "conversations": [conversation]})[0] for conversation in conversations
                ]
            for answer in answers:
                if "error" in answer:
                    raise RenderError(answer["error"])
                yield Rendered(**answer)


def variables_fault(variables: Any) -> str | None:
    """Return the reason why a value cannot be the variables of a template; None if it can."""
    if not isinstance(variables, Mapping):
        return "give an object, e.g. {enable_thinking: false}"
    for name, value in variables.items():
        if not isinstance(name, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):
            return f"{name!r:.40} is not a name; give a letter, then letters, digits and _"
        if name in OWN_NAMES or name.endswith("_token"):
            return f"{name} means something else in a template; rename it"
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return f"{name} = {value!r} is a text, which templates treat as true; write {value.lower()} without quotes"
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return (
                f"{name} = {value!r:.40} is not a JSON value; give a text, a number, true, false, a list or an object"
            )
    return None


def reads(template: str, name: str) -> bool:
    """Tell whether a template uses a variable."""
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def with_defaults(template: str, variables: Mapping[str, Any]) -> str:
    """Return the template with defaults for variables that are not given."""
    defaults = (
        f"{{% if {name} is not defined %}}{{% set {name} = {value!r} %}}{{% endif %}}"
        for name, value in variables.items()
    )
    return "".join(defaults) + template


class RenderError(Exception):
    """A template failed or broke a limit."""


def _exit_reason(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"rendering takes longer than {template_worker.SECONDS:.0f} s for one conversation"
    return f"it ended the process that renders it (exit status {code})"


def _batches(requests: Sequence[RenderRequest]) -> Iterator[list[RenderRequest]]:
    part: list[RenderRequest] = []
    size = 0
    for request in requests:
        part.append(request)
        size += sum(len(turn["content"]) for turn in request.messages)
        if len(part) == BATCH or size >= BATCH_CHARACTERS:
            yield part
            part, size = [], 0
    if part:
        yield part
