"""Groups trainings into settings (the same parameters, other seeds), and names each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.compare.evaluated import EvaluatedPolicy

Flat = Mapping[str, str]
LONGEST = 70


@dataclass(frozen=True)
class Setting:
    """One setting with its trainings."""

    label: str
    trained: list[EvaluatedPolicy]


def is_seed(key: str) -> bool:
    """Return whether a key is a seed."""
    return key.rpartition(".")[2] == "seed"


def differing(found: Sequence[Flat]) -> list[str]:
    """Return the keys in which flat settings differ, without seeds, in the order of the file."""
    keys = dict.fromkeys(key for flat in found for key in flat)
    return [key for key in keys if not is_seed(key) and len({flat.get(key) for flat in found}) > 1]


def grouped(found: Sequence[EvaluatedPolicy]) -> tuple[list[Setting], list[str]]:
    """Return the settings, each with its trainings, and notes for the reader."""
    alike: dict[tuple[str | None, ...], list[EvaluatedPolicy]] = {}
    compared = [_compared(policy, found) for policy in found]
    keys = differing(compared)
    if len({policy.policy for policy in found}) > 1:
        keys = ["policy", *(key for key in keys if key != "policy")]
    for evaluated, flat in zip(found, compared, strict=True):
        alike.setdefault(tuple(flat.get(key) for key in keys), []).append(evaluated)
    notes: list[str] = []
    settings: list[Setting] = []
    for values, trained in alike.items():
        label = _label(keys, values, trained)
        distinct = _distinct(trained)
        if len(distinct) < len(trained):
            notes.append(f"{label}: of {len(trained)} trainings only {len(distinct)} differ; equal ones count once")
        settings.append(Setting(label, distinct))
    return settings, notes


def _compared(policy: EvaluatedPolicy, found: Sequence[EvaluatedPolicy]) -> Flat:
    """Return all of params.yaml if the same policy of several experiments is compared; else the run's own settings."""
    if len({other.policy for other in found}) == 1:
        return policy.settings
    # The name of a run is not a setting: two runs that differ only in their seeds are one setting.
    return {"policy": policy.section.rpartition(".")[0], **policy.own}


def _label(keys: Sequence[str], values: Sequence[str | None], trained: Sequence[EvaluatedPolicy]) -> str:
    """Return the keys in which the setting differs from the others; for runs of one workspace their names."""
    names = " + ".join(policy.name for policy in trained)
    if "policy" in keys or not keys:
        return names
    head = trained[0].section + "."
    shown = zip((key.removeprefix(head) for key in keys), values, strict=True)
    text = " ".join(f"{key}={'default' if value is None else value}" for key, value in shown)
    return text if len(text) <= LONGEST else names


def _distinct(trained: Sequence[EvaluatedPolicy]) -> list[EvaluatedPolicy]:
    """Return the trainings without repetitions: one with all scores equal to an earlier one's is not another seed."""
    distinct: list[EvaluatedPolicy] = []
    for policy in trained:
        if not any(
            np.array_equal(policy.scores_P, other.scores_P) and policy.curve == other.curve for other in distinct
        ):
            distinct.append(policy)
    return distinct
