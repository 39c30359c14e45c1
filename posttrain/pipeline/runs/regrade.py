"""A run of `regrade.runs`: score the stored rollouts of a finished run again, with other rewards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
from pydantic import AfterValidator, Field, model_validator

from posttrain.api.regraded import Regraded
from posttrain.data.columns import SCORE, with_ids
from posttrain.errors import DataError
from posttrain.files import rounded, write_json
from posttrain.measure.progress import Progress
from posttrain.online.stored import records
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of, model_slot, rollouts_slot, table_slot
from posttrain.pipeline.runs.stored_rollouts import StoredRollouts, stored_rollout
from posttrain.pipeline.tables.curve import write_curve
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.pipeline.workspace import metrics_path, plot_path, rollouts_path, table_path
from posttrain.rewards.catalog import Rewards, need_a_weight, need_reward_model
from posttrain.rewards.config import ScoreConfig
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rollout import SAME, Prompt, Rollout
from posttrain.sampling.sampler import prompts_of
from posttrain.tasks.task import load_task

KEPT: Final = (pl.col("id").alias("rollout"), "prompt_id", "round", "step", pl.col("reward").alias("before"))
"""The columns of a stored row that its new scores are beside."""


class RegradeRun(ScoreConfig):
    """One run of `regrade.runs`: other rewards on the stored rollouts of a finished run."""

    rollouts: str = rollouts_slot("the run whose stored rollouts are scored again")
    data: str = table_slot("prompts", description="the prompts of that run, with their answers")
    reward_model: str = model_slot("the reward model behind reward `model`", optional=True, scores=True)
    reward: Annotated[Rewards, AfterValidator(need_a_weight)] = Field(
        description="weight of each reward by name; the score is the weighted sum"
    )

    @model_validator(mode="after")
    def _reward_model_where_it_counts(self) -> RegradeRun:
        need_reward_model(self.reward, self.reward_model)
        return self


@dataclass(frozen=True)
class RegradeStage:
    """One run with its settings from params.yaml."""

    run: str
    params: RegradeRun

    @property
    def section(self) -> str:
        """The key path of its settings."""
        return f"regrade.runs.{self.run}"

    @property
    def stored(self) -> StoredRollouts:
        """The rollouts that are scored again."""
        return StoredRollouts(rollouts_path(self.params.rollouts), f"regrade@{self.run}")

    @property
    def reward_model(self) -> Path | None:
        """The folder of the model behind the reward `model`."""
        return model_of(self.params.reward_model, f"{self.section}.reward_model")

    @property
    def max_tokens(self) -> int | None:
        """The maximum length of the run's completions, if it is known."""
        (sampling,) = self.stored.figures(self.stored.parts[0], pl.col("sampling").first()).row(0)
        limit: int | None = json.loads(sampling).get("max_tokens")
        return limit

    @cached_property
    def judged(self) -> dict[str, Prompt]:
        """Id in the rollouts -> prompt, for the prompts that the rewards can judge.

        A prompt whose answer was corrected has another id, and is found by its problem.
        """
        file = table_path(self.params.data)
        table = prompts_of(read_table(file, "prompts").iter_rows(named=True))
        by_id, by_problem = {one.id: one for one in table}, {one.problem: one for one in table}
        used: dict[str, Prompt] = {}
        for part in self.stored.parts:
            for name, problem in self.stored.figures(part, "prompt_id", "problem").unique().sort("prompt_id").rows():
                if (asked := by_id.get(name) or by_problem.get(problem)) is None:
                    what = f"the prompt {name} of rollouts/{self.params.rollouts} is not in {file}"
                    raise DataError(what=what, where=f"{self.section}.data", fix="Use the table that the run read")
                used[name] = asked
        prompts = list({prompt.id: prompt for prompt in used.values()}.values())
        if several := next((one.task for one in prompts if load_task(one.task).has_turns), None):
            what = f"the task {several} has several turns, but stored rollouts do not separate turns"
            raise DataError(what=what, where=f"{self.section}.data", fix="Evaluate the run's model with these rewards")
        judged = {prompt.id for prompt in scorable_prompts(self.params.reward, prompts, str(file))}
        return {name: prompt for name, prompt in used.items() if prompt.id in judged}

    def rounds(self) -> Iterator[list[Rollout]]:
        """Yield the rollouts of each round, which were scored together, except rollouts of prompts without a judge."""
        progress = Progress(f"regrade@{self.run}", int(self.stored.summary["rows"]), "rollout")
        for rows in _rounds(self.stored):
            judged = [(row, self.judged[row["prompt_id"]]) for row in rows if row["prompt_id"] in self.judged]
            if judged:
                yield [_rollout(row, prompt) for row, prompt in judged]
            progress.advance(len(rows))
        progress.close()

    def save(self, groups: Iterable[Sequence[Regraded]]) -> dict[str, Any]:
        """Write metrics/regrade/RUN.* and plots/regrade/RUN.csv. Print and return the metrics."""
        scored = pl.concat([_rows(group) for group in groups])
        columns = pl.concat([self.stored.figures(part, *KEPT) for part in self.stored.parts])
        columns = columns.filter(pl.col("prompt_id").is_in(list(self.judged)))
        table = with_ids(pl.concat([columns, scored], how="horizontal"), "regraded")
        figures = {"rollouts": table.height, **rounded(_figures(table))}
        file = metrics_path(f"regrade/{self.run}")
        write_table(table, file.with_suffix(".parquet"), "regraded")
        write_curve(plot_path(f"regrade/{self.run}"), _curve(table))
        write_json(file, figures)
        print(summary(self.run, figures))
        return figures


def _rollout(row: dict[str, Any], prompt: Prompt) -> Rollout:
    """Return a stored row as a rollout without scores."""
    rollout = stored_rollout(row, replace(prompt, ids=row["prompt_ids"]))
    return replace(rollout, scores={}, turns=({"role": "assistant", "content": rollout.text},))


def regrade_stage(run: str) -> RegradeStage:
    """Return a run of `regrade.runs`."""
    return RegradeStage(run, load(RegradeRun, f"regrade.runs.{run}"))


def _rounds(stored: StoredRollouts) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each round. The last round of a part goes on in the next part."""
    rows: list[dict[str, Any]] = []
    for part in stored.parts:
        for row in records(read_table(part, "training_rollouts")):
            if rows and row["round"] != rows[-1]["round"]:
                yield rows
                rows = []
            rows.append(row)
    if rows:
        yield rows


def _rows(group: Sequence[Regraded]) -> pl.DataFrame:
    """Return scored rollouts as a table without ids."""
    scores = [
        [{"name": name, "value": score.known, "status": score.status} for name, score in one.rollout.scores.items()]
        for one in group
    ]
    return pl.DataFrame(
        {
            "reward": pl.Series([one.reward for one in group], dtype=pl.Float64),
            "status": [one.status for one in group],
            "scores": pl.Series(scores, dtype=pl.List(SCORE)),
        }
    )


def _figures(table: pl.DataFrame) -> dict[str, float]:
    """Return the means of both scores over rollouts that have both, and the shares whose score moved."""
    both = table.drop_nulls(["before", "reward"])
    figures: dict[str, float] = {}
    if both.height:
        change = both["reward"] - both["before"]
        figures |= {"reward": both["reward"].mean(), "reward_before": both["before"].mean()}  # type: ignore[dict-item]
        figures |= {"raised": float((change > SAME).mean()), "lowered": float((change < -SAME).mean())}  # type: ignore[arg-type]
    if both.height < table.height:
        figures["without_both"] = 1 - both.height / table.height
    return figures


def _curve(table: pl.DataFrame) -> list[dict[str, float]]:
    """Return both scores of each optimizer step; of each round where the rollouts were not used in steps."""
    axis = "step" if table["step"].is_not_null().any() else "round"
    moved = ((pl.col("reward") - pl.col("before")).abs() > SAME).mean()
    steps = table.drop_nulls([axis, "before", "reward"]).group_by(axis).agg(
        pl.col("reward").mean(), reward_before=pl.col("before").mean(), moved=moved
    )  # fmt: skip
    rows = steps.rename({axis: "step"}).sort("step").to_dicts()
    return [{"step": row.pop("step"), **rounded(row)} for row in rows]


def _counted(figures: Mapping[str, float]) -> str:
    """Return how many rollouts have both scores."""
    both = round(figures["rollouts"] * (1 - figures.get("without_both", 0.0)))
    return f"{both:,} of {figures['rollouts']:,.0f} rollouts" if both < figures["rollouts"] else f"{both:,} rollouts"


def summary(run: str, figures: Mapping[str, float]) -> str:
    """Return the metrics as one line of text."""
    if "reward" not in figures:
        return f"{run}: no rollout has both scores"
    return (
        f"{run}: {_counted(figures)}, reward {figures['reward_before']:.3f} -> {figures['reward']:.3f}, "
        f"{figures['raised']:.1%} raised, {figures['lowered']:.1%} lowered"
    )
