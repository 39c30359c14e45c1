"""Tables of the Python page: the arguments of a function, the settings of a class, and its attributes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Final

from pydantic import BaseModel

GROUPS: Final = {
    "optimizer": "learning rate, schedule, weight decay, gradient clipping, and others",
    "device": "device, precision, attention and other settings of the models",
    "limits": "limits of metrics that end a run",
    "router": "losses and limits of a mixture of experts",
    "sampling": "temperature, top_p, max_tokens, and others",
    "rollout": "rounds, prompts per round, samples per prompt, the engine, and others",
    "objective": "the loss and its weights",
}
"""Settings that are a group: the keys of the group."""


@dataclass(frozen=True)
class Described:
    """A docstring, divided into its prose and the meaning of each argument."""

    prose: str
    meanings: dict[str, str]


def divided(docstring: str, names: Sequence[str]) -> Described:
    """Take the parts "argument: meaning." and "argument [shape]: meaning." out of a docstring.

    One part may describe several arguments.
    """
    one = rf"(?:{'|'.join(map(re.escape, names)) or '(?!)'})"
    piece = rf"{one}(?: \[[^\]]*\])?"
    begins = re.compile(rf"(?:^|(?<=[.:;)}}\]] ))((?:{piece}(?:, | and ))*{piece})(?:: |(?<=\])[;.,]? ?)")
    docstring = re.sub(r"(?<=\S)\s(Other\sarguments:\s)", r"\n\n\1", docstring)
    prose, meanings = [], {}
    for paragraph in docstring.split("\n\n"):
        if paragraph.startswith("Other") or all(line.startswith("    ") for line in paragraph.splitlines()):
            prose.append(paragraph)
            continue
        before, *parts = begins.split(" ".join(paragraph.split()))
        if before.strip():
            prose.append(paragraph if not parts else before.strip())
        for described, meaning in zip(parts[::2], parts[1::2], strict=True):
            for name, shape in re.findall(rf"({one})(?: (\[[^\]]*\]))?(?:, | and |$)", described):
                meanings[name] = ": ".join(part for part in (shape, meaning.strip()) if part)
    return Described("\n\n".join(prose), meanings)


def arguments(value: Any, meanings: Mapping[str, str], common: Mapping[str, str]) -> list[str]:
    """Rows of a function's arguments with type, default and meaning, which may come from `common`.

    The table is empty if no argument has a meaning.
    """
    rows, any_meaning = [], False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name == "self":
            continue
        default = "required" if parameter.default is parameter.empty else code(shown(parameter.default))
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            default = ""
        meaning = meanings.get(parameter.name) or common.get(parameter.name, "")
        any_meaning = any_meaning or bool(meaning)
        rows.append(row(code(parameter.name), code(str(parameter.annotation)), default, meaning))
    return table(("argument", "type", "default", "meaning"), rows if any_meaning else [])


def settings(value: type[BaseModel], known: Mapping[str, str]) -> list[str]:
    """Rows of the settings of a class with default and meaning, without the rows in `known`."""
    rows = [one for name, one in setting_rows(value).items() if known.get(name) != one]
    return table(("setting", "default", "meaning"), rows)


def setting_rows(value: type[BaseModel]) -> dict[str, str]:
    """Name of each setting -> its row."""
    rows = {}
    for name, field in value.model_fields.items():
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        rows[name] = row(code(name), default, field.description or GROUPS.get(name, ""))
    return rows


def shared_rows(values: Sequence[type[BaseModel]]) -> dict[str, str]:
    """Rows of the settings that all classes have with the same default and meaning."""
    first, *others = [setting_rows(value) for value in values]
    return {name: one for name, one in first.items() if all(other.get(name) == one for other in others)}


def attributes(value: Any) -> list[str]:
    """Rows of a dataclass's attributes. The string that follows an attribute in the source is its meaning."""
    rows = [row(code(name), meaning) for name, meaning in _attributes(value)] if is_dataclass(value) else []
    return table(("attribute", "meaning"), rows)


def _attributes(value: Any) -> Iterator[tuple[str, str]]:
    body = ast.parse(inspect.getsource(value)).body[0]
    assert isinstance(body, ast.ClassDef)
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            meaning = " ".join(str(text.value).split()) if isinstance(text, ast.Constant) else ""
            yield node.target.id, meaning


def table(titles: Sequence[str], rows: Sequence[str]) -> list[str]:
    """A Markdown table; empty without rows."""
    return [row(*titles), f"|{'---|' * len(titles)}", *rows] if rows else []


def row(*cells: str) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def code(text: str) -> str:
    """Text in code type."""
    return f"`{text}`"


def shown(default: Any) -> str:
    """Write a default without addresses, which differ from process to process."""
    return default.__name__ if isinstance(default, type) else "..." if callable(default) else repr(default)


def _default(default: Any) -> str:
    """Write a default as a person would write it; `posttrain params` lists the settings of a group."""
    return "a group" if isinstance(default, BaseModel) else code(repr(default))
