"""docs/api.md from the docstrings of the public names: `python -m tests.api.page` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from posttrain import api, losses

PAGE = Path("docs/api.md")
HEAD = """# posttrain in Python

<!-- Written by `python -m tests.api.page` from the docstrings; do not edit. -->

The names on this page are public. They change only with a line in the changelog; anything else may change at any time.
`examples/` has three programs that use them: `sft.py`, `dpo_own_trainer.py` and `grpo_loop.py`.
"""


def page() -> str:
    """The whole page."""
    sections = [HEAD, *_module("posttrain", api), *_module("posttrain.losses", losses)]
    return "\n".join(sections)


def _module(name: str, module: ModuleType) -> Iterator[str]:
    import posttrain

    yield f"## {name}\n"
    yield _text(inspect.getdoc(posttrain if module is api else module))
    for public in module.__all__:
        yield from _entry(f"{name}.{public}", getattr(module, public))


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name.rpartition('.')[2]}\n"
    if is_dataclass(value):
        yield _text(inspect.getdoc(value))
        yield "\n".join(_attributes(value)) + "\n"
    else:
        yield f"```python\n{_signature(name, value)}\n```\n"
        yield _text(inspect.getdoc(value))


def _attributes(value: Any) -> Iterator[str]:
    """Each attribute with the string that follows it in the source."""
    lines = inspect.getsource(value).splitlines()
    for field in fields(value):
        place = next(place for place, line in enumerate(lines) if line.strip().startswith(f"{field.name}:"))
        yield f"- `{field.name}`: {lines[place + 1].strip().strip(chr(34))}"


def _signature(name: str, value: Any) -> str:
    """One parameter per line where the signature is long."""
    signature = inspect.signature(value)
    lines: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in lines:
            lines.append("*")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{parameter.name}: {parameter.annotation}{default}")
    short = f"{name}({', '.join(lines)}) -> {signature.return_annotation}"
    if len(short) <= 100:
        return short
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {signature.return_annotation}"


def _text(docstring: str | None) -> str:
    """Docstring as Markdown: an indented block is code, and a first line stands alone."""
    assert docstring, "a public name has no docstring"
    parts = []
    for part in docstring.split("\n\n"):
        code = all(line.startswith("    ") for line in part.splitlines())
        parts.append(f"```python\n{inspect.cleandoc(part)}\n```" if code else part)
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} written")
