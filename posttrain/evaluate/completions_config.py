"""The settings that determine an evaluation's completions. Its scores have separate settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from posttrain.evaluate.context import ContextTurn, check_turns
from posttrain.evaluate.intervals import SEED
from posttrain.sampling.frozen import FrozenSampling


class CompletionsConfig(FrozenSampling):
    """How a policy is sampled on prompts, several times each and once greedily.

    Example: `CompletionsConfig(samples=4, sampling={"max_tokens": 200})`
    """

    kl_samples: int | None = Field(
        None,
        ge=1,
        description="samples per prompt for the KL; null: all (takes about as long as sampling)",
    )
    seed: int = Field(SEED, ge=0, description="seed of the samples; the default is a seed that no training uses")
    context: Annotated[list[ContextTurn], AfterValidator(check_turns)] = Field(
        default_factory=list,
        description="turns before each prompt, e.g. [{role: system, content: ...}], then examples as user, "
        "assistant, ...",
    )
