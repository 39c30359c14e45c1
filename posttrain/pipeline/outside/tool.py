"""Another tool in a separate environment, because it needs different package versions than posttrain."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import EngineError
from posttrain.isolation.environment import ChildError, answer_of, fault
from posttrain.pipeline.workspace import main_root


@dataclass(frozen=True)
class Tool:
    """A package and its environment."""

    package: str
    shown: str
    version: str
    """Prefixes of the supported versions."""
    name: str
    """NAME in `make env-NAME` and .venv-NAME."""

    @property
    def variable(self) -> str:
        """The environment variable that selects another Python."""
        return f"POSTTRAIN_{self.name.upper().replace('-', '_')}"

    def python(self, where: str) -> str:
        """Return its Python. Reject an environment without the package."""
        python = os.environ.get(self.variable) or str(main_root() / f".venv-{self.name}/bin/python")
        if wrong := fault(python, [self.package], self.shown, self.version):
            make = f"Make the environment of {self.shown} with `make env-{self.name}`"
            fix = f"{make}, or name its Python: {self.variable}=/path/to/bin/python"
            raise EngineError(what=wrong, where=where, fix=fix)
        return python

    def answer(self, child: Any, asked: Mapping[str, Any], where: str, fix: str, **variables: str) -> dict[str, Any]:
        """Run the function `answer` of one of our modules in that environment, and return its result."""
        try:
            return answer_of(self.python(where), Path(child.__file__), asked, {**os.environ, **variables})
        except ChildError as error:
            raise EngineError(what=f"{self.shown} failed: {error}", where=where, fix=fix) from error
