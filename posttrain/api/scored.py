"""Sample from a model and score the samples, e.g. to make training rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.api.argument_checks import check_config
from posttrain.api.frozen_models import frozen
from posttrain.api.given import prompts_given
from posttrain.api.own_model import Messages
from posttrain.api.scorer_folder import scorer_folder
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rollout import Prompt
from posttrain.sampling.frozen import OpenSampler
from posttrain.sampling.scored import SampleConfig, ScoredSamples, scored_samples

NAME = "sample_and_score"


def sample_and_score(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Messages | Mapping[str, Any] | Prompt],
    config: SampleConfig,
    *,
    reward_model: str | Path | None = None,
    sampler: OpenSampler | None = None,
    name: str = NAME,
    where: str = NAME,
) -> ScoredSamples:
    """Sample each prompt several times and score the completions, e.g. to keep the best or to make pairs.

    model, tokenizer: from transformers; or the policy from `load_frozen`, and None. prompts: as in `train_online`.
    reward_model: the folder of the model behind the reward `model`. sampler: opens the sampler; the default is the
    engine in the settings. name, where: names of this task and of its settings in messages.

    Example: `sample_and_score(model, tokenizer, prompts, SampleConfig(reward=reward, samples=8)).rewards`
    """
    check_config(config, SampleConfig, NAME, {})
    scored_by = scorer_folder(config, reward_model)
    with frozen(model, tokenizer, config) as policy:
        asked = prompts_given(policy.text, prompts)
        if not all(isinstance(prompt, Prompt) for prompt in prompts):
            asked = scorable_prompts(config.reward, asked, "prompts")
        return scored_samples(config, policy, asked, reward_model=scored_by, name=name, where=where, opens=sampler)
