"""A policy that is only sampled: its settings, loading and engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pydantic import Field, model_validator

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.text import load_text
from posttrain.rollout import Prompt, Rollout
from posttrain.sampling.engines import (
    ENGINE,
    ENGINES,
    SLEEP,
    EngineArgs,
    EngineName,
    SampledModel,
    Servers,
    refuse_sampling,
)
from posttrain.sampling.episodes import longest_row
from posttrain.sampling.sampler import Sampler, SamplingParams
from posttrain.settings.called import Called
from posttrain.settings.params import Params
from posttrain.text.chat import DATE, TemplateDate, TemplateVariables


class FrozenSampling(Params, metaclass=Called):
    """The settings of a policy that is sampled, but not trained."""

    samples: int = Field(8, ge=1, description="samples per prompt")
    seed: int = Field(0, ge=0, description="seed of the samples")
    sampling: SamplingParams = Field(default_factory=SamplingParams)
    engine: EngineName = ENGINE
    engine_args: EngineArgs = Field(default_factory=dict)
    engine_servers: Servers = 1
    device: DeviceParams = Field(default_factory=DeviceParams)
    date: TemplateDate = Field(DATE, description="today's date for chat templates that ask for it")
    template: TemplateVariables = Field(
        default_factory=dict, description="variables for the chat template in this run, e.g. {enable_thinking: false}"
    )

    @model_validator(mode="after")
    def _within_the_engine(self) -> FrozenSampling:
        refuse_sampling(self.engine, self.sampling, self.engine_args, self.engine_servers)
        if SLEEP in self.engine_args:
            raise ValueError(f"engine_args.{SLEEP}: it only works in a rollout, between training steps. Remove it")
        return self


OpenSampler = Callable[[SampledModel, SamplingParams, Sequence[Prompt]], AbstractContextManager[Sampler]]
"""Opens the sampler of a policy. `sampling` has the longest completion, `prompts` the longest prompt."""


def load_frozen(folder: str | Path, config: FrozenSampling) -> SampledModel:
    """Load a folder's policy for sampling, on the device and in the precision that `config` sets.

    Example: `policy = load_frozen("models/sft/main", EvaluateConfig())`
    """
    from posttrain.models.files.store import load_policy
    from posttrain.models.master_weights import frozen_on

    runtime, folder = Runtime(config.device), Path(folder)
    text = load_text(folder, config.date, config.template)
    return SampledModel(frozen_on(runtime.suit(load_policy(folder)), runtime), folder, text, runtime)


def engine_of(config: FrozenSampling, where: str, version: str = "") -> OpenSampler:
    """Return a function that opens the engine in the settings. `version`: the name of the weights in rollouts."""

    @contextmanager
    def opened(policy: SampledModel, sampling: SamplingParams, prompts: Sequence[Prompt]) -> Iterator[Sampler]:
        longest = longest_row(prompts, sampling, policy.text.context)
        with ENGINES[config.engine].open(
            policy, sampling, longest, where, config.engine_args, config.engine_servers
        ) as sampler:
            sampler.sync(policy.policy, version)
            yield sampler

    return opened


def gap_of(
    sampler: Sampler, policy: SampledModel, drawn: Sequence[Rollout], temperature: float, name: str
) -> dict[str, float]:
    """Return the difference between the sampler's and the model's own log-probs; empty if they are the same."""
    if "exact" in sampler.can:
        return {}
    from posttrain.sampling.agreement import sampler_gap

    return sampler_gap(policy.policy, drawn, temperature, policy.runtime, name)
