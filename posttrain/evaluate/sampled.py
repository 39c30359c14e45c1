"""Sample one policy on prompts, and compute the metrics that need its weights. Scores come later, without weights."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from posttrain.errors import ParamsError
from posttrain.evaluate.completions_config import CompletionsConfig
from posttrain.evaluate.in_context import encode_in_context, score_by_context, without_context
from posttrain.measure.progress import Progress
from posttrain.rollout import Prompt, Rollout
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import OpenSampler, engine_of, gap_of
from posttrain.sampling.sampler import check_capacity, generate_rollouts


@dataclass(frozen=True)
class SampledCompletions:
    """The completions of a policy without scores."""

    rollouts: list[Rollout]
    """The samples. Samples of one prompt are adjacent."""
    greedy: list[Rollout]
    """The greedy completion of each prompt."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that need the weights: the KL to the reference, and the engine's distance to the model."""

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, in order."""
        return [rollout.prompt for rollout in self.greedy]

    def of(self, prompts: Sequence[Prompt]) -> SampledCompletions:
        """Return the completions of some of the prompts."""
        ids = {prompt.id for prompt in prompts}
        rollouts, greedy = ([one for one in some if one.prompt.id in ids] for some in (self.rollouts, self.greedy))
        return SampledCompletions(rollouts, greedy, self.metrics)


@dataclass(frozen=True)
class PolicySampling:
    """The inputs of sampling, as values."""

    config: CompletionsConfig
    policy: SampledModel
    prompts: Sequence[Prompt]
    """Prompts with the tokens that the policy continues."""
    reference: Any | Path | None = None
    """The reference for KL: a model, or a folder that is loaded after the policy has sampled."""
    name: str = "sample_completions"
    """The name of the call or stage in messages."""
    where: str = "sample_completions"
    """The place of its settings in messages."""

    def run(self, opens: OpenSampler | None = None) -> SampledCompletions:
        """Sample each prompt several times and once greedily. `opens`: opens the sampler."""
        config, policy = self.config, self.policy
        drawn, gap = self._drawn(opens or engine_of(config, self.where))
        sampled, greedy = [without_context(policy.text, rollouts) for rollouts in drawn] if config.context else drawn
        if config.context and config.samples > 1:
            sampled = score_by_context(policy.policy, drawn[0], sampled, policy.runtime)
        return SampledCompletions(sampled, greedy, gap | self._kl(drawn[0], sampled))

    def _drawn(self, opens: OpenSampler) -> tuple[list[list[Rollout]], dict[str, float]]:
        """Return samples and greedy completions, and how far the sampler's log-probs are from the model's."""
        config, policy, prompts = self.config, self.policy, self.prompts
        if config.context:
            prompts = encode_in_context(policy.text, prompts, config.context, f"{self.where}.context")
        count = len(prompts) * config.samples
        check_capacity(policy.text.context, [prompt.ids for prompt in prompts], count, config.sampling, self.name)
        progress = Progress(self.name, count + len(prompts), "completion")
        with opens(policy, config.sampling, prompts) as sampler:
            draw = partial(generate_rollouts, sampler, policy.text, prompts, config.sampling, config.seed)
            drawn = [
                draw(samples=samples, greedy=greedy, advance=progress.advance)
                for samples, greedy in ((config.samples, False), (1, True))
            ]
            progress.close()
        return drawn, gap_of(sampler, policy, drawn[0], config.sampling.temperature, self.name)

    def _kl(self, drawn: Sequence[Rollout], sampled: Sequence[Rollout]) -> dict[str, float]:
        """Return the KL to the reference, if there is one. Print a line if it cannot be measured."""
        config, policy, reference = self.config, self.policy, self.reference
        if reference is None:
            return {}
        from posttrain.evaluate.kl import kl_to_reference
        from posttrain.models.files.store import load_policy, load_tokenizer
        from posttrain.models.master_weights import frozen_on

        if policy.folder != Path() and reference == policy.folder and not config.context:
            return {"kl_k1": 0.0, "kl_k3": 0.0}
        if config.sampling.truncates:
            what = "no KL to the reference: top_p or top_k exclude tokens, but the log-probs cover all tokens"
            print(f"{self.name}: {what}", file=sys.stderr)
            return {}
        if isinstance(reference, Path):
            if policy.text.tokenizer.get_vocab() != load_tokenizer(reference).get_vocab():
                what = f"{reference} has a different tokenizer, so the KL to it is not measured"
                print(f"{self.name}: {what}", file=sys.stderr)
                return {}
            reference = frozen_on(load_policy(reference), policy.runtime)
        few = config.kl_samples or config.samples
        rows = [(seen.row, alone.row) for seen, alone in zip(drawn, sampled, strict=True) if seen.sample < few]
        return kl_to_reference(policy.policy, reference, rows, config.sampling.temperature, policy.runtime)


def refuse_truncation(config: CompletionsConfig, reference: Any) -> None:
    """Reject a reference whose KL cannot be measured, if the caller requires it."""
    if reference is not None and config.sampling.truncates:
        what = "top_p and top_k exclude tokens, but the reference's log-probs cover all tokens"
        raise ParamsError(what=what, where="reference", fix="Sample without them, or without a reference")
