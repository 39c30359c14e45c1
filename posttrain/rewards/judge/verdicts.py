"""Combine several verdicts into a score."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.rollout import FAILED, Score

Verdict = float | Score
"""A number in [0, 1], or why there is none."""


def weighted(verdicts: Sequence[Verdict], weights: Sequence[float]) -> Score:
    """Return sum_k weight_k verdict_k / sum of positive weights, clipped to [0, 1]; unknown if a verdict is missing."""
    failed = first_failure(verdicts)
    if failed is not None:
        return failed
    numbers = [verdict for verdict in verdicts if not isinstance(verdict, Score)]
    value = sum(weight * number for weight, number in zip(weights, numbers, strict=True))
    return Score(min(max(value / sum(weight for weight in weights if weight > 0), 0.0), 1.0))


def first_failure(verdicts: Sequence[Verdict]) -> Score | None:
    """Return the first failure. Failures of the endpoint come before failures of the completion."""
    failures = [verdict for verdict in verdicts if isinstance(verdict, Score)]
    return next((failure for failure in failures if failure.status in FAILED), failures[0] if failures else None)
