"""pandera as this project needs it, for polars alone.

Where pandas and hypothesis are installed pandera imports them too, which costs every stage a quarter of a second before
its first step. It is made to work without them, so they are kept from its sight while it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["SchemaError", "SchemaErrorReason", "SchemaErrors", "ValidationDepth", "pa", "validating"]

UNUSED = ("pandas", "hypothesis")


class _Absent:
    """An import finder for which some packages are not there."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Nothing for other packages, and for these the error that a missing one gives."""
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return None


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """Packages that are not imported yet cannot be imported inside."""
    absent = _Absent(*names)
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


with _without(*UNUSED):
    import pandera.polars as pa
    from pandera.config import ValidationDepth, config_context
    from pandera.errors import SchemaError, SchemaErrorReason, SchemaErrors


@contextmanager
def validating(depth: ValidationDepth) -> Iterator[None]:
    """Validation to this depth, whatever pandera's environment variables say.

    pandera imports the rest of itself at the first one, so the packages have to stay out of its sight here too; doing
    the first one when this module is imported would start polars' threads, which do not outlive a fork.
    """
    with _without(*UNUSED), config_context(validation_enabled=True, validation_depth=depth):
        yield
