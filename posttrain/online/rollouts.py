"""Batches that the policy makes itself: prompts, groups of samples, rewards, and minibatches of whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.params import Params
from posttrain.rewards.blend import Blend
from posttrain.rewards.verifiable import Sampled
from posttrain.rollout.engine import SamplingParams, sample
from posttrain.rollout.groups import agreeing, soft_overlong
from posttrain.train.batch import Batch, make_batch
from posttrain.train.modules import Modules


class RolloutParams(Params):
    """How much is sampled and how often it is used."""

    rounds: int = Field(60, ge=1, description="times the policy samples")
    prompts: int = Field(16, ge=1, description="prompts of a round")
    group_size: int = Field(8, ge=1, description="samples of each prompt")
    minibatches: int = Field(2, ge=1, description="optimizer steps that a round's groups are divided among")
    epochs: int = Field(1, ge=1, description="times that a round's samples are gone through")
    sampling: SamplingParams = Field(default_factory=SamplingParams)

    @model_validator(mode="after")
    def _divisible(self) -> RolloutParams:
        if self.minibatches > self.prompts:
            raise ValueError(f"minibatches = {self.minibatches} cannot share out {self.prompts} prompts. Use fewer")
        return self


@dataclass(frozen=True)
class Prompt:
    """A prompt that the policy answers."""

    id: str
    ids: Sequence[int]
    answer: str


class Rollouts:
    """A source that samples with the policy as it is, whenever the last round is used up."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        reward: Blend,
        modules: Modules,
        needs: frozenset[str],
        params: RolloutParams,
        *,
        text: Any,
        seed: int,
        resample: int = 0,
        overlong: int | None = None,
    ) -> None:
        self._prompts, self._reward, self._modules, self._needs = prompts, reward, modules, needs
        self._params, self._text, self._seed = params, text, seed
        self._resample, self._overlong = resample, overlong
        self._cursor = 0
        self._round = -1
        self._buffer: Batch | None = None
        self._seen: dict[str, float] = {}

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self._params.rounds * self._per_round

    @property
    def _per_round(self) -> int:
        return self._params.minibatches * self._params.epochs

    def batch(self, step: int) -> Batch:
        """The groups of one minibatch, sampled anew when a round begins."""
        number, place = divmod(step, self._per_round)
        if number != self._round or self._buffer is None:
            self._buffer, self._round = self._sample_round(number), number
        epoch, part = divmod(place, self._params.minibatches)
        groups = len(self._buffer) // self._params.group_size
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + number) * 1009 + epoch)
        order = torch.randperm(groups, generator=generator)
        mine = order.tensor_split(self._params.minibatches)[part].tolist()
        size = self._params.group_size
        batch = self._buffer.part([group * size + i for group in mine for i in range(size)])
        return batch.with_columns(batch.columns.with_rows(age=torch.full((len(batch),), place)))

    def seen(self) -> dict[str, float]:
        """The parts of the reward, and how the round's groups were found."""
        return self._seen

    def tensors(self) -> dict[str, Tensor]:
        """The round in hand and the place in the prompts."""
        kept = {} if self._buffer is None else {f"buffer.{k}": v for k, v in self._buffer.tensors().items()}
        seen = {f"seen.{name}": torch.tensor(value, dtype=torch.float64) for name, value in self._seen.items()}
        old = {} if self._modules.old is None else dict(self._modules.old.named_parameters(prefix="old"))
        return {"place": torch.tensor([self._cursor, self._round]), **kept, **seen, **old}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take up the round in hand."""
        self._cursor, self._round = tensors["place"].tolist()
        parts = {name[7:]: part for name, part in tensors.items() if name.startswith("buffer.")}
        self._buffer = Batch.from_tensors(parts) if parts else None
        self._seen = {name[5:]: float(part) for name, part in tensors.items() if name.startswith("seen.")}
        if self._modules.old is not None:
            with torch.no_grad():
                for name, parameter in self._modules.old.named_parameters(prefix="old"):
                    parameter.copy_(tensors[name])

    def _sample_round(self, number: int) -> Batch:
        """Groups until the round is full, groups that agree replaced for as many tries as the row allows."""
        if self._modules.old is not None:
            self._modules.copy_policy(self._modules.old)
        kept: list[Batch] = []
        spare: list[Batch] = []
        parts: dict[str, list[float]] = {}
        tries = 0
        while len(kept) < self._params.prompts and tries <= self._resample:
            groups = self._sample_groups(self._next(self._params.prompts - len(kept)), f"{number}:{tries}", parts)
            for group in groups:
                settled = self._resample > 0 and agreeing(group.columns.rows["reward"])
                (spare if settled else kept).append(group)
            tries += 1
        short = max(self._params.minibatches - len(kept), 0)
        kept += spare[:short]
        self._seen = {f"reward_{name}": sum(values) / len(values) for name, values in parts.items()}
        if self._resample:
            self._seen |= {"sampling_rounds": float(tries), "groups_kept": len(kept) / self._params.prompts}
        return self._modules.fill(_joined(kept), self._needs - {"anchor"})

    def _next(self, count: int) -> list[Prompt]:
        """The next prompts: all of them once, in an order of their own each time round."""
        chosen = []
        for _ in range(count):
            lap, place = divmod(self._cursor, len(self._prompts))
            generator = torch.Generator().manual_seed(self._seed * 7_919 + lap)
            order = torch.randperm(len(self._prompts), generator=generator)
            chosen.append(self._prompts[int(order[place])])
            self._cursor += 1
        return chosen

    def _sample_groups(self, prompts: list[Prompt], name: str, parts: dict[str, list[float]]) -> list[Batch]:
        params, size = self._params, self._params.group_size
        drawn = sample(
            self._modules.policy,
            [prompt.ids for prompt in prompts],
            [f"{prompt.id}:{name}" for prompt in prompts],
            n=size,
            params=params.sampling,
            seed=self._seed,
            stop=self._text.stop,
            device=self._modules.device,
        )
        texts = [self._text.decode(ids) for ids in drawn.ids]
        owners = [prompt for prompt in prompts for _ in range(size)]
        samples = [
            Sampled(owner.ids, ids, text, owner.answer, cut)
            for owner, ids, text, cut in zip(owners, drawn.ids, texts, drawn.truncated, strict=True)
        ]
        rewards, each = self._reward(samples)
        for key, values in each.items():
            parts.setdefault(key, []).extend(values)
        if self._overlong:
            lengths = [len(ids) for ids in drawn.ids]
            punished = soft_overlong(lengths, params.sampling.max_tokens, self._overlong)
            rewards = [reward + extra for reward, extra in zip(rewards, punished, strict=True)]
        batches = []
        for g in range(len(prompts)):
            rows = range(g * size, (g + 1) * size)
            columns = {
                "reward": torch.tensor([rewards[i] for i in rows]),
                "truncated": torch.tensor([drawn.truncated[i] for i in rows]),
            }
            old = {"old_logp": torch.tensor([x for i in rows for x in drawn.logps[i]])}
            batches.append(make_batch([list(owners[i].ids) for i in rows], [drawn.ids[i] for i in rows], columns, old))
        return batches


def _joined(groups: list[Batch]) -> Batch:
    """Groups as one batch, numbered in the column `group`."""
    names_B, names_N = groups[0].columns.rows, groups[0].columns.tokens
    rows = {name: torch.cat([group.columns.rows[name] for group in groups]) for name in names_B if name != "row"}
    rows["group"] = torch.cat([torch.full((len(group),), i) for i, group in enumerate(groups)])
    return make_batch(
        [ids for group in groups for ids in group.prompts],
        [ids for group in groups for ids in group.completions],
        rows,
        {name: torch.cat([group.columns.tokens[name] for group in groups]) for name in names_N},
    )
