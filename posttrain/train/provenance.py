"""The maker of a checkpoint: code, packages, CPU instructions and the GPU; and how two makers differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeGuard

from posttrain.measure.record import cpu_isa, noted, read_record, versions
from posttrain.params.stage_table import stage_of
from posttrain.params.yaml_files import read_yaml
from posttrain.pipeline import code_manifest
from posttrain.pipeline.code_digest import Outlines
from posttrain.workspace import PARAMS_FILE

Maker = dict[str, dict[str, str]]
"""`files` and `packages` as in code/STAGE/RUN.json, and `cpu`: its instructions, and what the run's GPU is."""
GPU: Final = ("gpu", "driver", "cuda")
"""What a process that computes on a GPU notes of it."""
_OUTLINES: Final = Outlines()


def stage_maker(name: str) -> Maker:
    """Return the maker of a checkpoint that the run would save now; `name`: e.g. `online@grpo`."""
    settings = read_yaml(PARAMS_FILE) if Path(PARAMS_FILE).is_file() else {}
    stage = stage_of(settings, name.replace("@", "/")).replace("/", "@", 1)
    library = code_manifest.Library(_OUTLINES)
    used = library.code(stage, settings)
    library.outlines.keep()
    return {**used, "cpu": _hardware()}


def library_maker(module: str) -> Maker:
    """Return the maker of a checkpoint that a module of the library saves, without a stage."""
    return {"files": code_manifest.Library(_OUTLINES).closure(module), "packages": versions(), "cpu": _hardware()}


def _hardware() -> dict[str, str]:
    return {"cpu_isa": cpu_isa()} | {fact: str(noted(fact)) for fact in GPU if noted(fact)}


def is_maker(value: Any) -> TypeGuard[Maker]:
    """Return whether a value of a JSON file is a maker."""
    return (
        isinstance(value, dict)
        and value.keys() - {"settings"} == {"files", "packages", "cpu"}
        and all(
            isinstance(part, dict) and all(isinstance(text, str) for pair in part.items() for text in pair)
            for part in value.values()
        )
    )


def read_maker(file: Path, key: str | None = None) -> Maker | None:
    """Return the maker in a JSON file, or under a key of it; None if there is none."""
    found = read_record(file)
    value = found if key is None else found.get(key)
    return value if is_maker(value) else None


def differences(old: Maker, new: Maker) -> list[str]:
    """The differences, as text: files, packages with both versions, CPU instructions, and the GPU if both have one."""
    was, now = old["cpu"], new["cpu"]
    known = [fact for fact in ("cpu_isa", *GPU) if fact in was and fact in now]
    return [
        *code_manifest.differences(old, new),
        *(f"{fact} {was[fact]} -> {now[fact]}" for fact in known if was[fact] != now[fact]),
    ]
