"""Batches that the policy samples: prompts, groups of completions, rewards, and minibatches of whole groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from posttrain.errors import RewardError
from posttrain.formulas.ragged import Ragged, row_keys
from posttrain.models.sharding import fill
from posttrain.online.ahead import Ahead, Drawn
from posttrain.online.reward_monitor import RewardMonitor, has_zero_variance
from posttrain.online.rollout_log import RolloutLog
from posttrain.online.rollout_params import RolloutParams
from posttrain.online.round_metrics import groups_with_signal, reward_metrics, sampler_metrics
from posttrain.online.stored_rollouts import StoredRollouts
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.length import completion_ids, soft_overlong
from posttrain.rewards.score import RewardSum, scored_by_first
from posttrain.rewards.turns import placed_by_turn, rewards_by_token
from posttrain.rollout import Prompt, Rollout
from posttrain.sampling.sampler import Mixture, Sampler, generate_rollouts
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import BatchSource
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch, concatenate, make_batch


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


class Attempt(NamedTuple):
    """Prompts of a round, the number of draws before them, and what samples their groups."""

    prompts: list[Prompt]
    first: int
    sample: Callable[[], list[Rollout]]


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
        background = "background" in sampler.can and stored is None
        self._ahead = Ahead(self._begin, self._draw, background=background) if params.ahead else None

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self._params.rounds * self._per_round

    @property
    def _per_round(self) -> int:
        return self._params.minibatches * self._params.epochs

    def batch(self, step: int) -> Batch:
        """Return the groups of one minibatch, sampled when a round begins, and groups of earlier rounds."""
        number, place = divmod(step, self._per_round)
        if number not in self._rounds:
            self._rounds[number] = self._sample_round(number)
            oldest = number - (self._params.replay.rounds if self._params.replay.groups else 0)
            self._rounds = {n: batch for n, batch in self._rounds.items() if n >= oldest}
        epoch, part = divmod(place, self._params.minibatches)
        order = torch.randperm(self._groups(number), generator=self._generator(number, epoch))
        chosen = {number: order.tensor_split(self._params.minibatches)[part].tolist(), **self._replayed(number, step)}
        return concatenate([self._minibatch_part(*item, step) for item in chosen.items()])

    def open(self, folder: Path) -> None:
        """Store rollouts next to the run's checkpoints."""
        if self._log is not None:
            self._log.open(folder)

    def trained(self, step: int, prepared: Ragged) -> None:
        """Note which rollouts the step was trained on."""
        if self._log is not None:
            self._log.trained(step, prepared)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the round (round_metrics.py), and how many groups dynamic sampling kept."""
        return self._metrics

    def state_dict(self) -> dict[str, Tensor]:
        """Return the rounds in memory, the one that was sampled ahead, and the position in the prompts."""
        ahead = {} if self._ahead is None else {f"ahead.{name}": part for name, part in self._ahead.tensors().items()}
        rounds = {f"round{n}.{k}": v for n, batch in self._rounds.items() for k, v in batch.tensors().items()}
        metrics = {f"metrics.{name}": torch.tensor(value, dtype=torch.float64) for name, value in self._metrics.items()}
        old = {} if self._models.old is None else self._models.own_parameters(self._models.old, "old")
        stored = {} if self._log is None else {f"log.{name}": part for name, part in self._log.state_dict().items()}
        return {
            "cursor": torch.tensor(self._cursor),
            "reward_monitor": self._monitor.tensor(),
            "reward_failures": self._failures.tensor(),
            **rounds,
            **ahead,
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
        if self._ahead is not None:
            self._ahead.load({name[6:]: part for name, part in tensors.items() if name.startswith("ahead.")})
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
        """Return some groups of a round, with the optimizer steps since that round was sampled."""
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
        """Return the samples of a round, with the columns of the models as they are now."""
        drawn = self._drawn(number)
        if self._models.old is not None:
            self._models.copy_policy(self._models.old)
        batch = self._models.add_scored_columns(drawn.batch, self._needs - {"step_start_logp"})
        self._metrics = dict(drawn.metrics)
        if not self._plan.mixture:  # the log-probs of a mixture are not the policy's
            self._metrics |= sampler_metrics(self._models, batch, self._params)
        return batch

    def _drawn(self, number: int) -> Drawn:
        """Return the samples of a round: of the weights as they are now, or with `ahead` of those one round before."""
        if self._ahead is None:
            self._sync(number)
            return self._draw(number, self._begin(number))
        if number == 0:
            self._sync(0)
            self._ahead.begin(0)
        drawn = self._ahead.take(number)
        if number + 1 < self._params.rounds:
            if number:
                self._sync(number)
            self._ahead.begin(number + 1)
        return drawn

    def _sync(self, number: int) -> None:
        """Give the sampler the weights as they are when a round begins."""
        if self._stored is None:
            self._sampler.sync(self._models.policy, f"{self._name} step {number * self._per_round}")

    def _begin(self, number: int, attempt: int = 0, count: int | None = None) -> Attempt:
        """Choose the prompts of an attempt."""
        prompts = self._next_prompts(self._params.prompts if count is None else count)
        first = self._cursor - len(prompts)
        if self._stored is not None:
            return Attempt(prompts, first, partial(self._stored.drawn, first, prompts))
        return Attempt(prompts, first, partial(self._group_rollouts, prompts, f"{number}:{attempt}"))

    def _draw(self, number: int, attempt: Attempt) -> Drawn:
        """Return a round of groups; those of zero reward variance are replaced for as many tries as the plan allows."""
        accepted: list[Batch] = []
        spare: list[Batch] = []
        scored: list[Rollout] = []
        tries, resample = 0, self._plan.resample
        while len(accepted) < self._params.prompts and tries <= resample:
            if tries:
                attempt = self._begin(number, tries, self._params.prompts - len(accepted))
            groups = self._sample_groups(attempt, (number, tries), scored)
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
        metrics = {
            **reward_metrics(self._reward.terms, scored),
            "groups_with_signal": groups_with_signal(accepted),
        }
        if resample:
            metrics |= {"sampling_rounds": float(tries), "groups_kept": len(accepted) / self._params.prompts}
        return Drawn(_with_group_numbers(accepted), metrics)

    def _next_prompts(self, count: int) -> list[Prompt]:
        """Return the next prompts: all of them once per pass, each pass in another order."""
        chosen = []
        for _ in range(count):
            lap, place = divmod(self._cursor, len(self._prompts))
            generator = torch.Generator().manual_seed(self._seed * 7_919 + lap)
            order = torch.randperm(len(self._prompts), generator=generator)
            chosen.append(self._prompts[int(order[place])])
            self._cursor += 1
        return chosen

    def _sample_groups(self, attempt: Attempt, place: tuple[int, int], scored: list[Rollout]) -> list[Batch]:
        """A group of each prompt as a batch, without the rollouts that could not be scored; adds all to `scored`.

        `place`: the number of the round and of the try.
        """
        name, first = f"{place[0]}:{place[1]}", attempt.first
        sampled = attempt.sample()
        if self._stored is None:
            sampled = scored_by_first(self._reward, sampled)
        scored += sampled
        places = self._failures.check(sampled)
        rollouts = [sampled[place] for place in places]
        self._monitor.completions(rollouts)
        rewards = self._reward.totals(rollouts)
        reward_parts = [[rollout.scores[key].value for rollout in rollouts] for key in self._reward.terms]
        if self._plan.overlong:
            longest, fraction = self._params.sampling.max_tokens, self._plan.overlong
            penalties = [soft_overlong(len(completion_ids(rollout)), longest, fraction) for rollout in rollouts]
            rewards = [reward + penalty for reward, penalty in zip(rewards, penalties, strict=True)]
            reward_parts.append(penalties)
        if self._log is not None:
            totals = dict(zip(places, rewards, strict=True))
            self._log.add(*place, first, sampled, self._reward, totals)
        batches = []
        for group in self._whole_groups(places):
            part = [rollouts[i] for i in group], [rewards[i] for i in group], _at(reward_parts, group)
            number = torch.tensor([first * self._params.group_size + places[i] for i in group])
            batch = self._batch(*part, name)
            batches.append(batch.with_columns(batch.columns.with_rows(rollout=number)))
        return batches

    def _whole_groups(self, places: Sequence[int]) -> Iterator[list[int]]:
        """Return the indices in `places` of each group of which enough is left to compare."""
        size = self._params.group_size
        groups: dict[int, list[int]] = {}
        for index, place in enumerate(places):
            groups.setdefault(place // size, []).append(index)
        return (group for group in groups.values() if len(group) >= min(size, 2))

    def _batch(self, group: list[Rollout], rewards: list[float], parts: list[list[float]], name: str) -> Batch:
        """Return the rows of a group, their log-probs and their rewards."""
        size = self._params.group_size
        columns = {
            "reward": torch.tensor(rewards),
            "outcome": torch.tensor([self._reward.outcome(rollout) for rollout in group]),
            "truncated": torch.tensor([rollout.truncated for rollout in group]),
        }
        if "reward_parts" in self._needs:
            columns["reward_parts"] = torch.tensor(parts).T
        if "sample_key" in self._needs:
            columns["sample_key"] = row_keys(
                self._seed, [f"{rollout.prompt.id}:{name}:{rollout.sample}" for rollout in group]
            )
        if self._plan.opponents:
            columns["opponent"] = torch.tensor([rollout.sample >= size - size // 2 for rollout in group])
        tokens = {"old_logp": torch.tensor([x for rollout in group for x in rollout.logps])}
        if turns := placed_by_turn(self._reward.terms):
            tokens["turn_reward"] = torch.tensor([x for rollout in group for x in rewards_by_token(turns, rollout)])
        return make_batch([rollout.row for rollout in group], columns, tokens)

    def _group_rollouts(self, prompts: list[Prompt], name: str) -> list[Rollout]:
        """Return a group of each prompt: from the policy, from its mixture with the reference, or half of each."""
        size, plan = self._params.group_size, self._plan
        mixture = Mixture(self._models.reference, plan.mixture) if plan.mixture else None
        if not plan.opponents:
            return self._generate(prompts, name, size, mixture)
        opponents = size // 2
        own = self._generate(prompts, name, size - opponents, None)
        others = [
            replace(rollout, sample=rollout.sample + size - opponents)
            for rollout in self._generate(prompts, f"{name}:opponent", opponents, mixture)
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
    """Return some values of each column."""
    return [[column[place] for place in places] for column in columns]
