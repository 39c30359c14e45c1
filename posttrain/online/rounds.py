"""The policy's samples as batches: rounds of groups, cut into minibatches, used for several epochs, and replayed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from posttrain.algorithms.objective import STEP_COLUMNS
from posttrain.distributed import world
from posttrain.errors import RewardError
from posttrain.evaluate.intervals import FAILED_COUNT
from posttrain.formulas.policy import k3
from posttrain.models.sharding import fill
from posttrain.online.collect import Collect, Draw
from posttrain.online.prompt_order import prompt_order
from posttrain.online.reward_monitor import has_zero_variance
from posttrain.online.rollout_params import Renewal, RolloutParams
from posttrain.rewards.usage import USED, judge_metrics
from posttrain.rollout import FAILED, Prompt, Rollout
from posttrain.sampling.sampler import rest
from posttrain.train.batch_sources import BatchSource, prefixed, under
from posttrain.train.model_set import ModelSet
from posttrain.train.routing import with_experts
from posttrain.train.step import Batch, concatenate


class Round(NamedTuple):
    """The samples of a round with rewards and metrics."""

    batch: Batch
    metrics: dict[str, float]

    def tensors(self) -> dict[str, Tensor]:
        """Return the round as named tensors, for a checkpoint."""
        return prefixed(batch=self.batch.tensors(), metrics=metric_tensors(self.metrics))

    @staticmethod
    def from_tensors(saved: Mapping[str, Tensor]) -> Round:
        """Return the round stored in `tensors`."""
        return Round(Batch.from_tensors(under(saved, "batch")), metrics_from(under(saved, "metrics")))


class RoundSampler(Protocol):
    """Samples the rounds of a run: with the current weights (FreshRounds), or one round ahead (ahead.py)."""

    def take(self, number: int, step: int) -> Round:
        """Return the samples of a round that begins with this optimizer step."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint needs to resume."""
        ...

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        ...


class FreshRounds:
    """Samples a round with the current weights. The order of the prompts depends on the seed."""

    def __init__(self, prompts: Sequence[Prompt], collect: Collect, params: RolloutParams, tries: int = 1) -> None:
        """`tries`: above 1, groups of equal rewards are drawn again (dynamic sampling)."""
        self._prompts, self._collect, self.params, self._tries = prompts, collect, params, tries
        self.sampler = collect.sampler
        self._order = prompt_order(prompts, collect.seed, params.pass_rates)
        self._places: list[int] = []
        self._drawn = 0

    def take(self, number: int, step: int) -> Round:
        """Return the samples of a round."""
        self.sampler.sync(step)
        round_ = self.finish(self.begin(number))
        rest(self.sampler)
        return round_

    def begin(self, number: int) -> Draw:
        """Choose the prompts of a round."""
        return self._draw(number, 0, self.params.prompts)

    def finish(self, draw: Draw, sampled: Sequence[Rollout] | None = None) -> Round:
        """Return the groups of a round. Groups of equal rewards are replaced until no tries are left."""
        accepted: list[Batch] = []
        spare: list[Batch] = []
        rollouts: list[Rollout] = []
        tries, most, number, judged = 0, self.params.prompts, draw.round, dict(USED)
        while len(accepted) < most and tries < self._tries:
            if tries:
                draw, sampled = self._draw(number, tries, most - len(accepted)), None
            collected = self._collect(draw, sampled)
            rollouts += collected.rollouts
            for group in collected.groups:
                index = int(group.columns.rows["rollout"][0]) // self.params.group_size - draw.first
                self._order.learn(self._places[index], group.columns.rows["outcome"])
                replaced = self._tries > 1 and has_zero_variance(group, "outcome")
                (spare if replaced else accepted).append(group)
            tries += 1
        accepted_count = len(accepted)
        accepted += spare[: max(self.params.minibatches - accepted_count, 0)]
        self._check_enough(len(accepted))
        self._collect.monitor.round(accepted)
        metrics = reward_metrics(self._collect.rewards.terms, rollouts)
        metrics |= world.from_first(partial(judge_metrics, judged))
        metrics["groups_with_signal"] = groups_with_signal(accepted)
        if self._tries > 1:
            metrics |= {"sampling_rounds": float(tries), "groups_kept": accepted_count / most}
        return Round(_numbered(accepted), metrics)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the position in the prompts and the counts of samples."""
        return {
            "cursor": torch.tensor(self._drawn),
            "reward_monitor": self._collect.monitor.tensor(),
            "reward_failures": self._collect.failures.tensor(),
            **prefixed(order=self._order.state_dict()),
        }

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        self._drawn = int(tensors["cursor"])
        self._collect.monitor.load(tensors["reward_monitor"])
        self._collect.failures.load(tensors["reward_failures"])
        self._order.load_state_dict(under(tensors, "order"))

    def _draw(self, number: int, attempt: int, count: int) -> Draw:
        """Return the next prompts."""
        first, self._places = self._drawn, self._order.places(self._drawn, count)
        self._drawn += count
        return Draw([self._prompts[place] for place in self._places], first, number, attempt)

    def _check_enough(self, groups: int) -> None:
        if groups < self.params.minibatches:
            what = f"{groups} groups of a round could be scored, fewer than its {self.params.minibatches} steps"
            raise RewardError(what=what, where="rollout.minibatches", fix="Fix the reward, or sample more prompts")


class Rounds(BatchSource):
    """A batch source that requests a new round when the last round is used up."""

    def __init__(
        self,
        sampled: RoundSampler,
        models: ModelSet,
        needs: frozenset[str],
        params: RolloutParams,
        seed: int,
        *,
        of_policy: bool = True,
        renewal: Renewal | None = None,
        replays: bool = False,
    ) -> None:
        """`of_policy`: the samples' log-probs are the policy's, not those of a mixture.

        `replays`: each token keeps the experts from the start of its round.
        """
        self._renewal, self._replays = renewal, replays
        self._sampled, self._models, self._needs, self._params = sampled, models, needs, params
        self._seed, self._of_policy = seed, of_policy
        self._rounds: dict[int, Batch] = {}
        self._metrics: dict[str, float] = {}

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self._params.rounds * self._params.steps_a_round

    def batch(self, step: int) -> Batch:
        """Return the groups of one minibatch and groups of earlier rounds.

        A new round is sampled first if one begins.
        """
        number, place = divmod(step, self._params.steps_a_round)
        if number not in self._rounds:
            oldest = number - (self._params.replay.rounds if self._params.replay.groups else 0)
            self._rounds = {n: batch for n, batch in self._rounds.items() if n >= oldest}
            self._rounds[number] = self._begin_round(number, step)
        epoch, part = divmod(place, self._params.minibatches)
        order = torch.randperm(self._groups(number), generator=self._generator(number, epoch))
        chosen = {number: order.tensor_split(self._params.minibatches)[part].tolist(), **self._replayed(number, step)}
        return concatenate([self._minibatch_part(*item, step) for item in chosen.items()])

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the round, including the number of groups that dynamic sampling kept."""
        return self._metrics

    def state_dict(self) -> dict[str, Tensor]:
        """Return the rounds in memory and the sampler's state."""
        sampled = self._sampled.state_dict()
        rounds = {f"round{number}": batch.tensors() for number, batch in self._rounds.items()}
        metrics = metric_tensors(self._metrics)
        return prefixed(sampled=sampled, metrics=metrics, **self._moving_models(), **rounds)

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        self._sampled.load_state_dict(under(tensors, "sampled"))
        self._metrics = metrics_from(under(tensors, "metrics"))
        names = {name.partition(".")[0] for name in tensors}
        numbers = sorted(int(name.removeprefix("round")) for name in names if name.startswith("round"))
        self._rounds = {number: Batch.from_tensors(under(tensors, f"round{number}")) for number in numbers}
        with torch.no_grad():
            for name, parameter in prefixed(**self._moving_models()).items():
                fill(parameter, tensors[name])

    def _begin_round(self, number: int, step: int) -> Batch:
        """Return the samples of a round with columns computed by the present models."""
        if self._renewal is not None and number and number % self._renewal.every == 0:
            self._models.copy_policy(self._models.reference, self._renewal.keep)
            self._rounds = {n: self._with_new_reference(batch) for n, batch in self._rounds.items()}
        sampled = self._sampled.take(number, step)
        if self._models.old is not None:
            self._models.copy_policy(self._models.old)
        batch = self._models.add_scored_columns(sampled.batch, self._needs - STEP_COLUMNS)
        batch = with_experts(self._models, batch) if self._replays else batch
        self._metrics = dict(sampled.metrics)
        if self._of_policy:
            self._metrics |= sampler_metrics(self._models, batch, self._params)
        return batch

    def _with_new_reference(self, batch: Batch) -> Batch:
        """Return a round for replay with the log-probs of the present reference."""
        tokens = {name: column for name, column in batch.columns.tokens.items() if name != "ref_logp"}
        without = batch.with_columns(replace(batch.columns, tokens=tokens))
        return self._models.add_scored_columns(without, frozenset({"ref_logp"}))

    def _moving_models(self) -> dict[str, dict[str, Tensor]]:
        """Return the weights of frozen models that change: the sampling policy, and a reference that is renewed."""
        moving = {"old": self._models.old, "reference": self._models.reference if self._renewal else None}
        return {name: dict(self._models.own_parameters(model)) for name, model in moving.items() if model is not None}

    def _generator(self, number: int, epoch: int) -> torch.Generator:
        return torch.Generator().manual_seed((self._seed * 1_000_003 + number) * 1009 + epoch)

    def _groups(self, number: int) -> int:
        return int(self._rounds[number].columns.rows["group"][-1]) + 1

    def _minibatch_part(self, number: int, groups: list[int], step: int) -> Batch:
        """Return some groups of a round, with the number of optimizer steps since that round was sampled."""
        rows_of: dict[int, list[int]] = {}
        for row, group in enumerate(self._rounds[number].columns.rows["group"].tolist()):
            rows_of.setdefault(group, []).append(row)
        batch = self._rounds[number].select([row for group in groups for row in rows_of[group]])
        age = torch.full((len(batch),), step - number * self._params.steps_a_round)
        group = batch.columns.rows["group"] + number * self._params.prompts
        fresh = age < self._params.minibatches  # the first time through a round
        return batch.with_columns(batch.columns.with_rows(age=age, fresh=fresh, group=group))

    def _replayed(self, number: int, step: int) -> dict[int, list[int]]:
        """Return distinct groups of earlier rounds that the seed and the step decide: {round: groups}."""
        earlier = [(n, group) for n in self._rounds if n != number for group in range(self._groups(n))]
        if not earlier:
            return {}
        place = step % self._params.steps_a_round
        order = torch.randperm(len(earlier), generator=self._generator(number, 500 + place))
        chosen: dict[int, list[int]] = {}
        for i in order[: self._params.replay.groups].tolist():
            chosen.setdefault(earlier[i][0], []).append(earlier[i][1])
        return chosen


def metric_tensors(metrics: Mapping[str, float]) -> dict[str, Tensor]:
    """Return metrics as tensors, for a checkpoint."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in metrics.items()}


def metrics_from(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the metrics stored by `metric_tensors`."""
    return {name: float(part) for name, part in tensors.items()}


def _numbered(groups: Sequence[Batch]) -> Batch:
    """Return groups as one batch, numbered in the column `group`."""
    return concatenate(
        [
            group.with_columns(group.columns.with_rows(group=torch.full((len(group),), number)))
            for number, group in enumerate(groups)
        ]
    )


def reward_metrics(names: Iterable[str], rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return each part's mean and standard deviation over scored rollouts, its share of `ok`, and its failures."""
    metrics: dict[str, float] = {}
    for name in names:
        scores = [rollout.scores[name] for rollout in rollouts]
        values = [score.value for score in scores if score.status not in FAILED]
        if values:
            metrics[f"reward_{name}"] = sum(values) / len(values)
            metrics[f"reward_{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        metrics[f"reward_{name}_ok"] = sum(score.status == "ok" for score in scores) / len(scores)
        if lost := len(scores) - len(values):
            metrics[f"reward_{name}{FAILED_COUNT}"] = float(lost)
    return metrics


def groups_with_signal(groups: Sequence[Batch]) -> float:
    """Return the share of groups with unequal rewards."""
    return sum(not has_zero_variance(group) for group in groups) / len(groups)


def sampler_metrics(models: ModelSet, batch: Batch, params: RolloutParams) -> dict[str, float]:
    """Return the difference between the trainer's and the sampler's log-probs, on some rows of a new round.

    If the trainer has recomputed them for a correction, all rows are used. `sampler_gap`: mean and largest absolute
    difference, if both have the same weights. `sampler_kl`: KL(sampler || trainer) by k3, if the sampler is another
    engine or has the weights of an earlier round.
    """
    rows = params.gap_rows
    if not rows and not params.foreign:
        return {}
    if "recomputed_logp" not in batch.columns.tokens:
        rows = rows or 1
        batch = batch.select(range(0, len(batch), max(len(batch) // rows, 1))[:rows])
        training = models.policy.training
        models.policy.eval()  # dropout would draw random numbers
        batch = models.add_scored_columns(batch, frozenset({"recomputed_logp"}))
        models.policy.train(training)
    tokens = batch.columns.tokens
    log_ratio = tokens["recomputed_logp"] - tokens["old_logp"]
    metrics: dict[str, float] = {}
    if not params.ahead and params.gap_rows:
        metrics = {"sampler_gap": float(log_ratio.abs().mean()), "sampler_gap_max": float(log_ratio.abs().max())}
    if params.foreign:
        metrics["sampler_kl"] = float(k3(tokens["old_logp"].double(), tokens["recomputed_logp"].double()).mean())
    return metrics
