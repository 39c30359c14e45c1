"""The maker of a checkpoint: code, packages, CPU instructions and GPU; and the differences of two makers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeGuard

from posttrain.isolation.library import LIBRARY
from posttrain.measure.record import cpu_isa, noted, read_record, versions

Maker = dict[str, dict[str, str]]
"""`files` and `packages`: as in code/STAGE/RUN.json. `cpu`: its instructions, and the run's GPU."""
GPU: Final = ("gpu", "driver", "cuda")
"""The fact that a process on a GPU records about it."""


def library_maker() -> Maker:
    """Return the maker of checkpoints saved by a library call, without a stage."""
    return {"files": _library_files(), "packages": versions(), "cpu": hardware()}


@cache
def _library_files() -> dict[str, str]:
    """Return path -> digest of the library's files, without the pipeline and plugins."""
    files = sorted(LIBRARY.glob("posttrain/**/*.py"))
    named = {file.relative_to(LIBRARY).as_posix(): file for file in files}
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        for name, file in named.items()
        if not name.startswith(("posttrain/pipeline/lock/", "posttrain/plugins/"))
    }


def hardware() -> dict[str, str]:
    """Return the CPU's instructions, and the GPU of this process."""
    return {"cpu_isa": cpu_isa()} | {fact: str(noted(fact)) for fact in GPU if noted(fact)}


def is_maker(value: Any) -> TypeGuard[Maker]:
    """Tell whether a JSON value is a maker."""
    return (
        isinstance(value, dict)
        and value.keys() - {"settings"} == {"files", "packages", "cpu"}
        and all(
            isinstance(part, dict) and all(isinstance(text, str) for pair in part.items() for text in pair)
            for part in value.values()
        )
    )


def read_maker(file: Path, key: str | None = None) -> Maker | None:
    """Return the maker in a JSON file, or at a key in it; None if there is none."""
    record = read_record(file)
    value = record if key is None else record.get(key)
    return value if is_maker(value) else None


def differences(old: Maker, new: Maker) -> list[str]:
    """Return the differences as text: files, packages with versions, CPU instructions, and the GPU if both have one."""
    was, now = old["cpu"], new["cpu"]
    known = [fact for fact in ("cpu_isa", *GPU) if fact in was and fact in now]
    return [
        *code_differences(old, new),
        *(f"{fact} {was[fact]} -> {now[fact]}" for fact in known if was[fact] != now[fact]),
    ]


def code_differences(old: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the differences between two versions of a run's code, as text."""
    words = []
    for file in sorted(old["files"].keys() | new["files"].keys()):
        was, is_now = old["files"].get(file), new["files"].get(file)
        if was != is_now:
            words.append(f"{file} {'changed' if was and is_now else 'is used now' if is_now else 'is no longer used'}")
    for kind in ("packages", "settings"):
        before, after = old.get(kind, {}), new.get(kind, {})
        for name in sorted(before.keys() | after.keys()):
            was, is_now = before.get(name, "not used"), after.get(name, "not used")
            if was != is_now:
                words.append(f"{name} {was} -> {is_now}")
    return words
