"""A stage that evaluates: read its inputs, and write the results to files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import polars as pl

from posttrain.data.columns import with_ids
from posttrain.data.splits import check_enough_prompts
from posttrain.errors import DataError, excerpt
from posttrain.evaluate.completions import hide_quotes, hide_stderr, select_text
from posttrain.evaluate.metrics import UNREAD, rollouts_table, summary
from posttrain.evaluate.policy import Evaluation
from posttrain.evaluate.sampled import SampledCompletions
from posttrain.files import rounded, write_json
from posttrain.measure.record import note
from posttrain.models.files.text import load_text
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of
from posttrain.pipeline.runs.completions_stage import CompletionsStage, policy_of
from posttrain.pipeline.runs.evaluation import EvaluateParams, EvaluateRun
from posttrain.pipeline.runs.stored_completions import read_completions
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.rewards.scorable import judged_prompts
from posttrain.text.chat import ChatText

if TYPE_CHECKING:
    from posttrain.evaluate.by_likelihood import LikelihoodKind

E = TypeVar("E", bound=EvaluateParams)


@dataclass(frozen=True)
class EvaluationStage(CompletionsStage[E]):
    """One evaluation of a policy with its settings from params.yaml."""

    def stored(self) -> SampledCompletions | None:
        """Return the completions stored by the previous stage; None if params.yaml stores none."""
        if not self.params.are_stored:
            return None
        folder, before = Path("completions", self.label), self.name.replace("evaluate", "completions")
        if not folder.is_dir():
            raise DataError(what="there are no completions", where=str(folder), fix=f"Run `dvc repro {before}`")
        if (completions := read_completions(folder, self.asked(), self.model_name)) is None:
            raise DataError(what="its table is missing", where=str(folder), fix=f"Run `dvc repro {before}`")
        return completions

    def text(self) -> ChatText | None:
        """Return the policy's tokenizer and template for rewards that need them; None if no reward does."""
        if all(term.reward.each for term in self.params.terms.values()):  # functions of a rollout alone
            return None
        return load_text(self.folder, self.params.date, self.params.template)

    def judged(self) -> SampledCompletions:
        """Return the completions whose prompts the rewards can judge; all if only answers are missing.

        If params.yaml stores none, the policy is sampled now.
        """
        completions = self.stored()
        return self.judged_of(self.sampled() if completions is None else completions)

    def judged_of(self, completions: SampledCompletions) -> SampledCompletions:
        """Return the completions whose prompts the rewards can judge."""
        with hide_stderr(self.params.completions):
            prompts = judged_prompts(self.params.reward, completions.prompts, str(self.table))
        if self.params.completions == "none" and len(prompts) < len(completions.prompts):
            left = len(completions.prompts) - len(prompts)
            print(f"evaluate: no reward can read {left} of {len(completions.prompts)} answers", file=sys.stderr)
        check_enough_prompts(len(prompts), self.params.split, self.table, of=len(completions.prompts))
        return completions.of(prompts)

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
        rows = read_table(self.table, self.kind).filter(split=self.params.split)
        check_enough_prompts(rows.height, self.params.split, self.table)
        return rows.head(self.params.prompts)

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
    model, params = policy_of(label), load(EvaluateParams, "evaluate.settings")
    note(seed=params.seed)
    with hide_quotes(params.completions):
        yield EvaluationStage(f"evaluate@{label}", "evaluate.settings", model, params)


@contextmanager
def table_evaluation(run: str) -> Iterator[EvaluationStage[EvaluateRun]]:
    """Yield the evaluation of a run in `evaluate.runs`. Its errors do not quote text that is not stored."""
    section = f"evaluate.runs.{run}"
    params = load(EvaluateRun, section)
    note(seed=params.seed)
    with hide_quotes(params.completions):
        yield EvaluationStage(f"evaluate_runs@{run}", section, params.policy, params)
