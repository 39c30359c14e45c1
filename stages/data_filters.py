"""data_filters: one run of `data.filters`, a table without some of its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field, model_validator

from posttrain.params.params import load
from posttrain.processes.stage import run_named_stage
from posttrain.rewards.catalog import LEARNED, Rewards, learned, need_a_weight
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.tables.columns import Kind
from posttrain.tables.filters import FilterRun, filtered
from posttrain.tables.store import write_tables

ANSWER = {"chat": "messages", "pairs": "chosen", "feedback": "completion"}
"""Kinds of tables with answers, and the column that ends with the answer that is scored."""


class ScoredFilterRun(FilterRun):
    """The settings of one run: what its rows must be like, and how their answers must score."""

    reward: Rewards = Field({}, description="weight of each reward by name: the score of a row's last answer")
    min_score: float | None = Field(None, description="leave out rows whose answer scores less")
    best: int | None = Field(None, ge=1, description="of rows of one prompt keep so many with the highest scores")

    @model_validator(mode="after")
    def _scores_what_it_chooses_by(self) -> ScoredFilterRun:
        if bool(self.reward) != (self.min_score is not None or self.best is not None):
            raise ValueError("reward scores rows, and min_score or best choose by it. Set both, or neither")
        if self.reward and not self.data.endswith(tuple(ANSWER)):
            raise ValueError(f"data = {self.data}: its rows have no answers to score. Use {', '.join(ANSWER)}")
        if learned(self.reward):
            raise ValueError(f"reward `{LEARNED}`: a filter has no reward model. Use a rule, a judge, or your own")
        if self.reward:
            need_a_weight(self.reward)
        return self


def main(run: str) -> None:
    """Writes data/RUN/KIND.parquet, of the kind of the table that is filtered."""
    where = f"data.filters.{run}"
    params = load(ScoredFilterRun, where)
    scored = (lambda table, kind: low_scored(table, kind, params, where)) if params.reward else None
    kind, table = filtered(run, params, scored)
    write_tables({kind: table}, Path("data") / run)


def low_scored(table: pl.DataFrame, kind: Kind, params: ScoredFilterRun, where: str) -> tuple[pl.DataFrame, str]:
    """Return the rows whose answer has no score, a low one, or a lower one than enough others of the prompt."""
    from posttrain.models.device import DeviceParams, Runtime  # torch: only where rows are scored
    from posttrain.rewards.failures import MAX_FAILED, FailureLimit
    from posttrain.rewards.reward import Context
    from posttrain.rewards.scorable import check_scorable, scorable_prompts
    from posttrain.rewards.score import RewardSum

    rollouts = [answered(row, ANSWER[kind]) for row in table.iter_rows(named=True)]
    can = {prompt.id for prompt in scorable_prompts(params.reward, [one.prompt for one in rollouts], params.data)}
    reward = RewardSum(params.reward, Context(Runtime(DeviceParams()), where))
    judged = reward.score([rollout for rollout in rollouts if rollout.prompt.id in can])
    judged = [judged[place] for place in FailureLimit(reward, MAX_FAILED, where).check(judged)]
    check_scorable(params.reward, judged, where)
    scores = dict(zip((rollout.prompt.id for rollout in judged), reward.totals(judged), strict=True))

    scored = table.with_columns(score=pl.Series([scores.get(row) for row in table["id"]], dtype=pl.Float64))
    score, least = pl.col("score"), -math.inf if params.min_score is None else params.min_score
    place = score.rank("ordinal", descending=True).over("split", "problem")
    limits: dict[str, pl.Expr] = {
        "no score": score.is_null(),
        f"a score below {least:g}": score < least,
        f"not among the best {params.best} of the prompt": place > (params.best or table.height),
    }
    reason = pl.coalesce(pl.when(low).then(pl.lit(why)) for why, low in limits.items())
    listed = scored.select("id", "score", reason=reason).filter(pl.col("reason").is_not_null())
    return listed, ", ".join(why for why in limits if why in listed["reason"]) or "none of low score"


def answered(row: Mapping[str, Any], column: str) -> Rollout:
    """Return a row of a table as rewards take it, without tokens."""
    turns = [*row.get("prompt", ()), *row[column]]
    before = max(place for place, turn in enumerate(turns) if turn["role"] == "assistant")
    prompt = Prompt(row["id"], turns[:before], (), problem=row["problem"])
    return Rollout(prompt, 0, TokenRow((), ()), (), turns[before]["content"], "stop", turns[before : before + 1])


if __name__ == "__main__":
    run_named_stage(main)
