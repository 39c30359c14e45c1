"""Keys of earlier versions and their places now: a table for the errors that name the new place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Rename:
    """A key of a run, dotted from the run's settings; a mapping that moves to a choice becomes its options."""

    old: str
    new: str
    shown: str = ""
    """The new place in words, where `new` does not say it."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Old values and their names now; other values are left where they are."""


_SELECT: Final = (Rename("select.rule", "select.type"),)
_ALLOW: Final = Rename("experimental", "allow_unsupported")
POLICY: Final = (
    Rename(
        "surrogate",
        "surrogate",
        values={"pessimistic": "ppo_clip", "weight": "cispo", "score": "reinforce", "unclipped": "importance"},
    ),
    Rename("ratio", "surrogate", "surrogate: gspo, which takes the ratio of whole sequences", {"sequence": "gspo"}),
    Rename("clip", "surrogate", "surrogate.low and surrogate.high"),
    Rename("baseline_decay", "advantage.decay"),
    Rename("mixture", "advantage.mixture"),
    Rename("win_scale", "advantage.scale"),
    *(Rename(key, f"advantage.{key}") for key in ("gamma", "lam", "value_coef", "value_clip")),
    Rename("kl.place", "kl.type"),
    Rename("penalty.kind", "penalty.type"),
    Rename("trpo", "update", "update: {type: trpo, delta: ...}"),
    _ALLOW,
)
PREFERENCE: Final = (
    *(Rename(key, f"loss.{key}") for key in ("beta", "label_smoothing", "gamma", "delta", "desirable", "undesirable")),
    _ALLOW,
)
SAMPLED: Final = (*PREFERENCE, *_SELECT)
DISTILL: Final = (Rename("beta", "divergence.beta"),)
DEVICE: Final = (Rename("replay", "cuda_graphs"),)
SCRATCH: Final = (Rename("spread", "init_std"),)
SECTIONS: Final = {
    "prepare": "Use data.tasks, data.files or data.hub",
    "pairs": "Use data.samples, or data.files for comparisons of your own",
    "report": "Remove it: the report has no settings",
}
"""Sections that are gone, and what takes their place."""


def keys(renames: tuple[Rename, ...]) -> dict[str, str]:
    """Old key of a run -> its place now, in words."""
    return {
        rename.old: rename.shown or rename.new
        for rename in renames
        if rename.old != rename.new and "." not in rename.old
    }


def inside(renames: tuple[Rename, ...], setting: str) -> dict[str, str]:
    """Old names of a setting's options and of its values -> their names now."""
    head = f"{setting}."
    options = {
        rename.old.removeprefix(head): rename.new.removeprefix(head)
        for rename in renames
        if rename.old.startswith(head)
    }
    values = {
        old: new for rename in renames if rename.old == rename.new == setting for old, new in rename.values.items()
    }
    return options | values
