"""Notes for the reader of a comparison about hidden differences between the compared policies."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.pipeline.compare.belonging import unlike
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy
from posttrain.pipeline.compare.factors import differing
from posttrain.pipeline.compare.settings import Setting, meaning
from posttrain.settings.params import joined

MOST = 4
"""The most names in a note."""
FEW_PROMPTS = 20
"""Below this number of prompts, resampling them says too little."""
MEASURING = tuple(f"{kind}: " for kind in ("completions", "completions_runs", "evaluate", "evaluate_runs"))
"""How code is listed that belongs to the evaluation, not to a training."""


def unlike_notes(policies: Sequence[EvaluatedPolicy]) -> list[str]:
    """Return notes about differing evaluations, differing code, and runs without a record."""
    keys = differing([meaning(policy) for policy in policies])
    measured = [f"evaluated with different {', '.join(keys)}: the scores mean different things"] * bool(keys)
    return [*measured, *_other_code(policies), *_unverified(policies)]


def readable(settings: Sequence[Setting]) -> tuple[list[Setting], list[str]]:
    """Return the settings with readable answers (all settings if none has them), and a note for each other setting."""
    unread = [setting for setting in settings if not any(policy.parsed for policy in setting.trained)]
    if len(unread) < len(settings):
        settings = [setting for setting in settings if setting not in unread]
    notes = [
        f"{setting.label} is not compared, because none of its completions has a readable answer" for setting in unread
    ]
    return list(settings), notes


def few_seeds(names: Sequence[str]) -> list[str]:
    """Return a warning about settings or questions with two seeds, because two seeds hardly show the variance."""
    more = f" and {len(names) - MOST} more" * (len(names) > MOST)
    fix = "Two seeds can show only large differences. Run three to five"
    return [f"2 seeds: {joined(list(names[:MOST]))}{more}. {fix}"] if names else []


def few_prompts(count: int) -> list[str]:
    """Return a warning about too few test prompts, which more seeds cannot replace."""
    fix = "their intervals are too narrow, and more seeds do not help. Hold out more rows (docs/data.md)"
    return [f"{count} test prompts are few: {fix}"] if count < FEW_PROMPTS else []


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of further names."""
    return f"{', '.join(names[:MOST])}{f' and {len(names) - MOST} more' * (len(names) > MOST)}"


def _other_code(policies: Sequence[EvaluatedPolicy]) -> list[str]:
    """Return notes about code of which the compared policies, or the runs behind them, used different versions."""
    files = unlike([policy.code for policy in policies])
    measuring = [file for file in files if file.startswith(MEASURING)]
    notes = [f"evaluated with different code ({listed(measuring)}): the scores mean different things"] * bool(measuring)
    training = [file for file in files if file not in measuring]
    return [*notes, *[f"trained with different code ({listed(training)})"] * bool(training)]


def _unverified(policies: Sequence[EvaluatedPolicy]) -> list[str]:
    """Return a note for each policy with a run that has no record."""
    fetch = "`dvc fetch --all-commits` gets the records"
    return [
        f"{policy.name} is not verified, because {listed(policy.unverified)} has no record here ({fetch})"
        for policy in policies
        if policy.unverified
    ]
