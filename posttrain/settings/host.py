"""What the program around the library tells it: where settings come from, which variables are secret, where files lie.

Each has a default for a program that tells nothing. The pipeline sets all of them in posttrain/pipeline/__init__.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
    fixes: Mapping[str, str] = field(default_factory=dict)
    """Topic of an error -> the sentence that names the program's command for it, e.g. `reward`: how to try one."""

    def fix(self, topic: str, plain: str) -> str:
        """Return how to fix an error: by the program's command, or in plain words."""
        return self.fixes.get(topic, plain)


HOST = Host()
