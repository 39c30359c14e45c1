"""The top-level key `seed` in params.yaml: the default seed of every run that trains or samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from posttrain.errors import ParamsError
from posttrain.pipeline.params.stage_table import STAGES
from posttrain.pipeline.workspace import PARAMS_FILE

SEED: Final = "seed"
SEED_MEANING: Final = "the seed of every run that trains or samples and has none of its own"
LARGEST: Final = 2**32 - 1
SEEDED: Final = tuple(stage.group for stage in STAGES if stage.seeded)


def shared_seed(settings: Mapping[str, Any], group: str, name: str) -> int | None:
    """Return the top-level seed that a run uses; None if the run sets a seed or there is no top-level seed."""
    section, _, inner = group.partition(".")
    run = (((settings.get(section) or {}).get(inner)) or {}).get(name) or {}
    if group not in SEEDED or SEED not in settings or (isinstance(run, Mapping) and SEED in run):
        return None
    return check_seed(settings[SEED])


def check_seed(seed: Any, file: str = PARAMS_FILE) -> int:
    """Return the seed if it is an integer that every generator accepts."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST:
        fix = f"Give a whole number from 0 to {LARGEST}"
        raise ParamsError(what=f"{SEED} = {str(seed)[:80]!r} is not a seed", where=file, fix=fix)
    return seed


def with_seed(settings: Mapping[str, Any], file: str = PARAMS_FILE) -> dict[str, Any]:
    """Return the sections of params.yaml, with `seed` added to every run that uses it."""
    sections = {name: section for name, section in settings.items() if name != SEED}
    if SEED not in settings:
        return sections
    check_seed(settings[SEED], file)
    for section, inner in (group.split(".") for group in SEEDED):
        runs = (sections.get(section) or {}).get(inner)
        if isinstance(runs, Mapping):
            seeded = {
                name: {SEED: settings[SEED], **run} if isinstance(run, Mapping) else run for name, run in runs.items()
            }
            sections[section] = {**sections[section], inner: seeded}
    return sections
