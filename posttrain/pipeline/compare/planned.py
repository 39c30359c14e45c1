"""Planned questions: the effect of a factor, averaged over all other settings, with paired seeds and prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from posttrain.errors import PipelineError
from posttrain.pipeline.compare.cells import Cells, Context, LeftOut, Trainings
from posttrain.pipeline.compare.comparison import in_words, same_in_words, what_is_same
from posttrain.pipeline.compare.evaluated import EvaluatedPolicy, scores
from posttrain.pipeline.compare.factors import Factor, Flat, Level, factor_named, level_named
from posttrain.pipeline.compare.guards import Fall, by_metric, guarded, untested
from posttrain.pipeline.compare.notes import few_prompts, few_seeds, listed, unlike_notes
from posttrain.pipeline.compare.paired import are_shares, with_scores
from posttrain.pipeline.compare.replicates import Contrast, Replicates, replicates
from posttrain.pipeline.compare.statistics import Difference, Finding, Floats, findings
from posttrain.settings.params import joined

FEW = 2


@dataclass(frozen=True)
class Question:
    """A question and its answer: is one level of a factor better than another?"""

    factor: str
    level: str
    against: str
    seeds: int = 0
    pairs: int = 0
    """How many pairs of trainings share seed and other settings."""
    finding: Finding | None = None
    """None: no training has a partner, and `why_not` says why."""
    why_not: str = ""
    replicates: str = ""
    """`pairs` or `seeds`: what counts as independent; empty if there is one seed."""
    same: str = ""
    """`completions` or `weights` if all pairs have the same."""
    falls: tuple[Fall, ...] = ()

    @property
    def text(self) -> str:
        """The question as a difference."""
        return f"{self.level} minus {self.against}"

    @property
    def verdict(self) -> str:
        """The answer, in the words of `compare`."""
        if self.finding is None:
            return f"cannot tell: {self.why_not}"
        answer = in_words(self.finding, self.level, self.against)
        if self.same:
            answer = same_in_words(self.same, self.finding)
        return "; ".join([answer, *map(str, self.falls)])


@dataclass(frozen=True)
class Planned:
    """The answers to the planned questions."""

    prompts: int
    trainings: int
    questions: list[Question]
    """Those over several seeds, with Holm's correction over them; then the others, without correction."""
    notes: list[str]


@dataclass(frozen=True)
class _Pairs:
    """A question with its pairs of trainings. The lists have one entry for each pair."""

    question: Question
    left: list[EvaluatedPolicy]
    right: list[EvaluatedPolicy]
    cells: list[tuple[Context, str]]
    """The other settings and the seed."""

    def has(self, metric: str | None) -> bool:
        """Tell whether all trainings have a metric; None: the score."""
        return metric is None or all(metric in policy.parts for policy in (*self.left, *self.right))

    def contrast(self, metric: str | None = None) -> tuple[Contrast, Floats]:
        """Return left minus right and both means of the score or a metric, on prompts with a score in all trainings."""
        sides = [[by_metric(one, metric) if metric else one for one in side] for side in (self.left, self.right)]
        left_NP, right_NP = with_scores(*map(scores, sides))
        contrast = Contrast(
            left_NP - right_NP, [context for context, _ in self.cells], [seed for _, seed in self.cells]
        )
        return contrast, np.array([contrast.weights @ side_NP.mean(axis=1) for side_NP in (left_NP, right_NP)])


@dataclass(frozen=True)
class _Measured:
    """A question's pairs with the measured difference."""

    pairs: _Pairs
    kind: str
    guards: Mapping[str, Replicates]
    """Guarded metric -> what repeats in its contrasts."""
    difference: Difference


def planned(
    policies: Sequence[EvaluatedPolicy],
    names: Sequence[str],
    against: Sequence[str] = (),
    left_out: Sequence[LeftOut] = (),
    home: Flat | None = None,
) -> Planned:
    """Return the answers to the questions about the named factors.

    `against`: levels of these factors, the baselines. `home`: the settings of params.yaml, whose level is the baseline
    of a factor without such a name; if no training has that level, the first training's is.
    """
    have = Trainings(policies, left_out)
    sections = {policy.section for policy in policies}
    section = sections.pop() if len(sections) == 1 else ""
    asked = list(dict.fromkeys(factor_named(name, have.flats, section) for name in names))
    bases, baselines = _baselines(asked, have.flats, against, home or {})
    notes = [*baselines, *have.notes, *(f"left out: {one.name}: {one.why}" for one in left_out)]
    notes += unlike_notes(have.policies)
    watched = guarded(have.policies)
    several, single, unknown = list[_Measured](), list[_Measured](), list[Question]()
    for factor in asked:
        pairs = {level: _paired(have, factor, level, bases[factor]) for level in factor.levels(have.flats)}
        del pairs[bases[factor]]
        repeated = _replicates(have, factor)
        guards = {name: _replicates(have, factor, name) for name in watched}
        notes += [note for _, more in pairs.values() for note in more] + _counted(factor, repeated, pairs.values())
        for one, _ in pairs.values():
            if not one.left:
                unknown.append(one.question)
                continue
            measured = _Measured(one, repeated.kind, guards, repeated.difference(one.contrast()[0]))
            (several if measured.difference.over_seeds else single).append(measured)
    corrected = findings([one.difference for one in several])
    alone = [findings([one.difference])[0] for one in single]
    questions = [_answered(*one) for one in zip([*several, *single], [*corrected, *alone], strict=True)]
    notes += [*few_prompts(len(policies[0].prompts)), *untested(have.policies, watched)]
    notes += few_seeds([one.text for one in questions if one.seeds == FEW and not one.same])
    return Planned(len(policies[0].prompts), len(have.policies), [*questions, *unknown], list(dict.fromkeys(notes)))


def _baselines(
    asked: Sequence[Factor], flats: Sequence[Flat], against: Sequence[str], home: Flat
) -> tuple[dict[Factor, Level], list[str]]:
    """Return each factor's baseline, and a note for each that was not named."""
    named: dict[Factor, Level] = {}
    for name in against:
        levels = {factor: level_named(name, factor, factor.levels(flats)) for factor in asked}
        matches = [(factor, level) for factor, level in levels.items() if level is not None]
        if len(matches) != 1 or matches[0][0] in named:
            what = "is a level of several factors" if len(matches) > 1 else "is not one level of a factor"
            what = f"is a second baseline of {matches[0][0].short}" if len(matches) == 1 else what
            known = "; ".join(f"{one.short}: {joined(list(map(one.text, one.levels(flats))))}" for one in asked)
            raise PipelineError(what=f"'{name:.80}' {what}", where="compare --against", fix=f"Levels of {known}")
        named[matches[0][0]] = matches[0][1]
    notes = []
    for factor in asked:
        if factor not in named:
            levels_here, home_level = factor.levels(flats), factor.level(home)
            named[factor] = home_level if home_level in levels_here else levels_here[0]
            why = "the level of params.yaml" if any(home_level) else "the default of the run"
            why = why if home_level in levels_here else "the level of the first training"
            notes.append(f"baseline of {factor.short}: {factor.text(named[factor])} ({why}; --against chooses another)")
    return named, notes


def _paired(have: Trainings, factor: Factor, level: Level, base: Level) -> tuple[_Pairs, list[str]]:
    """Return a question with its pairs of trainings, and notes about trainings without a partner."""
    (ours, notes), (theirs, more) = have.cells(factor, level), have.cells(factor, base)
    shared = sorted((cell for cell in ours if cell in theirs), key=str)  # so that no sum depends on the sides' order
    question = Question(factor.path, factor.label(level), factor.label(base), len({seed for _, seed in shared}))
    question = replace(question, pairs=len(shared))
    if not shared:
        question = replace(question, why_not=have.why_apart(factor, level, base))
    notes = [*notes, *more, *(_alone(have, factor, question, ours, theirs) if shared else ())]
    left, right = [ours[cell] for cell in shared], [theirs[cell] for cell in shared]
    lost = int(np.isnan(scores([*left, *right])).any(axis=0).sum()) if shared else 0
    notes += [f"{question.text}: {lost} prompts have no score in one of the trainings, and are left out"] * (lost > 0)
    return _Pairs(question, left, right, shared), notes


def _replicates(have: Trainings, factor: Factor, metric: str | None = None) -> Replicates:
    """Return what repeats in the contrasts of a factor."""
    pairs = [_paired(have, factor, *two)[0] for two in combinations(factor.levels(have.flats), 2)]
    return replicates([one.contrast(metric)[0] for one in pairs if one.left and one.has(metric)])


def between_levels(have: Trainings, factor: Factor) -> list[Finding]:
    """Return the tested differences, with Holm's correction, of a factor's pairs of levels that share cells."""
    pairs = [_paired(have, factor, *two)[0] for two in combinations(factor.levels(have.flats), 2)]
    contrasts = [one.contrast()[0] for one in pairs if one.left]
    repeated = replicates(contrasts)
    measured = [repeated.difference(one) for one in contrasts]
    return findings([one for one in measured if one.over_seeds] or measured)


def _counted(factor: Factor, repeated: Replicates, pairs: Iterable[tuple[_Pairs, list[str]]]) -> list[str]:
    """Return a note if the pairs of one seed are not independent."""
    combinations_of = {context for one, _ in pairs for context, _ in one.cells}
    if repeated.kind == "pairs" or len(combinations_of) < 2:
        return []
    alike = "in all other settings, the difference depends on the seed in the same way"
    return [f"{factor.short}: {alike}. So the interval counts seeds, not pairs. More seeds make it narrower"]


def _alone(have: Trainings, factor: Factor, question: Question, ours: Cells, theirs: Cells) -> list[str]:
    """Return a note that names the trainings that only one level has."""
    notes = []
    for label, cells, others in ((question.level, ours, theirs), (question.against, theirs, ours)):
        if lone := [f"({have.cell_label(cell, factor)})" for cell in cells if cell not in others]:
            count = f"{len(lone)} training{'s' * (len(lone) > 1)} of {label} {'have' if len(lone) > 1 else 'has'}"
            notes.append(f"{question.text}: {count} no partner with the same seed and other settings: {listed(lone)}")
    return notes


def _answered(measured: _Measured, finding: Finding) -> Question:
    """Return the question with its answer. A guarded metric is tested by itself, without correction."""
    pairs = measured.pairs
    falls = []
    for name, repeated in measured.guards.items():
        if pairs.has(name):
            contrast, (after, before) = pairs.contrast(name)
            (tested,) = findings([repeated.difference(contrast)])
            if tested.high < 0:
                question = pairs.question
                falls.append(Fall(name, question.level, question.against, float(before), float(after), tested))
    both = {what_is_same([one], [other]) for one, other in zip(pairs.left, pairs.right, strict=True)}
    same = "" if "" in both else min(both, key=("weights", "completions").index)
    most = 1.0 if are_shares([scores(pairs.left), scores(pairs.right)]) else np.inf
    limited = replace(finding, low=max(finding.low, -most), high=min(finding.high, most))
    question = replace(pairs.question, finding=limited, same=same, falls=tuple(falls))
    return replace(question, replicates=measured.kind if finding.over_seeds else "")
