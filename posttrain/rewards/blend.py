"""The rewards by name, and the weighted sum that a run trains on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from posttrain.errors import DataError, ParamsError, RewardError
from posttrain.measure.phases import phase
from posttrain.models.device import Device
from posttrain.params import did_you_mean
from posttrain.rewards.verifiable import Sampled, correct, well_formed

Reward = Callable[[Sequence[Sampled]], list[float]]

VERIFIABLE: dict[str, Reward] = {"correct": correct, "format": well_formed}
LEARNED = "model"
"""The name of the reward model's score."""


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
                    mend="Mend the reward; a missing reward is never taken for 0",
                )
            each[name] = values
        total = [sum(self._parts[name][0] * values[i] for name, values in each.items()) for i in range(len(samples))]
        return total, each


def check_answers(weights: Mapping[str, float], answers: Iterable[str], where: str) -> None:
    """Refuse a reward that is 0 for every sample, because there is nothing to compare one with."""
    if weights.get("correct") and not any(answers):
        what = "reward 'correct' compares with the prompt's answer, and no prompt has one"
        raise DataError(what=what, where=where, mend="Give answers, or rewards that need none, e.g. {model: 1.0}")


def check_rewards(weights: Mapping[str, float], where: str) -> None:
    """Refuse names that are no reward, and weights that are all 0."""
    for name in weights:
        if name not in (*VERIFIABLE, LEARNED):
            mend = did_you_mean(name, [*VERIFIABLE, LEARNED])
            raise ParamsError(what=f"unknown reward '{name}'", where=f"{where}.reward (params.yaml)", mend=mend)
    if not any(weights.values()):
        what, mend = "no reward has a weight other than 0", "Name one, e.g. {correct: 1.0}"
        raise ParamsError(what=what, where=f"{where}.reward (params.yaml)", mend=mend)


def make_blend(weights: Mapping[str, float], where: str, reward_model: Path | None, device: Device) -> Blend:
    """The blend that `weights` names; the reward model is loaded only when it is named."""
    check_rewards(weights, where)
    parts: dict[str, tuple[float, Reward]] = {}
    for name, weight in weights.items():
        if name == LEARNED:
            from posttrain.rewards.learned import RewardModel

            if reward_model is None:
                mend = "Name a reward model: reward_model: reward/main"
                raise ParamsError(what="reward 'model' needs a reward model", where=f"{where} (params.yaml)", mend=mend)
            parts[name] = (weight, RewardModel(reward_model, device))
        else:
            parts[name] = (weight, VERIFIABLE[name])
    return Blend(parts)
