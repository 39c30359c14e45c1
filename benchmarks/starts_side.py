"""One stage with its start measured: python -c THIS_TEXT FILE STAGE [RUN]. It writes CPU seconds by phase into FILE.

It is given to Python as a text, so that the stage's code is that of the working folder, whatever checkout that is of.
"""

from __future__ import annotations

import builtins
import importlib
import json
import runpy
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROCESS = ("posttrain.pipeline.processes.stage", "posttrain.processes.stage")
"""Where stages are run; the second is the place until November 2026."""
marks: dict[str, float] = {"late imports": 0.0}
"""CPU seconds: when imports end, when the work begins and ends; and what imports take during the work."""


def main(file: str, stage: str, *arguments: str) -> None:
    """Run the stage as `python -m stages.STAGE` does."""
    import stages  # noqa: F401  # first, as in a stage
    from posttrain.measure.phases import CLOCK

    process: Any = importlib.import_module(next(name for name in PROCESS if find_spec(name.rpartition(".")[0])))
    CLOCK.begin = after("imports", CLOCK.begin)  # type: ignore[method-assign]
    process.inputs.fix = after("before", process.inputs.fix)
    process.inputs.check_imports = before("work", process.inputs.check_imports)
    builtins.__import__ = counted(builtins.__import__)
    importlib.import_module = counted(importlib.import_module)
    if hasattr(late := sys.modules.get("posttrain.late_imports"), "run"):
        late.run = counted(late.run)  # type: ignore[union-attr]  # a module runs when it is used
    end = process.left

    def ended(name: str) -> str:
        line: str = end(name)
        Path(file).write_text(json.dumps(marks), encoding="utf-8")
        return line

    process.left = ended
    sys.argv = [stage, *arguments]
    runpy.run_module(f"stages.{stage}", run_name="__main__", alter_sys=True)


def after(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which notes when it ends."""

    def noted(*arguments: Any) -> Any:
        found = work(*arguments)
        marks[name] = time.process_time()
        return found

    return noted


def before(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which notes when it begins."""

    def noted(*arguments: Any) -> Any:
        marks[name] = time.process_time()
        return work(*arguments)

    return noted


inner: list[str] = []
"""The import that is being counted."""


def counted(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return an import function that counts the seconds of outermost imports during the work."""

    def importing(*arguments: Any, **options: Any) -> Any:
        if inner or "before" not in marks or "work" in marks:
            return load(*arguments, **options)
        inner.append("")
        began = time.process_time()
        try:
            return load(*arguments, **options)
        finally:
            inner.clear()
            marks["late imports"] += time.process_time() - began

    return importing


if __name__ == "__main__":
    main(*sys.argv[1:])
