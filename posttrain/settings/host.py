"""What the program around the library tells it: where settings come from, which variables are secret, where files lie.

Each has a default for a program that tells nothing. The pipeline sets all of them in posttrain/params/__init__.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


def _no_folder() -> Path | None:
    return None


@dataclass
class Host:
    """The program around the library."""

    settings_file: str = "settings"
    """What errors call the place of the settings: the pipeline's file."""
    secret_names: Callable[[], Iterable[str]] = tuple
    """Returns names of environment variables whose values are secret, next to those with the name of a secret."""
    cache: Callable[[], Path | None] = _no_folder
    """Returns the folder for what can be computed again, as tokenized rows; None: nothing is cached."""
    root: Callable[[], Path] = Path
    """Returns the folder in which environments of other tools lie, as `.venv-vllm`."""


HOST = Host()
