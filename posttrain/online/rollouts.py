"""Batches that the policy samples: prompts, groups of completions, rewards, and minibatches of whole groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.errors import RewardError
from posttrain.formulas.ragged import Ragged, row_keys
from posttrain.models.sharding import fill
from posttrain.online.reward_monitor import RewardMonitor, has_zero_variance
from posttrain.online.rollout_log import RolloutLog
from posttrain.online.round_metrics import groups_with_signal, reward_metrics, sampler_gap
from posttrain.online.stored_rollouts import StoredRollouts
from posttrain.params import Params
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.length import completion_ids, soft_overlong
from posttrain.rewards.score import RewardSum, scored_by_first
from posttrain.rewards.turns import placed_by_turn, rewards_by_token
from posttrain.rollout import Prompt, Rollout
from posttrain.sampling.sampler import Mixture, Sampler, SamplingParams, generate_rollouts
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import BatchSource
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch, concatenate, make_batch


class ReplayParams(Params):
    """The replay buffer: samples of earlier rounds that are used again."""

    groups: int = Field(0, ge=0, description="groups of earlier rounds that join each optimizer step; 0: none")
    rounds: int = Field(2, ge=1, description="bound on their age: only the last so many rounds are kept")


class RolloutParams(Params):
    """How much is sampled and how often it is used."""

    rounds: int = Field(60, ge=1, description="times the policy samples")
    prompts: int = Field(16, ge=1, description="prompts of a round")
    group_size: int = Field(8, ge=1, description="samples of each prompt")
    minibatches: int = Field(2, ge=1, description="optimizer steps that a round's groups are divided among")
    epochs: int = Field(1, ge=1, description="times that a round's samples are gone through")
    sampling: SamplingParams = Field(default_factory=SamplingParams)
    replay: ReplayParams = Field(default_factory=ReplayParams)
    gap_rows: int = Field(
        4, ge=0, description="rows of a round whose log-probs the trainer recomputes (metric sampler_gap); 0: none"
    )

    @model_validator(mode="after")
    def _divisible(self) -> RolloutParams:
        if self.minibatches > self.prompts:
            raise ValueError(f"minibatches = {self.minibatches} cannot share out {self.prompts} prompts. Use fewer")
        return self


@dataclass(frozen=True)
class SamplingPlan:
    """What an algorithm changes about sampling."""

    resample: int = 0
    """Extra tries to replace groups of zero reward variance (dynamic sampling)."""
    overlong: float | None = None
    """The part of the longest completion at its end in which length is punished."""
    opponents: bool = False
    """Half of each group is sampled from the mixture, as opponents of the other half."""
    mixture: float = 0.0
    """The reference's weight in the mixture; 0: sample from the policy alone."""


class RolloutSource(BatchSource):
    """A batch source that samples a new round with the current policy whenever the last one is used up."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        sampler: Sampler,
        reward: RewardSum,
        models: ModelSet,
        needs: frozenset[str],
        params: RolloutParams,
        *,
        text: ChatText,
        seed: int,
        plan: SamplingPlan = SamplingPlan(),
        monitor: RewardMonitor | None = None,
        failures: FailureLimit | None = None,
        log: RolloutLog | None = None,
        stored: StoredRollouts | None = None,
        name: str = "rollouts",
    ) -> None:
        """`log`: where rollouts are stored; `stored`: the scored rollouts to take in place of sampling."""
        self._name = name
        self._prompts, self._sampler, self._reward, self._models = prompts, sampler, reward, models
        self._needs, self._params, self._text, self._seed, self._plan = needs, params, text, seed, plan
        self._monitor = monitor or RewardMonitor("rollouts", {}, compares=False)
        self._failures = failures or FailureLimit(reward, 0.0, "rollouts")
        self._log, self._stored = log, stored
        self._cursor = 0
        self._rounds: dict[int, Batch] = {}
        self._metrics: dict[str, float] = {}

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self._params.rounds * self._per_round

    @property
    def _per_round(self) -> int:
        return self._params.minibatches * self._params.epochs

    def batch(self, step: int) -> Batch:
        """The groups of one minibatch, sampled when a round begins, and groups of earlier rounds."""
        number, place = divmod(step, self._per_round)
        if number not in self._rounds:
            self._rounds[number] = self._sample_round(number)
            oldest = number - (self._params.replay.rounds if self._params.replay.groups else 0)
            self._rounds = {n: batch for n, batch in self._rounds.items() if n >= oldest}
        epoch, part = divmod(place, self._params.minibatches)
        order = torch.randperm(self._groups(number), generator=self._generator(number, epoch))
        chosen = {number: order.tensor_split(self._params.minibatches)[part].tolist(), **self._replayed(number, step)}
        return concatenate([self._minibatch_part(*one, step) for one in chosen.items()])

    def open(self, folder: Path) -> None:
        """Store rollouts next to the run's checkpoints."""
        if self._log is not None:
            self._log.open(folder)

    def trained(self, step: int, prepared: Ragged) -> None:
        """Note which rollouts the step was trained on."""
        if self._log is not None:
            self._log.trained(step, prepared)

    def metrics(self) -> dict[str, float]:
        """The metrics of the round (round_metrics.py), and how many groups dynamic sampling kept."""
        return self._metrics

    def state_dict(self) -> dict[str, Tensor]:
        """The rounds in memory and the position in the prompts."""
        rounds = {f"round{n}.{k}": v for n, batch in self._rounds.items() for k, v in batch.tensors().items()}
        metrics = {f"metrics.{name}": torch.tensor(value, dtype=torch.float64) for name, value in self._metrics.items()}
        old = {} if self._models.old is None else self._models.own_parameters(self._models.old, "old")
        stored = {} if self._log is None else {f"log.{name}": part for name, part in self._log.state_dict().items()}
        return {
            "cursor": torch.tensor(self._cursor),
            "reward_monitor": self._monitor.tensor(),
            "reward_failures": self._failures.tensor(),
            **rounds,
            **metrics,
            **old,
            **stored,
        }

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self._cursor = int(tensors["cursor"])
        self._monitor.load(tensors["reward_monitor"])
        self._failures.load(tensors["reward_failures"])
        rounds: dict[int, dict[str, Tensor]] = {}
        for name, part in tensors.items():
            head, _, tail = name.partition(".")
            if head.startswith("round"):
                rounds.setdefault(int(head[5:]), {})[tail] = part
        self._rounds = {number: Batch.from_tensors(rounds[number]) for number in sorted(rounds)}
        self._metrics = {
            name.removeprefix("metrics."): float(part) for name, part in tensors.items() if name.startswith("metrics.")
        }
        if self._models.old is not None:
            with torch.no_grad():
                for name, parameter in self._models.own_parameters(self._models.old, "old").items():
                    fill(parameter, tensors[name])
        if self._log is not None:
            self._log.load_state_dict({name[4:]: part for name, part in tensors.items() if name.startswith("log.")})

    def _generator(self, number: int, epoch: int) -> torch.Generator:
        return torch.Generator().manual_seed((self._seed * 1_000_003 + number) * 1009 + epoch)

    def _groups(self, number: int) -> int:
        return int(self._rounds[number].columns.rows["group"][-1]) + 1

    def _minibatch_part(self, number: int, groups: list[int], step: int) -> Batch:
        """Some groups of a round, with the optimizer steps since that round was sampled."""
        rows_of: dict[int, list[int]] = {}
        for row, group in enumerate(self._rounds[number].columns.rows["group"].tolist()):
            rows_of.setdefault(group, []).append(row)
        batch = self._rounds[number].select([row for group in groups for row in rows_of[group]])
        age = torch.full((len(batch),), step - number * self._per_round)
        group = batch.columns.rows["group"] + number * self._params.prompts
        return batch.with_columns(batch.columns.with_rows(age=age, group=group))

    def _replayed(self, number: int, step: int) -> dict[int, list[int]]:
        """Groups of earlier rounds, chosen by the seed and the step without repetition: {round: groups}."""
        earlier = [(n, group) for n in self._rounds if n != number for group in range(self._groups(n))]
        if not earlier:
            return {}
        order = torch.randperm(len(earlier), generator=self._generator(number, 500 + step % self._per_round))
        chosen: dict[int, list[int]] = {}
        for i in order[: self._params.replay.groups].tolist():
            chosen.setdefault(earlier[i][0], []).append(earlier[i][1])
        return chosen

    def _sample_round(self, number: int) -> Batch:
        """Sample a round of groups; those of zero reward variance are replaced for as many tries as the plan allows."""
        self._sampler.sync(self._models.policy, f"{self._name} step {number * self._per_round}")
        if self._models.old is not None:
            self._models.copy_policy(self._models.old)
        accepted: list[Batch] = []
        spare: list[Batch] = []
        scored: list[Rollout] = []
        tries, resample = 0, self._plan.resample
        while len(accepted) < self._params.prompts and tries <= resample:
            prompts = self._next_prompts(self._params.prompts - len(accepted))
            groups = self._sample_groups(prompts, (number, tries), scored)
            for group in groups:
                zero_variance = resample > 0 and has_zero_variance(group.columns.rows["outcome"])
                (spare if zero_variance else accepted).append(group)
            tries += 1
        short = max(self._params.minibatches - len(accepted), 0)
        accepted += spare[:short]
        if len(accepted) < self._params.minibatches:
            what = f"{len(accepted)} groups of a round could be scored, fewer than its {self._params.minibatches} steps"
            raise RewardError(what=what, where="rollout.minibatches", fix="Fix the reward, or sample more prompts")
        self._monitor.round(accepted)
        self._metrics = {
            **reward_metrics(self._reward.terms, scored),
            "groups_with_signal": groups_with_signal(accepted),
        }
        if resample:
            self._metrics |= {"sampling_rounds": float(tries), "groups_kept": len(accepted) / self._params.prompts}
        batch = self._models.add_scored_columns(_with_group_numbers(accepted), self._needs - {"step_start_logp"})
        if not self._plan.mixture:  # the log-probs of a mixture are not the policy's
            self._metrics |= sampler_gap(self._models, batch, self._params.gap_rows)
        return batch

    def _next_prompts(self, count: int) -> list[Prompt]:
        """The next prompts: all of them once per pass, each pass in another order."""
        chosen = []
        for _ in range(count):
            lap, place = divmod(self._cursor, len(self._prompts))
            generator = torch.Generator().manual_seed(self._seed * 7_919 + lap)
            order = torch.randperm(len(self._prompts), generator=generator)
            chosen.append(self._prompts[int(order[place])])
            self._cursor += 1
        return chosen

    def _scored(self, prompts: list[Prompt], name: str, first: int) -> list[Rollout]:
        """The scored rollouts of each prompt; `first`: the number of draws before them."""
        if self._stored is not None:
            return self._stored.drawn(first, prompts)
        return scored_by_first(self._reward, self._group_rollouts(prompts, name))

    def _sample_groups(self, prompts: list[Prompt], attempt: tuple[int, int], scored: list[Rollout]) -> list[Batch]:
        """A group of each prompt as a batch, without the rollouts that could not be scored; adds all to `scored`.

        `attempt`: the number of the round and of the try.
        """
        name, first = f"{attempt[0]}:{attempt[1]}", self._cursor - len(prompts)
        sampled = self._scored(prompts, name, first)
        scored += sampled
        places = self._failures.check(sampled)
        rollouts = [sampled[place] for place in places]
        self._monitor.completions(rollouts)
        rewards = self._reward.totals(rollouts)
        reward_parts = [[one.scores[key].value for one in rollouts] for key in self._reward.terms]
        if self._plan.overlong:
            longest, fraction = self._params.sampling.max_tokens, self._plan.overlong
            penalties = [soft_overlong(len(completion_ids(one)), longest, fraction) for one in rollouts]
            rewards = [reward + penalty for reward, penalty in zip(rewards, penalties, strict=True)]
            reward_parts.append(penalties)
        if self._log is not None:
            totals = dict(zip(places, rewards, strict=True))
            self._log.add(*attempt, first, sampled, self._reward, totals)
        batches = []
        for group in self._whole_groups(places):
            part = [rollouts[i] for i in group], [rewards[i] for i in group], _at(reward_parts, group)
            number = torch.tensor([first * self._params.group_size + places[i] for i in group])
            batch = self._batch(*part, name)
            batches.append(batch.with_columns(batch.columns.with_rows(rollout=number)))
        return batches

    def _whole_groups(self, places: Sequence[int]) -> Iterator[list[int]]:
        """The indices in `places` of each group of which enough is left to compare."""
        size = self._params.group_size
        groups: dict[int, list[int]] = {}
        for index, place in enumerate(places):
            groups.setdefault(place // size, []).append(index)
        return (group for group in groups.values() if len(group) >= min(size, 2))

    def _batch(self, group: list[Rollout], rewards: list[float], parts: list[list[float]], name: str) -> Batch:
        """The rows of a group, their log-probs and their rewards."""
        size = self._params.group_size
        columns = {
            "reward": torch.tensor(rewards),
            "outcome": torch.tensor([self._reward.outcome(one) for one in group]),
            "truncated": torch.tensor([one.truncated for one in group]),
        }
        if "reward_parts" in self._needs:
            columns["reward_parts"] = torch.tensor(parts).T
        if "sample_key" in self._needs:
            columns["sample_key"] = row_keys(self._seed, [f"{one.prompt.id}:{name}:{one.sample}" for one in group])
        if self._plan.opponents:
            columns["opponent"] = torch.tensor([one.sample >= size - size // 2 for one in group])
        tokens = {"old_logp": torch.tensor([x for one in group for x in one.logps])}
        if turns := placed_by_turn(self._reward.terms):
            tokens["turn_reward"] = torch.tensor([x for one in group for x in rewards_by_token(turns, one)])
        return make_batch([one.row for one in group], columns, tokens)

    def _group_rollouts(self, prompts: list[Prompt], name: str) -> list[Rollout]:
        """A group of each prompt: from the policy, from its mixture with the reference, or half of each."""
        size, plan = self._params.group_size, self._plan
        mixture = Mixture(self._models.reference, plan.mixture) if plan.mixture else None
        if not plan.opponents:
            return self._generate(prompts, name, size, mixture)
        opponents = size // 2
        own = self._generate(prompts, name, size - opponents, None)
        others = [
            replace(one, sample=one.sample + size - opponents)
            for one in self._generate(prompts, f"{name}:opponent", opponents, mixture)
        ]
        both: list[Rollout] = []
        for g in range(len(prompts)):
            for side, count in ((own, size - opponents), (others, opponents)):
                both += side[g * count : (g + 1) * count]
        return both

    def _generate(self, prompts: list[Prompt], name: str, n: int, mixture: Mixture | None) -> list[Rollout]:
        return generate_rollouts(
            self._sampler, self._text, prompts, self._params.sampling, self._seed, samples=n, name=name, mixture=mixture
        )


def _with_group_numbers(groups: list[Batch]) -> Batch:
    """Groups as one batch, numbered in the column `group`."""
    return concatenate(
        [
            group.with_columns(group.columns.with_rows(group=torch.full((len(group),), number)))
            for number, group in enumerate(groups)
        ]
    )


def _at(columns: list[list[float]], places: list[int]) -> list[list[float]]:
    """Some values of each column."""
    return [[column[place] for place in places] for column in columns]
