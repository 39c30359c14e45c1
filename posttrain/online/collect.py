"""Make one round of groups: sample or read stored completions, score them, and turn each group into batch rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from posttrain.algorithms.objective import REWARD_PARTS, part_columns
from posttrain.errors import DataError
from posttrain.formulas.ragged import row_keys
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.rollout_log import SampleLog
from posttrain.online.rollout_params import RolloutParams
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.score import RewardSum, scored_by_first
from posttrain.rewards.turns import placed_terms, rewards_by_token
from posttrain.rollout import Prompt, Rollout
from posttrain.sampling.sampler import (
    KeptSampling,
    Mixture,
    RoutedSampling,
    Sampler,
    SamplingParams,
    generate_rollouts,
    rest,
)
from posttrain.text.chat import ChatText
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch, make_batch


class Draw(NamedTuple):
    """Prompts that are sampled in groups."""

    prompts: Sequence[Prompt]
    first: int
    """The number of prompts that the run drew before."""
    round: int
    attempt: int = 0
    """Counts the draws of a round after the first, which replace groups."""

    @property
    def name(self) -> str:
        """The name that determines its random numbers."""
        return f"{self.round}:{self.attempt}"


class GroupSampler(Protocol):
    """The source of a round's completions: the policy or a finished run."""

    scored: bool
    """True if the rollouts already have scores."""
    background: bool
    """True if it may sample in a thread while the policy trains."""

    def sync(self, step: int) -> None:
        """Sample with the weights before this optimizer step."""

    def sample(self, draw: Draw) -> list[Rollout]:
        """Return a group for each prompt, in order."""
        ...


class PolicyGroups:
    """Samples groups from the policy with `rollout.sampling`.

    Example: `PolicyGroups(sampler, text, models, RolloutParams(), seed=0, name="online@grpo").sample(draw)`
    """

    scored = False

    def __init__(
        self,
        sampler: Sampler,
        text: ChatText,
        models: ModelSet,
        params: RolloutParams,
        *,
        seed: int,
        name: str,
        mixture: float = 0.0,
        opponents: bool = False,
        sampling: SamplingParams | None = None,
    ) -> None:
        """`mixture`: the reference's weight.

        `opponents`: half of each group comes from the mixture, half from the policy.

        `sampling`: replaces `params.sampling` if samples must carry more data.
        """
        self._sampler, self._text, self._models, self._params = sampler, text, models, params
        self._seed, self._name, self._opponents = seed, name, opponents
        self._mixture = Mixture(models.reference, mixture) if mixture else None
        self._sampling = sampling or params.sampling
        self.background = "background" in sampler.can

    def sync(self, step: int) -> None:
        """Sample with the weights before this optimizer step."""
        self._sampler.sync(self._models.policy, f"{self._name} step {step}")

    def rest(self) -> None:
        """Let the sampler free memory until the next round."""
        rest(self._sampler)

    def sample(self, draw: Draw) -> list[Rollout]:
        """Return a group for each prompt, in order."""
        size = self._params.group_size
        if not self._opponents:
            return self._generate(draw.prompts, draw.name, size, self._mixture)
        opponents = size // 2
        sampled = self._generate(draw.prompts, draw.name, size - opponents, None)
        others = [
            replace(rollout, sample=rollout.sample + size - opponents)
            for rollout in self._generate(draw.prompts, f"{draw.name}:opponent", opponents, self._mixture)
        ]
        both: list[Rollout] = []
        for index in range(len(draw.prompts)):
            for side, count in ((sampled, size - opponents), (others, opponents)):
                both += side[index * count : (index + 1) * count]
        return both

    def _generate(self, prompts: Sequence[Prompt], name: str, samples: int, mixture: Mixture | None) -> list[Rollout]:
        return generate_rollouts(
            self._sampler, self._text, prompts, self._sampling, self._seed,
            samples=samples, name=name, mixture=mixture,
        )  # fmt: skip


class Collected(NamedTuple):
    """The groups to train on, and all scored rollouts of the draw."""

    groups: list[Batch]
    rollouts: list[Rollout]


@dataclass(frozen=True)
class Collect:
    """Samples, scores, logs and groups the completions of some prompts."""

    sampler: GroupSampler
    rewards: RewardSum
    failures: FailureLimit
    monitor: RewardMonitor
    log: SampleLog
    group_size: int
    needs: frozenset[str]
    """The columns that the objective reads."""
    seed: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """The sampling settings, which determine the data that samples must carry."""

    def __call__(self, draw: Draw, sampled: Sequence[Rollout] | None = None) -> Collected:
        """Return the groups of a draw. `sampled`: its completions, if they exist already."""
        rollouts = list(self.sampler.sample(draw) if sampled is None else sampled)
        _check_carried(rollouts, self.sampling)
        if not self.sampler.scored:
            rollouts = scored_by_first(self.rewards, rollouts)  # a status where a reward fails, never a 0
        places = self.failures.check(rollouts)
        counted = [rollouts[place] for place in places]
        self.monitor.completions(counted)
        totals = dict(zip(places, self.rewards.totals(counted), strict=True))
        self.log.add(draw.round, draw.attempt, draw.first, rollouts, self.rewards, totals)
        groups = [self._batch(draw, rollouts, group, totals) for group in self._whole_groups(places)]
        return Collected(groups, rollouts)

    def _whole_groups(self, places: Sequence[int]) -> list[list[int]]:
        """Return the indices of each group that has enough rollouts left to compare."""
        groups: dict[int, list[int]] = {}
        for place in places:
            groups.setdefault(place // self.group_size, []).append(place)
        return [group for group in groups.values() if len(group) >= min(self.group_size, 2)]

    def _batch(self, draw: Draw, rollouts: Sequence[Rollout], places: Sequence[int], totals: dict[int, float]) -> Batch:
        """Return the rows of a group with log-probs and rewards."""
        group = [rollouts[place] for place in places]
        columns = {
            "reward": torch.tensor([totals[place] for place in places]),
            "outcome": torch.tensor([self.rewards.outcome(rollout) for rollout in group]),
            "truncated": torch.tensor([rollout.truncated for rollout in group]),
            "rollout": torch.tensor([draw.first * self.group_size + place for place in places]),
            **self._parts(group),
        }
        if "sample_key" in self.needs:
            drawn = [prompt.id for prompt in draw.prompts[: places[0] // self.group_size]].count(group[0].prompt.id)
            first = drawn * self.group_size  # a prompt may be drawn twice in a round
            names = [f"{rollout.prompt.id}:{draw.name}:{first + rollout.sample}" for rollout in group]
            columns["sample_key"] = row_keys(self.seed, names)
        if "opponent" in self.needs:
            half = self.group_size - self.group_size // 2
            columns["opponent"] = torch.tensor([rollout.sample >= half for rollout in group])
        tokens = {"old_logp": torch.tensor([logp for rollout in group for logp in rollout.logps])}
        if placed := placed_terms(self.rewards.terms):
            values = [[x for rollout in group for x in rewards_by_token(*part, rollout)] for part in placed.items()]
            tokens["turn_reward"] = torch.tensor(values).sum(0)
        return make_batch([rollout.row for rollout in group], columns, tokens)

    def _parts(self, group: Sequence[Rollout]) -> dict[str, Tensor]:
        """Return the score and weight of each reward, if the objective compares rewards separately."""
        if REWARD_PARTS not in self.needs:
            return {}
        terms = self.rewards.terms.items()
        scores = {name: torch.tensor([rollout.scores[name].value for rollout in group]) for name, _ in terms}
        return part_columns({name: (scores[name], term.counted) for name, term in terms})


def _check_carried(rollouts: Sequence[Rollout], sampling: SamplingParams) -> None:
    """Reject samples without the data that log-probs depend on."""
    if isinstance(sampling, KeptSampling) and any(rollout.row.kept is None for rollout in rollouts):
        what = "the samples do not record which tokens top_p and top_k allowed, and log-probs need them"
        fix = "Use the built-in sampler, or top_p 1 and top_k null"
        raise DataError(what=what, where="rollout.sampling", fix=fix)
    if isinstance(sampling, RoutedSampling) and any(rollout.row.experts is None for rollout in rollouts):
        what = "the samples do not record which experts computed them (rollouts/ does not store experts)"
        fix = "Sample with engine vllm, or use true, which uses the policy's own experts"
        raise DataError(what=what, where="router.replay = sampler", fix=fix)
