"""Label steps by Monte Carlo: a step is right if a continuation after it passes (Math-Shepherd)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pydantic import Field

from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.score import RewardSum
from posttrain.rewards.steps import step_ends, steps_of
from posttrain.rollout import Rollout
from posttrain.sampling.episodes import first_turn
from posttrain.sampling.sampler import Completion, Request, Sampler, SamplingParams
from posttrain.settings.params import Params
from posttrain.text.chat import ChatText


class StepLabels(Params):
    """Labels for steps of samples."""

    separator: str = Field("\n", min_length=1, description="separator of steps")
    samples: int = Field(2, ge=1, description="label the steps of the first N samples of each prompt")
    continuations: int = Field(
        4, ge=1, description="continuations sampled after each step; the step is right if one passes"
    )


class LabelledStep(NamedTuple):
    """A sample up to the end of a step."""

    place: int
    """The sample's index in the list."""
    text: str
    right: bool


def labelled_steps(
    sampler: Sampler, text: ChatText, rollouts: Sequence[Rollout], reward: RewardSum, failures: FailureLimit,
    labels: StepLabels, params: SamplingParams, seed: int, pass_score: float,
) -> list[LabelledStep]:  # fmt: skip
    """Return the steps of each prompt's first samples. The last step is right if the sample itself passes.

    If no continuation of a step passes and one has no score, the step is unknown and left out.
    """
    open_steps: list[tuple[int, str, list[int]]] = []
    labelled: list[LabelledStep] = []
    for place, rollout in enumerate(rollouts):
        if rollout.sample >= labels.samples or rollout.truncated or len(rollout.turns) > 1 or not rollout.text.strip():
            continue
        parts = [*steps_of(rollout.text, labels.separator)]
        ends = step_ends(rollout, parts, labels.separator, text)
        open_steps += [
            (place, part, list(rollout.row.rest[:end])) for part, end in zip(parts[:-1], ends[:-1], strict=True)
        ]
        labelled.append(LabelledStep(place, rollout.text, reward.total(rollout) >= pass_score))
    requests = [
        Request(
            [*rollouts[place].prompt.ids, *ids],
            f"{rollouts[place].prompt.id}:{rollouts[place].sample}:{len(ids)}:{number}",
        )
        for place, _, ids in open_steps
        for number in range(labels.continuations)
    ]
    completions = iter(sampler.generate(requests, params, seed))
    scored: list[Rollout] = []
    for place, _, ids in open_steps:
        whole = [_continued(rollouts[place], ids, next(completions), text) for _ in range(labels.continuations)]
        scored += reward.score(whole)
    judged = set(failures.check(scored))
    for number, (place, part, _) in enumerate(open_steps):
        continuations = range(number * labels.continuations, (number + 1) * labels.continuations)
        right = any(reward.total(scored[one]) >= pass_score for one in continuations if one in judged)
        if right or judged.issuperset(continuations):
            labelled.append(LabelledStep(place, part, right))
    return sorted(labelled, key=lambda step: (step.place, len(step.text)))


def _continued(rollout: Rollout, ids: list[int], completion: Completion, text: ChatText) -> Rollout:
    """Return the sample with another continuation after some of its tokens."""
    logps = [*rollout.logps[: len(ids)], *completion.logps]
    whole = replace(completion, ids=[*ids, *completion.ids], logps=logps, kept=None)
    return first_turn(rollout.prompt, rollout.sample, whole, text, rollout.version)
