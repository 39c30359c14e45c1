"""A stage that evaluates: read its inputs, and write the results to files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast

import polars as pl

from posttrain.data.columns import with_ids
from posttrain.data.splits import check_enough_prompts
from posttrain.errors import ParamsError, excerpt
from posttrain.evaluate.by_likelihood import LikelihoodKind
from posttrain.evaluate.completions import hide_quotes, hide_stderr, select_text
from posttrain.evaluate.metrics import UNREAD, rollouts_table, summary
from posttrain.evaluate.policy import Evaluation
from posttrain.files import rounded, write_json
from posttrain.measure.record import note
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of, needed_model
from posttrain.pipeline.runs.completion_cache import cached
from posttrain.pipeline.runs.evaluation import EvaluateParams, EvaluateRun, load_policies
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.pipeline.workspace import PARAMS_FILE, table_path
from posttrain.rewards.scorable import scorable_prompts, why_not_scorable
from posttrain.rollout import Prompt
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import OpenSampler, engine_of, load_frozen
from posttrain.sampling.sampler import encode_prompts, prompts_of
from posttrain.settings.params import did_you_mean

E = TypeVar("E", bound=EvaluateParams)


@dataclass(frozen=True)
class EvaluationStage(Generic[E]):
    """One evaluation of a policy with its settings from params.yaml."""

    name: str
    """The stage, e.g. `evaluate@grpo`."""
    section: str
    """The key path of its settings."""
    model_name: str
    params: E

    @property
    def label(self) -> str:
        """The folder of its results."""
        return self.name.partition("@")[2]

    @property
    def folder(self) -> Path:
        """The folder of the policy."""
        return needed_model(self.model_name, self.name)

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

    @property
    def reward_model(self) -> Path | None:
        """The folder of the model behind the reward `model`."""
        return model_of(self.params.reward_model, f"{self.section}.reward_model")

    @property
    def kind(self) -> LikelihoodKind:
        """The kind of its table."""
        return cast("LikelihoodKind", self.params.data.rpartition("/")[2])

    def rows(self) -> pl.DataFrame:
        """Return the first rows of the split."""
        file = table_path(self.params.data)
        rows = read_table(file, self.kind).filter(split=self.params.split)
        check_enough_prompts(rows.height, self.params.split, file)
        return rows.head(self.params.prompts)

    def prompts(self, policy: SampledModel) -> list[Prompt]:
        """Return the first prompts of the split that the rewards can judge; all if only answers are missing."""
        params, file = self.params, table_path(self.params.data)
        prompts = prompts_of(read_table(file, "prompts").filter(split=params.split).iter_rows(named=True))
        if any(prompt.answer.strip() for prompt in prompts) or not (unanswered := _need_answers(params, prompts)):
            before = len(prompts)
            with hide_stderr(params.completions):
                prompts = scorable_prompts(params.reward, prompts, str(file))
            if params.completions == "none" and len(prompts) < before:
                print(f"evaluate: no reward can read {before - len(prompts)} of {before} answers", file=sys.stderr)
        else:
            named = " and ".join(f"'{name}'" for name in unanswered)
            print(f"evaluate: no prompt has an answer, so reward {named} is not measured", file=sys.stderr)
        check_enough_prompts(len(prompts), params.split, file)
        if len(prompts) < params.prompts and "prompts" in params.model_fields_set:
            known = f"{len(prompts)} prompts are all there are in split '{params.split}'"
            print(f"evaluate: {known} ({self.section}.prompts: {params.prompts})", file=sys.stderr)
        return encode_prompts(policy.text, prompts[: params.prompts])

    def save(self, measured: Evaluation) -> None:
        """Write the scored rollouts and the metrics into results/."""
        folder, metrics = Path("results") / self.label, measured.metrics
        parts = [(measured.rollouts, False), *([(measured.greedy, True)] if measured.greedy else [])]
        tables = [rollouts_table(self.label, some, measured.scorer, greedy=greedy) for some, greedy in parts]
        rows = with_ids(select_text(pl.concat(tables), self.params.completions), "rollouts")
        write_table(rows, folder / "rollouts.parquet", "rollouts")
        write_json(folder / "metrics.json", figures := rounded(metrics, 5))
        write_json(folder / "headline.json", {self.label: figures["score"]} if metrics.get("judged") != 0 else {})
        if not metrics["parsed"]:
            shown = measured.rollouts[0].text
            first = "" if self.params.completions == "none" else f"; the first is {excerpt(shown, 100)}"
            print(f"evaluate@{self.label}: {UNREAD}{first} (docs/rewards.md)", file=sys.stderr)
        print(summary(self.label, {key: value for key, value in metrics.items() if key in figures}))


@contextmanager
def policy_evaluation(label: str) -> Iterator[EvaluationStage[EvaluateParams]]:
    """Yield the evaluation of a policy in `evaluate.policies`. Its errors do not quote text that is not stored."""
    policies, params = load_policies(), load(EvaluateParams, "evaluate.settings")
    if label not in policies:
        fix = did_you_mean(label, list(policies))
        raise ParamsError(what=f"evaluate.policies has no '{label}'", where=PARAMS_FILE, fix=fix)
    note(seed=params.seed)
    with hide_quotes(params.completions):
        yield EvaluationStage(f"evaluate@{label}", "evaluate.settings", policies[label], params)


@contextmanager
def table_evaluation(run: str) -> Iterator[EvaluationStage[EvaluateRun]]:
    """Yield the evaluation of a run in `evaluate.runs`. Its errors do not quote text that is not stored."""
    section = f"evaluate.runs.{run}"
    params = load(EvaluateRun, section)
    note(seed=params.seed)
    with hide_quotes(params.completions):
        yield EvaluationStage(f"evaluate_runs@{run}", section, params.policy, params)


def _need_answers(params: EvaluateParams, prompts: Sequence[Prompt]) -> list[str]:
    """Return the rewards that only lack answers, for prompts without any; empty if a reward lacks something else."""
    lacking = {
        name: {why for prompt in prompts if (why := why_not_scorable(name, term, prompt)) is not None}
        for name, term in params.reward.items()
    }
    named = [name for name, why in lacking.items() if why]
    return named if all(lacking[name] == {"empty"} for name in named) else []
