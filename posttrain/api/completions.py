"""Sample a model on prompts, in memory. The completions can be scored later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.api.argument_checks import check_config
from posttrain.api.frozen_models import beside, frozen
from posttrain.api.given import prompts_given
from posttrain.api.own_model import Messages
from posttrain.evaluate.completions_config import CompletionsConfig
from posttrain.evaluate.sampled import PolicySampling, SampledCompletions
from posttrain.rollout import Prompt
from posttrain.sampling.frozen import OpenSampler

NAME = "sample_completions"


def sample_completions(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Messages | Mapping[str, Any] | Prompt],
    config: CompletionsConfig,
    *,
    reference: Any | Path | None = None,
    sampler: OpenSampler | None = None,
    name: str = NAME,
    where: str = NAME,
) -> SampledCompletions:
    """Sample each prompt several times and once greedily. `score_completions` can score the result any number of times.

    model, tokenizer: from transformers; or the policy from `load_frozen`, and None. prompts: as in `train_online`.
    reference: a model (or its folder) for measuring KL. sampler: opens the sampler; the default is the engine in the
    settings. name, where: names of this task and of its settings in messages.

    Example: `found = sample_completions(model, tokenizer, prompts, CompletionsConfig(samples=4))`
    """
    check_config(config, CompletionsConfig, NAME, {})
    with frozen(model, tokenizer, config) as policy, beside(reference, policy.runtime) as other:
        asked = prompts_given(policy.text, prompts)
        return PolicySampling(config, policy, asked, other, name, where).run(sampler)
