"""A row of an algorithm table: a name, where it comes from, the formula, and the knobs in which it differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from posttrain.params import Params, merge

K = TypeVar("K", bound=Params)

Readers = Mapping[str, tuple[str, frozenset[str] | None]]
"""knob -> (the knob that decides whether it is read, the values with which it is; None: whenever it is set)."""


@dataclass(frozen=True)
class Row(Generic[K]):
    """One algorithm: its knobs, where it comes from, and the formula in a line."""

    name: str
    paper: str
    formula: str
    knobs: Mapping[str, Any]

    def lay(self, model: type[K], readers: Readers, over: Mapping[str, Any]) -> dict[str, Any]:
        """The row's knobs with some replaced; what the row set for a formula that was replaced falls away."""
        merged = merge(self.knobs, over)
        for path in unread(merge(model().model_dump(), merged), readers):
            merged = _without(merged, path, over)
        return merged


def unread(knobs: Mapping[str, Any], readers: Readers) -> dict[str, str]:
    """The knobs that nothing reads under these settings, each with the reason."""
    found = {}
    for path, (decider, values) in readers.items():
        decided = _at(knobs, decider)
        if decided is not None if values is None else decided in list(values):  # a list, for what cannot be hashed
            continue
        wanted = "is set" if values is None else f"is {' or '.join(sorted(values))}"
        found[path] = f"'{path}' is read only where {decider} {wanted}, and {decider} is {decided or 'null'} here"
    return found


def ignored(knobs: Params, readers: Readers) -> list[str]:
    """One line for each knob that was changed and that nothing reads."""
    given = set(_given(knobs))
    return [
        f"{reason}. Remove {path}"
        for path, reason in unread(knobs.model_dump(), readers).items()
        if any(one == path or one.startswith(f"{path}.") for one in given)
    ]


def flat(knobs: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of each leaf."""
    for key, value in knobs.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _given(knobs: Params, prefix: str = "") -> Iterator[str]:
    """The leaves that were set to something else than their default, which is what nothing reads in silence."""
    for name in sorted(knobs.model_fields_set):
        value = getattr(knobs, name)
        if isinstance(value, Params):
            yield from _given(value, f"{prefix}{name}.")
        elif value != type(knobs).model_fields[name].get_default(call_default_factory=True):
            yield f"{prefix}{name}"


def _at(knobs: Mapping[str, Any], path: str) -> Any:
    value: Any = knobs
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _without(knobs: Mapping[str, Any], path: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs without one, except for what `kept` holds of it."""
    key, _, rest = path.partition(".")
    copy = dict(knobs)
    if key not in copy:
        return copy
    mine = kept.get(key)
    if rest and isinstance(copy[key], Mapping):
        copy[key] = _without(copy[key], rest, mine if isinstance(mine, Mapping) else {})
        if not copy[key] and key not in kept:
            del copy[key]
    elif key not in kept:
        del copy[key]
    elif isinstance(copy[key], Mapping) and isinstance(mine, Mapping):
        copy[key] = dict(mine)
    return copy
