"""What a stage's `deps` in dvc.yaml have to be. Print them: python -m tests.architecture.deps STAGE [STAGE ...]"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache

from tests.architecture.sources import ROOT, home, modules, own_imports, tree

COMMAND = re.compile(r"python -m stages\.(?P<module>\w+)")


@cache
def needed(stage_module: str) -> dict[str, str]:
    """Path -> the import that needs it, for the stage's own file and everything below it that is ours.

    A sub-package counts as a whole: who imports one of its modules depends on the folder and all that its files import.
    """
    start = f"stages.{stage_module}"
    why = {start: "the stage itself", "stages": "a package runs before its modules"}
    queue = [*why]
    while queue:
        module = queue.pop()
        for found in sorted(own_imports(module, at_run_time=True)):
            for member in _with_siblings(found):
                if member not in why:
                    why[member] = f"{modules()[module].relative_to(ROOT)} imports {found}"
                    queue.append(member)
    paths: dict[str, str] = {}
    for module, reason in why.items():
        if path := _path(module):
            paths.setdefault(path, reason)
    return paths


def declared(stage: object) -> set[str]:
    """The code among the deps of a stage as DVC read it."""
    paths = {dep.def_path for dep in stage.deps if not type(dep).__name__.startswith("Params")}  # type: ignore[attr-defined]
    return {path.rstrip("/") for path in paths if path.split("/")[0] in ("posttrain", "stages", "flows")}


def _with_siblings(module: str) -> list[str]:
    """What comes with an import: the package above, and the whole sub-package."""
    package = module.partition(".")[0]
    members = [name for name in modules() if home(name) == home(module)] if _is_folder(home(module)) else [module]
    return [package, *members]


def _path(module: str) -> str | None:
    """The folder of a sub-package, the file of a module; None for a package whose __init__.py is empty."""
    top = home(module)
    if _is_folder(top):
        return top.replace(".", "/")
    return None if _is_bare_package(top) else modules()[top].relative_to(ROOT).as_posix()


def _is_folder(module: str) -> bool:
    return "." in module and modules()[module].name == "__init__.py"


def _is_bare_package(module: str) -> bool:
    file = modules()[module]
    return file.name == "__init__.py" and all(isinstance(node, ast.Expr) for node in tree(file).body)


def main(names: list[str]) -> int:
    known = sorted(name.removeprefix("stages.") for name in modules() if name.startswith("stages."))
    if not names or not set(names) <= set(known):
        print(
            f"usage: python -m tests.architecture.deps STAGE ...\nstages: {', '.join(known) or 'none yet'}",
            file=sys.stderr,
        )
        return 2
    for name in names:
        print(f"# {name}")
        for path in sorted(needed(name), key=lambda path: (not path.startswith("stages/"), path)):
            print(f"      - {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
