"""What made a checkpoint: code, packages and the CPU's instructions; and how it differs from what would resume it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, TypeGuard

from posttrain import code
from posttrain.measure.record import cpu_isa
from posttrain.outlines import Outlines
from posttrain.stage_table import stage_of
from posttrain.workspace import PARAMS_FILE

Maker = dict[str, dict[str, str]]
"""`files` and `packages` as in code/STAGE/RUN.json, and `cpu`."""
_OUTLINES: Final = Outlines()


def maker(name: str) -> Maker:
    """What a run would make a checkpoint with now; `name` is that of its model, `online@grpo`."""
    settings = code.read_params() if Path(PARAMS_FILE).is_file() else {}
    stage = stage_of(settings, name.replace("@", "/")).replace("/", "@", 1)
    library = code.Library(_OUTLINES)
    found = library.code(stage, settings)
    library.outlines.keep()
    return {**found, "cpu": {"cpu_isa": cpu_isa()}}


def is_maker(found: Any) -> TypeGuard[Maker]:
    """Whether it has the form of a maker."""
    return (
        isinstance(found, dict)
        and found.keys() == {"files", "packages", "cpu"}
        and all(
            isinstance(part, dict) and all(isinstance(one, str) for pair in part.items() for one in pair)
            for part in found.values()
        )
    )


def read_maker(file: Path, key: str | None = None) -> Maker | None:
    """The maker that a JSON file holds, as a whole or under a key; None where it holds none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        found = found if key is None else found[key]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found if is_maker(found) else None


def differences(old: Maker, new: Maker) -> list[str]:
    """What differs, in words: files, packages with both versions, instructions."""
    was, now = old["cpu"]["cpu_isa"], new["cpu"]["cpu_isa"]
    return [*code.differences(old, new), *([f"cpu_isa {was} -> {now}"] if was != now else [])]
