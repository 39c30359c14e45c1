"""Tests with a right and a wrong program."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Case:
    """Tests, a right program, and a change that makes it wrong."""

    name: str
    tests: str
    right: str
    change: tuple[str, str]
    """A piece of the right program, and what stands there in the wrong one."""
    entry: str | None = None
    setup: str = ""
    error: str = ""
    """Why these tests can judge no program; empty if they can."""

    def __post_init__(self) -> None:
        for name in ("tests", "right", "setup"):
            object.__setattr__(self, name, dedent(getattr(self, name)).strip("\n"))

    @property
    def wrong(self) -> str:
        """The wrong program."""
        return self.right.replace(*self.change)
