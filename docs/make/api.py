"""docs/reference/api.md from the docstrings of the public names: `python -m docs.make.api` writes it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from posttrain import api, losses, rewards, tasks
from posttrain.numerics import fix_numerics

PAGE = Path("docs/reference/api.md")
HEAD = """# posttrain in Python

<!-- Written by `python -m docs.make.api` from the docstrings; do not edit. -->

The names on this page are public, and the only ones that our pages and examples import. They change only with a line in
the changelog; anything else may change at any time.
`examples/` has programs that use them: `grpo.py`, `sft.py`, `dpo_own_trainer.py`, `grpo_loop.py`, and for models of
other kinds `diffusion_dpo.py`, `mdpo.py` and `group_preferences.py`.
"""


def page() -> str:
    """The whole page."""
    sections = [HEAD, *_module("posttrain", api), *_module("posttrain.losses", losses)]
    sections += [*_module("posttrain.rewards", rewards), *_module("posttrain.tasks", tasks)]
    return "\n".join(sections)


def _module(name: str, module: ModuleType) -> Iterator[str]:
    import posttrain

    yield f"## {name}\n"
    yield _text(inspect.getdoc(posttrain if module is api else module))
    if module is api:
        yield from entry(f"{name}.fix_numerics", fix_numerics)
    for public in module.__all__:
        yield from entry(f"{name}.{public}", getattr(module, public))


def entry(name: str, value: Any) -> Iterator[str]:
    """Yield the heading, the signature and the docstring of a name."""
    yield f"### {name.rpartition('.')[2]}\n"
    if isinstance(value, type):
        yield _text(inspect.getdoc(value))
        if attributes := list(_attributes(value)):
            yield "\n".join(attributes) + "\n"
    elif not callable(value):
        yield f"`{value}`\n"
    else:
        yield f"```python\n{_signature(name, value)}\n```\n"
        yield _text(inspect.getdoc(value))


def _attributes(value: Any) -> Iterator[str]:
    """Describe each attribute by the string that follows it in the source, if there is one."""
    body = ast.parse(inspect.getsource(value)).body[0]
    assert isinstance(body, ast.ClassDef)
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and is_dataclass(value):
            said = after.value if isinstance(after, ast.Expr) else None
            text = f": {inspect.cleandoc(str(said.value))}" if isinstance(said, ast.Constant) else ""
            yield f"- `{node.target.id}`{' '.join(text.split(chr(10)))}"


def _signature(name: str, value: Any) -> str:
    """One parameter per line where the signature is long."""
    signature = inspect.signature(value)
    lines: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in lines:
            lines.append("*")
        default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
        lines.append(f"{parameter.name}: {parameter.annotation}{default}")
    short = f"{name}({', '.join(lines)}) -> {signature.return_annotation}"
    if len(short) <= 100:
        return short
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {signature.return_annotation}"


def _shown(default: Any) -> str:
    """Write a default without addresses, which differ from process to process."""
    return default.__name__ if isinstance(default, type) else "..." if callable(default) else repr(default)


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
