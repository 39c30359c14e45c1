"""The rewards by name, and the weighted sum that a run trains on."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from posttrain.errors import DataError, ParamsError, RewardError
from posttrain.measure.phases import phase
from posttrain.models.device import Device
from posttrain.params import did_you_mean
from posttrain.rewards.verifiable import Sampled, correct, expected_answer, final_answer, well_formed, why_unread

Reward = Callable[[Sequence[Sampled]], list[float]]

VERIFIABLE: dict[str, Reward] = {"correct": correct, "format": well_formed}
LEARNED = "model"
"""The name of the reward model's score."""
READ_A_NUMBER = frozenset({"correct", "format"})
"""The rewards that are 0 for a completion without a final `#### N`."""


class Blend:
    """sum_k weight_k reward_k, every part kept for the metrics."""

    def __init__(self, parts: Mapping[str, tuple[float, Reward]]) -> None:
        self._parts = dict(parts)

    @phase("score")
    def __call__(self, samples: Sequence[Sampled]) -> tuple[list[float], dict[str, list[float]]]:
        """(the blended reward of each sample, each part's own)."""
        each: dict[str, list[float]] = {}
        for name, (_, reward) in self._parts.items():
            values = reward(samples)
            bad = [i for i, value in enumerate(values) if not math.isfinite(value)]
            if bad:
                text = samples[bad[0]].text[:80]
                raise RewardError(
                    what=f"{len(bad)} of {len(values)} rewards are not finite, the first for {text!r}",
                    where=f"reward '{name}'",
                    fix="Fix the reward; a missing reward is never taken for 0",
                )
            each[name] = values
        total = [sum(self._parts[name][0] * values[i] for name, values in each.items()) for i in range(len(samples))]
        return total, each


def check_answers(weights: Mapping[str, float], answers: Mapping[str, str], where: str) -> set[str]:
    """The ids of the prompts to use: those without an answer that `correct` can read need another reward."""
    ids = set(answers)
    unread = [name for name, answer in answers.items() if expected_answer(answer) is None]
    if not weights.get("correct") or not unread:
        return ids
    if not any(answer.strip() for answer in answers.values()):
        what = "reward 'correct' compares with the prompt's answer, and no prompt has one"
        raise DataError(what=what, where=where, fix="Give answers, or rewards that need none, e.g. {model: 1.0}")
    first = next((name for name in unread if answers[name].strip()), unread[0])
    example = f"the first is {answers[first]!r:.60} ({why_unread(answers[first])}; prompt {first})"
    reads = "'correct' reads a number, alone or after the last `####`"
    if len(unread) == len(ids):
        fix = "Write the answers as numbers; without any leave out the column and use another reward (docs/rewards.md)"
        raise DataError(what=f"{reads}, and none of {len(ids)} answers is one; {example}", where=where, fix=fix)
    rule = "only the other rewards judge them" if _others(weights) else "these prompts are left out"
    print(f"{where}: {reads}; {len(unread)} of {len(ids)} answers are not one, {example}: {rule}", file=sys.stderr)
    return ids if _others(weights) else ids - set(unread)


def check_completions(
    weights: Mapping[str, float], samples: Sequence[Sampled], where: str, count: int | None = None
) -> None:
    """Refuse completions (`count` in all) that give every reward 0, because none has an answer that can be read."""
    named = [f"'{name}'" for name in sorted(READ_A_NUMBER) if weights.get(name)]
    if not named or any(final_answer(sample.text) is not None for sample in samples):
        return
    cut = sum(sample.truncated for sample in samples)
    what = (
        f"none of {count or len(samples)} completions ends with `#### N`, which {' and '.join(named)} read; the first "
        f"is {samples[0].text!r:.100}"
    )
    fix = "Train on demonstrations that end so (sft), or ask for it in the prompts (docs/rewards.md)"
    if cut > len(samples) / 2:
        fix = f"{cut} of {len(samples)} are cut off: raise sampling.max_tokens. {fix}"
    if not _others(weights):
        raise DataError(what=what, where=where, fix=fix)
    print(f"{where}: {what}. {fix}", file=sys.stderr)


def _others(weights: Mapping[str, float]) -> bool:
    """Whether a reward counts that needs no number."""
    return any(weight for name, weight in weights.items() if name not in READ_A_NUMBER)


def check_rewards(weights: Mapping[str, float], where: str) -> None:
    """Refuse names that are no reward, and weights that are all 0."""
    known = [*VERIFIABLE, LEARNED]
    for name in weights:
        if name not in known:
            fix = f"{did_you_mean(name, known)} The rewards are {', '.join(known)} (docs/rewards.md)"
            raise ParamsError(what=f"unknown reward '{name}'", where=f"{where}.reward (params.yaml)", fix=fix)
    if not any(weights.values()):
        what, fix = "no reward has a weight other than 0", "Name one, e.g. {correct: 1.0}"
        raise ParamsError(what=what, where=f"{where}.reward (params.yaml)", fix=fix)


def make_blend(weights: Mapping[str, float], where: str, reward_model: Path | None, device: Device) -> Blend:
    """The blend that `weights` names; the reward model is loaded only when it is named."""
    check_rewards(weights, where)
    parts: dict[str, tuple[float, Reward]] = {}
    for name, weight in weights.items():
        if name == LEARNED:
            from posttrain.rewards.learned import RewardModel

            if reward_model is None:
                fix = "Name a reward model: reward_model: reward/main"
                raise ParamsError(what="reward 'model' needs a reward model", where=f"{where} (params.yaml)", fix=fix)
            parts[name] = (weight, RewardModel(reward_model, device))
        else:
            parts[name] = (weight, VERIFIABLE[name])
    return Blend(parts)
