"""The reward model as a reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from posttrain.errors import ModelError
from posttrain.models.device import Runtime
from posttrain.models.forward import score_rows
from posttrain.models.store import load_model
from posttrain.rewards.reward import Context, Judge, NoOptions, Reward
from posttrain.rollout import Rollout
from posttrain.text.layout import micro_batches, pack


class RewardModel:
    """Scores completions with the scalar head of a model folder; demonstrations score 0 on average."""

    def __init__(self, path: Path, device: Runtime, micro_tokens: int = 16_384) -> None:
        self._model = load_model(path).to(device.torch)
        self._shift = getattr(self._model.config, "reward_shift", 0.0)
        if not type(self._model).__name__.endswith("ForSequenceClassification"):
            fix = "Run the stage `reward`, or give a model whose architecture ends in ForSequenceClassification"
            raise ModelError(what=f"{type(self._model).__name__} scores no text", where=str(path), fix=fix)
        if not isinstance(self._shift, int | float) or not math.isfinite(self._shift):
            what, where = f"reward_shift = {self._shift!r:.40} is no number", str(path / "config.json")
            raise ModelError(what=what, where=where, fix="Give the mean score of demonstrations, or remove it")
        self._device, self._budget = device, micro_tokens

    @torch.no_grad()
    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        """The score of each rollout at its last token."""
        sizes = [len(one.row) for one in rollouts]
        parts: list[Tensor] = []
        for rows in micro_batches(sizes, list(range(len(rollouts))), self._budget):
            layout = pack([rollouts[i].row for i in rows]).to(self._device.torch)
            with self._device.autocast():
                parts.append(score_rows(self._model, layout) - self._shift)
        scores: list[float] = torch.cat(parts).tolist() if parts else []
        return scores


def _judge(_: NoOptions, context: Context) -> Judge:
    if context.reward_model is None:
        raise ValueError("the reward `model` has no reward model")
    return RewardModel(context.reward_model, context.device)


REWARDS = {"model": Reward(_judge)}
