"""Compare every pair of settings on the held-out prompts, and in training at equal budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from posttrain.errors import PipelineError
from posttrain.pipeline.compare.bands import Band, bands
from posttrain.pipeline.compare.budgets import BUDGETS, AtEqual, Budget, at_equal, used
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy, scores
from posttrain.pipeline.compare.guards import Fall, broken, guarded, untested
from posttrain.pipeline.compare.moved import Moved, moved
from posttrain.pipeline.compare.notes import few_prompts, few_seeds, readable, unlike_notes
from posttrain.pipeline.compare.paired import tested
from posttrain.pipeline.compare.settings import Setting, grouped, mean_score
from posttrain.pipeline.compare.statistics import Finding, findings
from posttrain.pipeline.compare.words import CANNOT_TELL, judged
from posttrain.settings.params import joined, nearest

FEW = 2
MORE = 1.05
"""Budgets that differ by less than 5 % count as equal."""


@dataclass(frozen=True)
class Pair:
    """The result for two settings, given by their indices."""

    left: int
    right: int
    finding: Finding
    falls: tuple[Fall, ...] = ()
    """The guarded metrics (`must_not_fall`) that are clearly lower in one setting."""
    same: str = ""
    """`completions` or `weights` if both have the same, so that the pair says nothing of two trainings."""


@dataclass(frozen=True)
class Mean:
    """A setting's own numbers."""

    label: str
    seeds: int
    value: float
    low: float
    high: float
    spent: dict[Budget, float | None]
    weights: str = ""
    """The command that fetches the model of its best training into the workspace; empty if it is already there."""
    varied: Mapping[str, str] = field(default_factory=dict)
    """Key -> value of the parameters that differ between settings; empty for runs of one workspace."""
    names: tuple[str, ...] = ()
    """The names of all its trainings."""
    same: str = ""
    """`weights` or `scores` if they are the same in all its trainings."""


@dataclass(frozen=True)
class Training:
    """The pairs at an equal budget."""

    at: AtEqual
    pairs: list[Pair]
    """The pairs with several seeds on both sides."""
    single: list[tuple[int, int]]
    """The other pairs. A single training has one value and no interval."""


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison."""

    prompts: int
    means: list[Mean]
    held_out: list[Pair]
    training: list[Training]
    notes: list[str]
    moved: list[Moved] = field(default_factory=list)
    """Completions that two evaluations share, with other scores."""
    curves: tuple[str, list[Band]] = ("", [])
    """The metric that all trainings have a curve of, and the curve of each setting."""


def compare(policies: Sequence[EvaluatedPolicy], against: str | None = None) -> Comparison:
    """Compare every pair of settings, or each setting with one baseline, with Holm's correction per measure."""
    settings, notes = grouped(policies)
    settings, unread = readable(settings)
    notes += [*unread, *(note for setting in settings for note in _without_score(setting)), *unlike_notes(policies)]
    means = [_mean(setting) for setting in settings]
    order = sorted(range(len(settings)), key=lambda index: -means[index].value)
    settings, means = [settings[index] for index in order], [means[index] for index in order]
    pairs = _pairs([setting.label for setting in settings], settings, against)
    scored = [scores(setting.trained) for setting in settings]
    watched, base = guarded(policies), settings[pairs[0][1]].label if against is not None and pairs else None
    held_out = [
        Pair(
            *pair,
            finding,
            tuple(broken(settings[pair[0]], settings[pair[1]], watched, base)),
            _same(settings[pair[0]], settings[pair[1]]),
        )
        for pair, finding in zip(pairs, tested(scored, pairs), strict=True)
    ]
    notes += [*few_prompts(len(policies[0].prompts)), *untested(policies, watched)]
    at = [at_equal(settings, budget) for budget in BUDGETS]
    training = [_in_training(equal, settings, pairs) for equal in at]
    alike = bool(held_out) and all(pair.same for pair in held_out)  # more seeds would not tell more
    notes += [*few_seeds([mean.label for mean in means if mean.seeds == FEW and not alike]), *_unequal(means)]
    return Comparison(len(policies[0].prompts), means, held_out, training, notes, moved(policies), bands(settings))


def _same(left: Setting, right: Setting) -> str:
    """Return what is the same in two settings of one policy."""
    several = len({policy.model for setting in (left, right) for policy in setting.trained}) > 1
    return "" if several else what_is_same(left.trained, right.trained)


def what_is_same(left: Sequence[EvaluatedPolicy], right: Sequence[EvaluatedPolicy]) -> str:
    """Return what is the same in the trainings of both sides: `completions` of one policy, `weights`, or ""."""
    one_policy = len({policy.model for policy in (*left, *right)}) == 1
    for what in ("completions", "weights") if one_policy else ("weights",):
        sides = [
            {policy.completions if what == "completions" else policy.trained for policy in side}
            for side in (left, right)
        ]
        if sides[0] == sides[1] and "" not in sides[0]:
            return what
    return ""


def verdict(pair: Pair, labels: Sequence[str]) -> str:
    """Return the result as a sentence. `(1 seed)`: the result holds for the two trainings, not their settings."""
    return "; ".join([_by_score(pair, labels), *map(str, pair.falls)])


def _by_score(pair: Pair, labels: Sequence[str]) -> str:
    if pair.same:
        return same_in_words(pair.same, pair.finding)
    return in_words(pair.finding, labels[pair.left], labels[pair.right])


def same_in_words(same: str, finding: Finding) -> str:
    """Return in words what two sides share, and that their scores differ, if they do."""
    how = "scored" if same == "completions" else "measured"
    return f"the same {same}, {how} differently" if finding.mean else f"the same {same}"


def in_words(finding: Finding, left: str, right: str) -> str:
    """Return a finding in words."""
    if not finding.significant:
        return CANNOT_TELL
    better = left if finding.mean > 0 else right
    return judged(f"{better} is better", over_seeds=finding.over_seeds)


def _pairs(labels: Sequence[str], settings: Sequence[Setting], against: str | None) -> list[tuple[int, int]]:
    if against is None:
        return list(combinations(range(len(labels)), 2))
    names = [{setting.label, *(policy.name for policy in setting.trained)} for setting in settings]
    base = next((index for index, known in enumerate(names) if against in known), None)
    if base is None:
        near = nearest(against, sorted(set().union(*names)))
        meant = f"Did you mean '{near}'? " if near else ""
        fix = f"{meant}The settings are {joined(list(labels))}. The name of one of their trainings works too"
        raise PipelineError(what=f"'{against}' is not one of the compared settings", where="--against", fix=fix)
    return [(index, base) for index in range(len(labels)) if index != base]


def _in_training(at: AtEqual, settings: Sequence[Setting], pairs: Sequence[tuple[int, int]]) -> Training:
    if at.why_not:
        return Training(at, [], [])
    several = [pair for pair in pairs if all(len(settings[index].trained) > 1 for index in pair)]
    results = findings([at.difference(left, right) for left, right in several])
    judged = [Pair(*pair, finding) for pair, finding in zip(several, results, strict=True)]
    return Training(at, judged, [pair for pair in pairs if pair not in several])


def _mean(setting: Setting) -> Mean:
    """Return a setting's own numbers."""
    spent: dict[Budget, float | None] = {budget: _spent(setting, budget) for budget in BUDGETS}
    best = max(setting.trained, key=lambda policy: float(policy.known_scores.mean()))
    same = ("weights" if best.trained else "scores") if len(setting.trained) == 1 < len(setting.names) else ""
    measured = mean_score(setting)
    return Mean(
        setting.label, len(setting.trained), *measured, spent, best.weights, setting.varied, setting.names, same
    )


def _spent(setting: Setting, budget: Budget) -> float | None:
    """Return the average budget that the setting's trainings used."""
    amounts = [used(policy, budget) for policy in setting.trained]
    known = [float(amount[-1]) for amount in amounts if amount is not None]
    return sum(known) / len(known) if known and len(known) == len(amounts) else None


def _without_score(setting: Setting) -> list[str]:
    """Return a note if a setting has prompts without any scored completion."""
    scored = scores(setting.trained)
    lost = int(np.isnan(scored).any(axis=0).sum())
    return [f"{setting.label}: {lost} of {scored.shape[1]} prompts have no score. Its differences leave them out"] * (
        lost > 0
    )


def _unequal(means: Sequence[Mean]) -> list[str]:
    """Return a warning for each budget that differs between settings. Held-out scores are for whole trainings."""
    notes = []
    for budget in BUDGETS:
        known = [amount for mean in means if (amount := mean.spent[budget]) is not None]
        if known and max(known) > MORE * min(known):
            ratio = max(known) / min(known)
            notes.append(
                f"{budget} differ up to {ratio:.2f}x between settings, so the scores are not at equal {budget}"
            )
    return notes
