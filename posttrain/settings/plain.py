"""Plain settings data (merge, flatten, search for texts), and format versions of posttrain's files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from posttrain.errors import PosttrainError

TABLES: Final = 2
MODELS: Final = 2
CHECKPOINTS: Final = 3
PARAMS: Final = 2
NONE: Final = "none"
"""The value of an optional input that is not used."""
CUSTOM: Final = Path("custom")
"""The folder of the user's modules."""
UPGRADE: Final = "Version 0.1 wrote it, and posttrain no longer reads that version (docs/versions.md)"


def check_format(given: object, known: int, where: str, error: type[PosttrainError]) -> None:
    """Reject a format from a newer posttrain. The reader decides about older formats."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise error(what=f"format = {given!r:.40} is not a format version", where=where, fix=f"Use {known}")
    if given > known:
        what = f"made by a newer posttrain (format {given}; this one reads formats up to {known})"
        raise error(what=what, where=where, fix="Update posttrain, or use the version that made it")


def flattened(value: Any, prefix: str = "") -> dict[str, str]:
    """Return dotted key -> value as text, for nested settings."""
    if isinstance(value, Mapping) and value:
        parts = (flattened(inner, f"{prefix}.{key}" if prefix else str(key)) for key, inner in value.items())
        return {key: text for part in parts for key, text in part.items()}
    return {prefix: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `over` merged into `base`, mapping by mapping. Other values are replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in nested settings, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for part in pair for text in texts_in(part))
    elif isinstance(value, Sequence):
        yield from (text for item in value for text in texts_in(item))
