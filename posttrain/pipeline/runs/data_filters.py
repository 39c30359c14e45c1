"""A run of `data.filters`: remove near-duplicates, rows with low scores, and rows that fail another filter."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl

from posttrain.data.columns import TOOL_USE, Kind, canonical
from posttrain.errors import DataError
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of
from posttrain.pipeline.runs.scored_filter import ANSWER, ScoredFilterRun, answered
from posttrain.pipeline.tables.filters import filtered
from posttrain.pipeline.tables.store import write_tables
from posttrain.rewards.scorable import check_scorable, scorable_prompts
from posttrain.settings.plain import NONE


def filter_table(run: str) -> None:
    """Write the rows of a table that pass a run's filters."""
    where = f"data.filters.{run}"
    params = load(ScoredFilterRun, where)
    scored = (lambda table, kind: low_scored(table, kind, params, where)) if params.reward else None
    kind, table = filtered(run, params, scored)
    write_tables({kind: table}, Path("data") / run)


def low_scored(table: pl.DataFrame, kind: Kind, params: ScoredFilterRun, where: str) -> tuple[pl.DataFrame, str]:
    """Return rows, with reasons, whose answer has no score, a low score, or is not among the best of its prompt."""
    from posttrain.models.device import DeviceParams, Runtime  # torch: only where rows are scored
    from posttrain.rewards.failures import MAX_FAILED, FailureLimit
    from posttrain.rewards.reward import Context
    from posttrain.rewards.score import RewardSum

    if params.reward_model != NONE and (using := _with_tools(table)):
        what = f"{using} of {table.height} rows use tools, which a reward model does not see"
        raise DataError(what=what, where=f"{where}.reward_model", fix="Use another reward, or remove these rows first")
    rollouts = [answered(row, ANSWER[kind]) for row in table.iter_rows(named=True)]
    can = {prompt.id for prompt in scorable_prompts(params.reward, [one.prompt for one in rollouts], params.data)}
    context = Context(Runtime(DeviceParams()), where, model_of(params.reward_model, f"{where}.reward_model"))
    reward = RewardSum(params.reward, context)
    judged = reward.score([rollout for rollout in rollouts if rollout.prompt.id in can])
    judged = [judged[place] for place in FailureLimit(reward, MAX_FAILED, where).check(judged)]
    check_scorable(params.reward, judged, where)
    scores = dict(zip((rollout.prompt.id for rollout in judged), reward.totals(judged), strict=True))

    scored = table.with_columns(score=pl.Series([scores.get(row) for row in table["id"]], dtype=pl.Float64))
    score, least = pl.col("score"), -math.inf if params.min_score is None else params.min_score
    prompts = pl.Series([canonical([one.prompt.messages, one.prompt.variables]) for one in rollouts], dtype=pl.String)
    place = score.rank("ordinal", descending=True).over("split", prompts)
    limits: dict[str, pl.Expr] = {
        "no score": score.is_null(),
        f"a score below {least:g}": score < least,
        f"not among the best {params.best} of the prompt": place > (params.best or table.height),
    }
    reason = pl.coalesce(pl.when(low).then(pl.lit(why)) for why, low in limits.items())
    listed = scored.select("id", "score", reason=reason).filter(pl.col("reason").is_not_null())
    return listed, ", ".join(why for why in limits if why in listed["reason"]) or "none of low score"


def _with_tools(table: pl.DataFrame) -> int:
    """Return the number of rows that contain more than texts of turns."""
    used = [pl.col(name).is_not_null() for name in TOOL_USE if name in table.columns]
    return table.filter(pl.any_horizontal(used)).height if used else 0
