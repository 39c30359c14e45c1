"""Imports pandera's polars half without pandas and hypothesis, which it imports where they are installed.

Both are optional for pandera; without them each stage starts about half a second faster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["SchemaError", "SchemaErrorReason", "SchemaErrors", "ValidationDepth", "pa", "validation"]


class _Hidden:
    """An import finder that reports pandas and hypothesis as missing; pandera reads the message."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """Python's hook: None leaves the name to the other finders."""
        if name.partition(".")[0] in ("pandas", "hypothesis"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


@contextmanager
def _hidden() -> Iterator[None]:
    sys.meta_path.insert(0, _Hidden)
    try:
        yield
    finally:
        sys.meta_path.remove(_Hidden)


with _hidden():
    import pandera.polars as pa
    from pandera.config import ValidationDepth, config_context
    from pandera.errors import SchemaError, SchemaErrorReason, SchemaErrors


@contextmanager
def validation(depth: ValidationDepth) -> Iterator[None]:
    """Validation to this depth, whatever pandera's environment variables say.

    pandera imports its other modules at the first validation. That is not done here at import: it would start polars'
    threads, which do not survive a fork.
    """
    with _hidden(), config_context(validation_enabled=True, validation_depth=depth):
        yield
