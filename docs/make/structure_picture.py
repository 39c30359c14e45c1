"""The picture of docs/reports/structure.md: which room imports how many names of which, before and now.

    python -m docs.make.structure_picture

Rooms are sorted from the ground up, so an import that points up lies right of the diagonal.
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = ROOT / "docs/reports/structure.svg"
BEFORE: Final = "6a910039"
LIBRARY: Final = (
    "answers", "formulas", "sandbox", "isolation", "files", "measure", "settings", "text", "data", "distributed",
    "algorithms", "models", "tasks", "laws", "rewards", "losses", "train", "sampling", "evaluate", "supervised",
    "online", "api",
)  # fmt: skip
"""The rooms of the library, from the ground up."""
PIPELINE: Final = ("pipeline", "plugins", "stages", "flows")
MOVED: Final = frozenset(
    {"checks", "commands", "compare", "lineage", "outside", "params", "processes", "report", "runs", "serve", "tables",
     "track", "workspace", "init"}
)  # fmt: skip
"""Rooms that lay next to the library's before, and are in `pipeline` now."""
GROUND: Final = frozenset({"errors", "extras", "locks", "numerics", "rollout", "renames"})
"""Single modules, which count as `files`."""


def room_of(module: str) -> str | None:
    """Return the room of a module; None outside the project."""
    top, *rest = module.split(".")
    if top in ("stages", "flows"):
        return top
    if top != "posttrain" or not rest:
        return None
    return "pipeline" if rest[0] in MOVED else "files" if rest[0] in GROUND else rest[0]


def counted(commit: str) -> Counter[tuple[str, str]]:
    """Return how many names each room imports from each other one."""
    listed = _git("ls-tree", "-r", "--name-only", commit, "posttrain", "stages", "flows").splitlines()
    found: Counter[tuple[str, str]] = Counter()
    for name in (name for name in listed if name.endswith(".py") and "template" not in name):
        mine = room_of(name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
        for node in ast.walk(ast.parse(_git("show", f"{commit}:{name}"))):
            if mine is not None and isinstance(node, ast.ImportFrom) and (other := room_of(node.module or "")):
                found[mine, other] += len(node.names)
    return found


def picture() -> dict[str, Any]:
    """Return both matrices as one figure of Vega-Lite."""
    rooms, rows = [*LIBRARY, *PIPELINE], []
    for title, commit in ((f"before ({BEFORE})", BEFORE), ("now", "HEAD")):
        for (mine, other), names in counted(commit).items():
            if mine in rooms and other in rooms and mine != other:
                wrong = mine in LIBRARY and other in PIPELINE
                rows.append({"when": title, "room": mine, "from": other, "names": names, "wrong": wrong})
    axis = {"labelFontSize": 11, "titleFontSize": 12}
    cell = {
        "x": {"field": "from", "type": "nominal", "sort": rooms, "scale": {"domain": rooms},
              "axis": {**axis, "title": "imported room", "labelAngle": -60, "grid": False, "zindex": 0}},
        "y": {"field": "room", "type": "nominal", "sort": rooms, "scale": {"domain": rooms},
              "axis": {**axis, "title": "room that imports", "grid": False, "zindex": 0}},
    }  # fmt: skip
    colour = {
        "field": "wrong", "type": "nominal",
        "scale": {"domain": [False, True], "range": ["#8fb3d9", "#d9534f"]},
        "legend": {"title": "the library imports the pipeline", "labelExpr": "datum.value ? 'yes' : 'no'",
                   "orient": "bottom"},
    }  # fmt: skip
    layers = [
        {"mark": {"type": "rect"}, "encoding": {**cell, "color": colour}},
        {
            "mark": {"type": "text", "fontSize": 10, "fontWeight": "bold"},
            "encoding": {**cell, "text": {"field": "names"}},
        },
    ]
    panel = {"width": 520, "height": 520, "layer": layers}
    facet = {"field": "when", "type": "nominal", "title": None, "sort": [f"before ({BEFORE})", "now"],
             "header": {"labelFontSize": 14, "labelFontWeight": "bold"}}  # fmt: skip
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json", "background": "white",
        "data": {"values": rows}, "facet": {"column": facet}, "spec": panel,
    }  # fmt: skip


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Write the picture."""
    import vl_convert

    PICTURE.write_text(str(vl_convert.vegalite_to_svg(picture(), vl_version="5.20")), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
