"""The settings of rollouts: how many are sampled, how, and how often they are used."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from posttrain.online.prompt_order import PassRates
from posttrain.sampling.engines import ENGINE, ENGINES, SLEEP, EngineArgs, EngineName, Servers, refuse_sampling
from posttrain.sampling.sampler import SamplingParams
from posttrain.settings.params import Params


class ReplayParams(Params):
    """The replay buffer: samples of earlier rounds are used again."""

    groups: int = Field(0, ge=0, description="groups of earlier rounds that are added to each optimizer step; 0: none")
    rounds: int = Field(2, ge=1, description="number of recent rounds that are kept for replay")


class Renewal(Params):
    """The reference is replaced by the current policy (ProRL, TR-DPO, Nash-EMA)."""

    every: int = Field(ge=1, description="rounds after which the reference is replaced by the current policy, e.g. 50")
    keep: float = Field(
        0.0, ge=0, lt=1, description="weight of the old reference in the new reference; 0: a copy of the policy"
    )


class RolloutParams(Params):
    """The number of samples, and how often they are used."""

    rounds: int = Field(60, ge=1, description="rounds of sampling")
    prompts: int = Field(16, ge=1, description="prompts per round")
    group_size: int = Field(8, ge=1, description="samples per prompt")
    pass_rates: PassRates | None = Field(
        None,
        description="draw prompts by their pass rate so far, with pass rates near 1/2 most often; null: in turn",
    )
    minibatches: int = Field(2, ge=1, description="optimizer steps per pass through a round's groups")
    epochs: int = Field(1, ge=1, description="passes through a round's samples")
    sampling: SamplingParams = Field(default_factory=SamplingParams)
    replay: ReplayParams = Field(default_factory=ReplayParams)
    gap_rows: int = Field(
        2, ge=0, description="rows per round whose log-probs the trainer recomputes (metric sampler_gap); 0: none"
    )

    engine: EngineName = ENGINE
    engine_args: EngineArgs = Field(default_factory=dict)
    engine_servers: Servers = 1
    ahead: Literal[0, 1] = Field(
        0,
        description="1: sample a round with the weights of the previous round; with vllm, while that round is trained",
    )

    @model_validator(mode="after")
    def _divisible(self) -> RolloutParams:
        if self.minibatches > self.prompts:
            raise ValueError(f"minibatches = {self.minibatches} cannot share out {self.prompts} prompts. Use fewer")
        return self

    @model_validator(mode="after")
    def _within_the_engine(self) -> RolloutParams:
        refuse_sampling(self.engine, self.sampling, self.engine_args, self.engine_servers)
        if self.ahead and self.engine_args.get(SLEEP):
            raise ValueError(
                f"engine_args.{SLEEP}: with ahead = 1, the servers sample during training. Use one of the two"
            )
        return self

    @property
    def steps_a_round(self) -> int:
        """Optimizer steps on the samples of one round."""
        return self.minibatches * self.epochs

    @property
    def foreign(self) -> bool:
        """True if the samples come from a different decoder or different weights than the trainer's."""
        return "exact" not in ENGINES[self.engine].can or self.ahead > 0
