"""Render chat templates in a process with limits on time, memory and length, because templates are foreign code.

It reads JSON lines, each with a template and conversations, and answers each with a line: {"text", "dated", "blocks"}
or {"error"} for every conversation. It is started as a file and imports nothing from the library. Its jinja environment
equals transformers'.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
import traceback
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS: Final = 5.0
"""CPU seconds for one conversation. Most take less than a millisecond."""
MEMORY: Final = 512 * 2**20
LONGEST: Final = 100_000
"""Maximum number of characters of markup that a template may add to a conversation."""
FAILURES: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""A template is a program, which can fail in any way that programs can."""


class Generation(Extension):
    """`{% generation %}` blocks, which mark trained text. They are rendered in place, and their places are recorded."""

    tags = {"generation"}  # noqa: RUF012

    def begin(self) -> list[str]:
        """Return the list that collects the rendered text piece by piece."""
        self.pieces: list[str] = []
        self.blocks: list[tuple[int, int]] = []
        self._texts: list[str] = []
        return self.pieces

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return the code node of a call that records the block and returns its text."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("note"), [], [], body).set_lineno(line)

    def note(self, caller: Any) -> str:
        """Return the block's text. Its place is after all text written before it."""
        text: str = caller()
        start = sum(map(len, self.pieces))
        self.blocks.append((start, start + len(text)))
        self._texts.append(text)
        return text

    def check(self, text: str) -> None:
        """Reject blocks that were not written where they were recorded, e.g. in a macro, which writes later."""
        if [text[slice(*block)] for block in self.blocks] != self._texts:
            raise jinja2.TemplateError("a {% generation %} block is inside a macro, set or filter")


class Namespace(jinja2.utils.Namespace):
    """jinja's namespace without names that begin with an underscore, which could escape the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that a template can set `self`
        values = dict(*args[1:], **kwargs)
        for name in values:
            Namespace._check(name)
        jinja2.utils.Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


class Dict:
    """`dict` for templates, without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return a dictionary with equal values."""
        return dict.fromkeys(*args)


@functools.cache
def compiled(template: str) -> jinja2.Template:
    """Return the template in transformers' environment."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "dict": Dict(), "namespace": Namespace}
    return environment.from_string(template)


def render(template: str, date: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a conversation's text, whether the template asked for the date, and its generation blocks."""
    asked = []

    def strftime_now(form: str) -> str:
        asked.append(form)
        return datetime.fromisoformat(date).strftime(form)

    try:
        parsed = compiled(template)
        generation: Any = parsed.environment.extensions[Generation.identifier]
        pieces = generation.begin()
        for piece in parsed.generate(values, strftime_now=strftime_now, documents=None):
            pieces.append(piece)
        text = "".join(pieces)
        generation.check(text)
    except MemoryError:
        return {"error": f"it needs more than {MEMORY >> 20} MiB of memory"}
    except FAILURES as error:
        found_at = _line(error)
        what = str(error)[:200] if type(error) is jinja2.TemplateError else f"{error!r:.200}"
        return {"error": f"{what} (line {found_at} of the template)" if found_at else what}
    longest = LONGEST + 10 * (len(str(values["messages"])) + len(str(values["tools"])))
    if len(text) > longest:
        return {"error": f"it writes {len(text):,} characters for one conversation, more than {longest:,}"}
    return {"text": text, "dated": bool(asked), "blocks": generation.blocks}


def main() -> None:
    """Answer until stdin ends. SIGPROF ends the process if a conversation takes too long."""
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle, whose end is ours
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin:
        request = json.loads(line)
        answers = []
        for values in request["conversations"]:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            answers.append(render(request["template"], request["date"], {**request["specials"], **values}))
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answers), flush=True)


def _line(error: BaseException) -> int | None:
    """Return the template line of an error, from jinja or from the template's frames in the traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return getattr(error, "lineno", None) or (lines[-1] if lines else None)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(  # the arguments are those of transformers
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Return plain JSON. jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


if __name__ == "__main__":
    main()
