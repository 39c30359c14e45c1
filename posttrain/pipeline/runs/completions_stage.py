"""A stage that samples for an evaluation: read its inputs, and write the completions to files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from posttrain.api.completions import sample_completions
from posttrain.data.splits import check_enough_prompts
from posttrain.errors import ParamsError
from posttrain.evaluate.completions import hide_quotes
from posttrain.evaluate.sampled import SampledCompletions
from posttrain.measure.record import note
from posttrain.pipeline.params.slots import model_of, needed_model
from posttrain.pipeline.runs.completion_cache import cached
from posttrain.pipeline.runs.sampled_evaluation import SampledParams, SampledRun, load_policies, load_sampled
from posttrain.pipeline.runs.stored_completions import write_completions, write_no_completions
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import PARAMS_FILE, table_path
from posttrain.rollout import Prompt
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import OpenSampler, engine_of, load_frozen
from posttrain.sampling.sampler import encode_prompts, prompts_of
from posttrain.settings.params import did_you_mean
from posttrain.text.chat import ChatText

S = TypeVar("S", bound=SampledParams)


@dataclass(frozen=True)
class CompletionsStage(Generic[S]):
    """The completions of one policy with their settings from params.yaml."""

    name: str
    """The stage, e.g. `completions@grpo`."""
    section: str
    """The key path of its settings."""
    model_name: str
    params: S

    @property
    def label(self) -> str:
        """The folder of its completions and results."""
        return self.name.partition("@")[2]

    @property
    def folder(self) -> Path:
        """The folder of the policy."""
        return needed_model(self.model_name, self.name)

    @property
    def table(self) -> Path:
        """The file of its prompts."""
        return table_path(self.params.data)

    def policy(self) -> SampledModel:
        """Load the policy."""
        return load_frozen(self.folder, self.params)

    @property
    def sampler(self) -> OpenSampler:
        """The function that opens the sampler. Cached completions are not sampled again."""
        keep = self.params.completions == "full"
        return cached(
            engine_of(self.params, self.section, self.model_name), self.params.device, self.section, keep=keep
        )

    @property
    def reference(self) -> Path | None:
        """The folder of the reference for the KL."""
        return model_of(self.params.reference, f"{self.section}.reference")

    def asked(self) -> list[Prompt]:
        """Return the first prompts of the split, without tokens."""
        params = self.params
        rows = read_table(self.table, "prompts").filter(split=params.split)
        check_enough_prompts(rows.height, params.split, self.table)
        if rows.height < params.prompts and "prompts" in params.model_fields_set:
            known = f"{rows.height} prompts are all there are in split '{params.split}'"
            print(f"{self.name}: {known} ({self.section}.prompts: {params.prompts})", file=sys.stderr)
        return prompts_of(rows.head(params.prompts).iter_rows(named=True))

    def prompts(self, text: ChatText) -> list[Prompt]:
        """Return the prompts with their tokens."""
        return encode_prompts(text, self.asked())

    def sampled(self) -> SampledCompletions:
        """Load the policy and sample it."""
        policy = self.policy()
        return sample_completions(
            policy, None, self.prompts(policy.text), self.params, reference=self.reference, sampler=self.sampler,
            name=self.name, where=self.section,
        )  # fmt: skip

    def store(self, completions: SampledCompletions) -> None:
        """Write the completions into completions/."""
        write_completions(completions, Path("completions", self.label))
        print(f"{self.name}: {len(completions.rollouts):,} samples of {len(completions.greedy):,} prompts")

    def store_nothing(self) -> None:
        """Write a folder with a note that no completions are stored."""
        write_no_completions(Path("completions", self.label))
        print(f"{self.name}: params.yaml stores no completions of it, so its evaluation does all")


def policy_of(label: str) -> str:
    """Return the model of a policy in `evaluate.policies`."""
    policies = load_policies()
    if label not in policies:
        fix = did_you_mean(label, list(policies))
        raise ParamsError(what=f"evaluate.policies has no '{label}'", where=PARAMS_FILE, fix=fix)
    return policies[label]


@contextmanager
def completions_of(stage: str) -> Iterator[CompletionsStage[SampledParams]]:
    """Yield the completions of a stage: `completions@LABEL` or `completions_runs@RUN`.

    Errors do not quote text that is not stored.
    """
    kind, _, name = stage.partition("@")
    if kind == "completions":
        section, model, params = "evaluate.settings", policy_of(name), load_sampled(SampledParams, "evaluate.settings")
    else:
        section = f"evaluate.runs.{name}"
        params = run = load_sampled(SampledRun, section)
        model = run.policy
    note(seed=params.seed)
    with hide_quotes(params.completions):
        yield CompletionsStage(stage, section, model, params)
