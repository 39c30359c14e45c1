"""What made a checkpoint: code, packages and the CPU's instructions; and how it differs from what would resume it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

from posttrain.measure.record import cpu_isa, versions
from posttrain.train.run_code import code_digest, run_code

Maker = dict[str, dict[str, str]]


def maker(stage: str) -> Maker:
    """What this process would make a checkpoint with."""
    return {"code": run_code(stage), "versions": versions(), "cpu": {"cpu_isa": cpu_isa()}}


def present(made: Maker) -> Maker:
    """The same files as they are in this workspace, and the packages as they are installed."""
    code = {name: code_digest(Path(name)) for name in made["code"] if Path(name).is_file()}
    return {"code": code, "versions": versions(), "cpu": {"cpu_isa": cpu_isa()}}


def is_maker(found: Any) -> TypeGuard[Maker]:
    """Whether it has the form of a maker."""
    return (
        isinstance(found, dict)
        and found.keys() == {"code", "versions", "cpu"}
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
    """Files by name, packages with both versions.

    A file that only one of them has does not count: whoever imports it has changed, or loaded it later.
    """
    files = [name for name, digest in new["code"].items() if old["code"].get(name, digest) != digest]
    others = [
        f"{name} {old[part][name]} -> {value}"
        for part in ("versions", "cpu")
        for name, value in new[part].items()
        if old[part].get(name, value) != value
    ]
    return files + others
