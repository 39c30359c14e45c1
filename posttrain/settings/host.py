"""Facts about the program that uses the library: the place of settings, secret variables, folders.

Each has a default. The pipeline sets all of them in posttrain/pipeline/__init__.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


def _no_folder() -> Path | None:
    return None


@dataclass
class Host:
    """The program that uses the library."""

    settings_file: str = "settings"
    """The name of the settings' place in errors; for the pipeline, its file."""
    secret_names: Callable[[], Iterable[str]] = tuple
    """Returns the names of secret environment variables that do not look like secrets by name."""
    cache: Callable[[], Path | None] = _no_folder
    """Returns the folder for caches, e.g. of tokenized rows; None: no caching."""
    root: Callable[[], Path] = Path
    """Returns the folder with other tools' environments, e.g. `.venv-vllm`."""
    fixes: Mapping[str, str] = field(default_factory=dict)
    """Topic of an error -> a sentence with the program's command for it, e.g. `reward`: how to try a reward."""

    def fix(self, topic: str, plain: str) -> str:
        """Return a fix with the program's command, or the plain fix."""
        return self.fixes.get(topic, plain)


HOST = Host()
