"""Count the house: `python -m benchmarks.structure` prints lines, files, rooms, arrows, commands, pages and words."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import FrameType

from benchmarks import ROOT
from posttrain.pipeline.commands.line import DOES
from tests.architecture.sources import home, modules, own_imports

APART = ("posttrain.answers", "posttrain.sandbox")
"""Rooms that import nothing of the library, counted by themselves."""
TOKENS = {"ids", "ids_N", "row", "rest", "columns", "token_T", "labels"}
"""Fields that hold token ids, or rows of them."""


def main() -> None:
    """Print a table of what is counted."""
    for name, count in {**counts(), **round_counts()}.items():
        print(f"| {name} | {count:,} |")


def counts() -> dict[str, int]:
    """Return each figure by its name."""
    library = {name: file for name, file in modules().items() if name.startswith("posttrain")}
    inside = {name: file for name, file in library.items() if home(name) not in APART}
    arrows = room_arrows()
    pages = list((ROOT / "docs").glob("*.md"))
    return {
        "lines of the library": _lines(inside.values()),
        "lines of answers and sandbox": _lines(library.values()) - _lines(inside.values()),
        "files of the library": len(library),
        "files at its top": len(list((ROOT / "posttrain").glob("*.py"))),
        "rooms (library, stages, flows)": len(arrows),
        "arrows between rooms": sum(map(len, arrows.values())),
        "levels": max(level(room) for room in arrows),
        "files that the miniature's GRPO run depends on": len(_code("online/grpo")),
        "commands": len(DOES),
        "pages to read": len(pages),
        "words on them": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "lines of tests": _lines((ROOT / "tests").rglob("*.py")),
    }


def round_counts() -> dict[str, int]:
    """Return what runs in one round of GRPO with the built-in decoder, from the samples to two updates."""
    import torch

    from posttrain.train.step import StepClosure
    from tests.library.models.tiny import tiny_folder
    from tests.pipeline.train.test_training import make_run

    torch.set_num_threads(1)
    files, classes, forms = set[str](), set[str](), set[str]()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        own = type(frame.f_locals.get("self"))
        name = {own.__qualname__} if own.__module__.startswith("posttrain") else set[str]()
        if (file := frame.f_code.co_filename).startswith(str(ROOT / "posttrain")):
            files.add(file)
            classes.update(name)
        if frame.f_code.co_name == "__init__" and TOKENS.intersection(getattr(own, "__annotations__", ())):
            forms.update(name)

    with tempfile.TemporaryDirectory() as place:
        run = make_run(tiny_folder(Path(place)), "grpo", Path(place))
        state = run.objective.initial_state()
        for step in range(4):
            sys.setprofile(called if step > 1 else None)  # the second round
            batch = run.models.add_scored_columns(run.source.batch(step), run.objective.needs)
            prepared = run.objective.prepare(batch.columns, state)
            run.update.step(
                StepClosure(run.objective, run.models, batch.with_prepared(prepared.step), state=prepared.state), 0.0
            )
            state = prepared.state
        sys.setprofile(None)
    return {
        "files of a round of GRPO": len(files),
        "classes of a round of GRPO": len(classes),
        f"forms of the tokens in it ({', '.join(sorted(forms))})": len(forms),
    }


@cache
def room_arrows() -> Mapping[str, frozenset[str]]:
    """Return room -> the rooms that it imports; a room is a folder or a single file of the library."""
    found: dict[str, set[str]] = {}
    for module in modules():
        found.setdefault(room(module), set()).update(room(other) for other in own_imports(module))
    return {room: frozenset(others - {room}) for room, others in found.items()}


@cache
def level(room: str) -> int:
    return 1 + max((level(other) for other in room_arrows()[room]), default=0)


def room(module: str) -> str:
    return home(module) if module.startswith("posttrain") else module.partition(".")[0]


def _lines(files: Iterable[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def _code(run: str) -> list[str]:
    return list(json.loads((ROOT / f"code/{run}.json").read_bytes())["files"])


if __name__ == "__main__":
    main()
