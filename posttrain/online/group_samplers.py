"""Samplers of groups: the policy, its mixture with the reference, or half of each; or a finished run's rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posttrain.online.collect import Draw
from posttrain.online.rollout_params import RolloutParams
from posttrain.online.stored_rollouts import StoredRollouts
from posttrain.rollout import Prompt, Rollout
from posttrain.sampling.sampler import Mixture, Sampler, SamplingParams, generate_rollouts
from posttrain.text.chat import ChatText
from posttrain.train.model_set import ModelSet


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
        """`mixture`: the reference's weight; `opponents`: half of each group is of the mixture, half of the policy.

        `sampling`: what is used in place of `params.sampling`, where samples carry more.
        """
        self._sampler, self._text, self._models, self._params = sampler, text, models, params
        self._seed, self._name, self._opponents = seed, name, opponents
        self._mixture = Mixture(models.reference, mixture) if mixture else None
        self._sampling = sampling or params.sampling
        self.background = "background" in sampler.can

    def sync(self, step: int) -> None:
        """Sample with the weights as they are before an optimizer step."""
        self._sampler.sync(self._models.policy, f"{self._name} step {step}")

    def sample(self, draw: Draw) -> list[Rollout]:
        """Return a group of each prompt, one after the other."""
        size = self._params.group_size
        if not self._opponents:
            return self._generate(draw.prompts, draw.name, size, self._mixture)
        opponents = size // 2
        own = self._generate(draw.prompts, draw.name, size - opponents, None)
        others = [
            replace(rollout, sample=rollout.sample + size - opponents)
            for rollout in self._generate(draw.prompts, f"{draw.name}:opponent", opponents, self._mixture)
        ]
        both: list[Rollout] = []
        for nth in range(len(draw.prompts)):
            for side, count in ((own, size - opponents), (others, opponents)):
                both += side[nth * count : (nth + 1) * count]
        return both

    def _generate(self, prompts: Sequence[Prompt], name: str, samples: int, mixture: Mixture | None) -> list[Rollout]:
        return generate_rollouts(
            self._sampler, self._text, prompts, self._sampling, self._seed,
            samples=samples, name=name, mixture=mixture,
        )  # fmt: skip


class StoredGroups:
    """Gives the scored rollouts of a finished run in place of new ones."""

    scored, background = True, False

    def __init__(self, stored: StoredRollouts) -> None:
        self._stored = stored

    def sync(self, step: int) -> None:
        """There are no weights to sample with."""

    def sample(self, draw: Draw) -> list[Rollout]:
        """Return a group of each prompt, one after the other."""
        return self._stored.drawn(draw.first, draw.prompts)
