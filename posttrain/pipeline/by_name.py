"""Start stages and flows by name. Only this file imports them.

A checkout has them as top-level folders: `stages.sft`, `flows.pipeline`. An installed posttrain contains them:
`posttrain.pipeline.stages.sft`. So a project may have its own packages called `stages` or `flows`.
"""

from __future__ import annotations

import re
import runpy
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

from posttrain.errors import ParamsError
from posttrain.isolation.library import LIBRARY

INSIDE: Final = Path(__file__).parent
IS_INSTALLED: Final = (INSIDE / "stages" / "__init__.py").is_file()
STAGES: Final = f"{__package__}.stages" if IS_INSTALLED else "stages"
"""The package of the stages."""
FLOWS: Final = f"{__package__}.flows" if IS_INSTALLED else "flows"
"""The package of the flows."""
TOY_TASKS: Final = INSIDE / "toy_tasks"
"""The toy tasks. In a checkout this is a link to the top-level folder `tasks`."""
LOADED: Final[tuple[Path, ...]] = (LIBRARY / "posttrain", *(() if IS_INSTALLED else (LIBRARY / "stages", TOY_TASKS)))
"""Folders with code that a stage can load. A walk through `posttrain` does not follow the link."""
BASES: Final = {base: folder for folder in LOADED for base in (folder, folder.resolve())}
PACKAGE: Final[tuple[Path, ...]] = (*LOADED, *(() if IS_INSTALLED else (LIBRARY / "flows",)))
"""Folders of all code in this package."""
STAGE_COMMAND: Final = re.compile(r"python -m stages\.(\w+)")
"""The command of a stage in a checkout's dvc.yaml. In a project it is `posttrain run STAGE`."""
CODE_OF_CHECKOUT: Final = "      - posttrain\n      - stages\n      - tasks\n"
"""The lines in a checkout's dvc.yaml for its code. In a project, posttrain.lock replaces them."""


def place_of(file: Path) -> Path | None:
    """Return a loaded file's path relative to a folder of `LOADED` (links resolved or not); None if it is outside."""
    for base, folder in BASES.items():
        if file.is_relative_to(base):
            return folder / file.relative_to(base)
    return None


def stage(name: str) -> ModuleType:
    """Import a stage, which sets the CPU's instruction set. Call this before importing torch."""
    return _imported(f"{STAGES}.{name}")


def prepare_process() -> None:
    """Apply the settings that a stage makes before torch is imported: CPU instructions, threads and variables."""
    _imported(STAGES)


def run_stage(name: str, words: Sequence[str]) -> None:
    """Run a stage in this process, as `python -m` does."""
    _find_checkout()
    sys.argv[1:] = words
    runpy.run_module(f"{STAGES}.{name}", run_name="__main__", alter_sys=True)


def flow(name: str) -> ModuleType:
    """Import a module of the flows."""
    return _imported(f"{FLOWS}.{name}")


def run_flow(module: ModuleType, arguments: Namespace) -> NoReturn:
    """Run a command of the flows with its arguments, and exit with its exit code."""
    if arguments.json:
        name = f"posttrain {arguments.command}"
        fix = "Remove it; `posttrain show results --json` and `posttrain compare --json` print the results"
        if arguments.command == "sweep":
            fix = "Add `--plan` for the plan; `posttrain compare SWEEP --json` prints the results"
        raise ParamsError(what=f"`{name}` does not print JSON", where="--json", fix=fix)
    raise SystemExit(module.run(arguments))


def flows_package(root: Path) -> str:
    """Return the package of the flows for a process that starts in a project or in the checkout."""
    return "flows" if root.resolve() == LIBRARY and not IS_INSTALLED else f"{__package__}.flows"


def is_sweep(words: Sequence[str]) -> bool:
    """Tell whether a command line may belong to a sweep, started directly or by a deployment."""
    engines = ("prefect.engine", "prefect.flow_engine")
    module = any(word in ("flows.sweep", f"{__package__}.flows.sweep", *engines) for word in words)
    return module or any(Path(first).name == "posttrain" and word == "sweep" for first, word in pairwise(words))


def _imported(module: str) -> ModuleType:
    _find_checkout()
    return import_module(module)


def _find_checkout() -> None:
    """Make a checkout's folders importable when posttrain works in another folder."""
    if not IS_INSTALLED and str(LIBRARY) not in (str(Path(place).resolve()) for place in sys.path):
        sys.path.insert(0, str(LIBRARY))
