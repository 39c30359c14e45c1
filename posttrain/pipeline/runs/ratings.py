"""`evaluate.ratings`: compare policies on the same prompts, by stored scores or by a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from posttrain.data.columns import COLUMNS, with_ids
from posttrain.errors import DataError, ParamsError, RewardError
from posttrain.evaluate.circles import circles
from posttrain.evaluate.circles import is_clear as is_clear_circle
from posttrain.evaluate.intervals import SEED, Floats
from posttrain.evaluate.pairwise import (
    Pair,
    always_valid,
    is_clear,
    length_controlled,
    ranks,
    ratings,
    resampled,
    spread,
    tallies,
    wins_by_prompt,
    with_numbers,
)
from posttrain.measure.progress import Progress
from posttrain.pipeline.tables.store import read_results
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.rewards.failures import LEAST, MAX_FAILED, MaxFailed
from posttrain.rewards.judge.judge import JudgeOptions, LanguageJudge
from posttrain.rewards.trial import finish_of
from posttrain.rollout import FAILED, Prompt, Rollout, TokenRow
from posttrain.settings.params import Params, did_you_mean

SLOT: Final = "first_slot"
BATCH: Final = 20
"""The number of prompts per request round to a judge. After each round, clear pairs are dropped."""


class PairJudge(JudgeOptions):
    """A judge that compares two completions in both orders."""

    mode: Literal["pairwise"] = Field("pairwise", description="the judge compares two completions")
    against: Literal["group"] = Field("group", description="a completion is compared with the other policy's")
    truncated: float | Literal["score"] = Field(
        0.0,
        description="0.0: a truncated completion loses, and two truncated completions tie, without asking the judge; "
        "score: compare truncated completions like others",
    )

    @model_validator(mode="after")
    def _loses(self) -> PairJudge:
        if self.most_if_cut:
            raise ValueError(f"truncated: {self.truncated} cannot be the value of a match. Use 0.0 or score")
        return self


class RatingRun(Params):
    """The policies to compare, and the score or judge that decides a match."""

    policies: list[str] | None = Field(None, description="labels of evaluate.policies; null: all")
    against: str | None = Field(None, description="compare all policies with this label; null: all pairs")
    scores: dict[str, float] | None = Field(
        None, min_length=1, description="rewards with scores in results/, and their weights; null: the total score"
    )
    judge: PairJudge | None = Field(
        None, description="the judge that chooses the better completion; null: the higher score wins"
    )
    prompts: int | None = Field(None, ge=2, description="prompts, drawn by the seed; null: all")
    samples: int | None = Field(
        None, ge=1, description="samples per prompt; sample n is compared with sample n; null: all, or 1 with a judge"
    )
    alpha: float | None = Field(
        0.05,
        gt=0,
        lt=1,
        description="with a judge: stop asking about a pair once it is clear; alpha is the maximum probability that "
        "equal policies look clear; null: never stop early",
    )
    max_failed: MaxFailed = MAX_FAILED
    seed: int = Field(SEED, ge=0, description="seed of the prompts' order and of the intervals")

    @model_validator(mode="after")
    def _one_decides(self) -> RatingRun:
        if self.judge is not None and self.scores is not None:
            raise ValueError("scores has no effect with a judge. Remove one of them")
        if self.judge is None and "alpha" in self.model_fields_set:
            raise ValueError("alpha has no effect without a judge, because all prompts count. Remove it")
        return self


def pairs_of(params: RatingRun, where: str, known: Sequence[str]) -> list[Pair]:
    """Return the pairs of labels to compare."""
    labels = list(dict.fromkeys([*(known if params.policies is None else params.policies)]))
    for key, named in (("policies", labels), ("against", [params.against] if params.against else [])):
        if unknown := [label for label in named if label not in known]:
            what = f"{where}.{key}: evaluate.policies has no '{unknown[0]:.100}'"
            raise ParamsError(what=what, where=PARAMS_FILE, fix=did_you_mean(unknown[0], list(known)))
    if params.against is None:
        pairs = list(combinations(labels, 2))
    else:
        pairs = [(label, params.against) for label in labels if label != params.against]
    if not pairs:
        fix = "List two labels of evaluate.policies, or remove the key"
        raise ParamsError(what=f"{where}.policies: a single policy has no opponent", where=PARAMS_FILE, fix=fix)
    return pairs


def played(params: RatingRun, where: str, pairs: Sequence[Pair]) -> pl.DataFrame:
    """Return the decided matches as a table `matches`. Sample i of a prompt is compared with the other's sample i.

    It has a column more, `SLOT`: how often the reply that the judge saw first won, over both orders; null without one.
    """
    completions = {
        label: _completions(label, params) for label in dict.fromkeys(name for pair in pairs for name in pair)
    }
    first, *others = completions
    ids = completions[first]["prompt_id"].unique().sort()
    for label in others:
        if not (prompt_ids := completions[label]["prompt_id"].unique().sort()).equals(ids):
            same = prompt_ids.is_in(ids.to_list()).sum()
            what = f"it was evaluated on different prompts than {first} ({same} of {len(ids)} are the same)"
            raise DataError(what=what, where=_file(label), fix="Evaluate both again, or leave one out of policies")
    order = np.random.default_rng(params.seed).permutation(len(ids))[: params.prompts]
    drawn = pl.DataFrame({"prompt_id": ids.gather(order), "place": np.arange(len(order))})
    samples = params.samples or (1 if params.judge else completions[first]["sample"].len())
    matches = pl.concat(
        drawn.join(completions[one].filter(pl.col("sample") < samples), on="prompt_id")
        .join(completions[other], on=["prompt_id", "sample"], suffix="_2")
        .with_columns(first=pl.lit(one), second=pl.lit(other), first_length="length", second_length="length_2")
        for one, other in pairs
    ).sort("place", maintain_order=True)
    decided = (
        _by_score(matches, params, where)
        if params.judge is None
        else _by_judge(matches, params, where, params.judge, pairs)
    )
    stored = with_ids(decided.select([name for name in COLUMNS["matches"] if name != "id"]), "matches")
    return stored.with_columns(decided[SLOT])


def _file(label: str) -> str:
    return f"results/{label}/rollouts.parquet"


def _completions(label: str, params: RatingRun) -> pl.DataFrame:
    """Return a policy's sampled completions with their values; null if a completion could not be scored."""
    rows = read_results(Path(_file(label)), label).filter(~pl.col("greedy"))
    if params.judge is not None and rows["completion"].null_count():
        fix = "Set completions: full, or rate without a judge"
        raise DataError(
            what="not all of its completions are stored (evaluate.settings.completions)", where=_file(label), fix=fix
        )
    value, failed = pl.col("reward"), pl.when(pl.col("reward").is_null()).then(pl.col("status")).otherwise(None)
    if params.scores is not None:
        known = rows["scores"].explode().struct.field("name").drop_nulls().unique().sort().to_list()
        if unknown := [name for name in params.scores if name not in known]:
            fix = f"{did_you_mean(unknown[0], known)} Or measure it: {unknown[0]}: 0 in evaluate.settings.reward"
            raise DataError(what=f"it has no scores of '{unknown[0]:.100}'", where=_file(label), fix=fix)
        parts = {name: _stored(name) for name in params.scores}
        status = pl.coalesce(_failure(part) for part in parts.values())
        total = pl.sum_horizontal(parts[name].struct.field("value") * weight for name, weight in params.scores.items())
        value, failed = pl.when(status.is_null()).then(total).otherwise(None), status
    return rows.select(
        "prompt_id",
        "sample",
        "prompt",
        "answer",
        "completion",
        "truncated",
        value=value,
        failed=failed,
        length=pl.col("length") if "length" in rows.columns else pl.col("mask").list.sum().cast(pl.Int64),
    )


def _stored(name: str) -> pl.Expr:
    """Return the stored score of a reward, per row."""
    return pl.col("scores").list.eval(pl.element().filter(pl.element().struct.field("name") == name)).list.first()


def _failure(score: pl.Expr) -> pl.Expr:
    """Return the status of a failed score; null if the score counts."""
    status = score.struct.field("status")
    return pl.when(status.is_in(sorted(FAILED))).then(status).otherwise(None)


def _by_score(matches: pl.DataFrame, params: RatingRun, where: str) -> pl.DataFrame:
    """Return the matches with winners: the higher value wins, and equal values are a tie."""
    margin = pl.col("value") - pl.col("value_2")
    decided = matches.with_columns(
        pl.lit(None, pl.Float64).alias(SLOT),
        margin=margin,
        win=(margin.sign() + 1) / 2,
        status=pl.coalesce("failed", "failed_2", pl.lit("ok")),
    )
    lost = decided.filter(pl.col("status") != "ok")
    fix = "Fix the reward and evaluate again, or raise max_failed"
    _check_failures(lost["status"].to_list(), decided.height, params, where, fix)
    return decided


def _check_failures(lost: Sequence[str], total: int, params: RatingRun, where: str, fix: str) -> None:
    """Reject too many matches without a verdict. `lost`: the reason of each."""
    failed = len(lost)
    if failed and (failed == total or (total >= LEAST and failed > params.max_failed * total)):
        what = f"{failed} of {total} matches have no verdict, more than max_failed = {params.max_failed:g}; the last: "
        raise RewardError(what=f"{what}{lost[-1]}", where=where, fix=fix)


def _by_judge(
    matches: pl.DataFrame, params: RatingRun, where: str, options: PairJudge, pairs: Sequence[Pair]
) -> pl.DataFrame:
    """Return the matches that a judge decided, batch by batch, until every pair is clear or all are decided."""
    judge = LanguageJudge(options, f"{where}.judge")
    open_pairs, asked = list(pairs), []
    lost, total = list[str](), 0
    progress = Progress(where, matches.height, "match")
    for _, batch in matches.group_by(pl.col("place") // BATCH, maintain_order=True):
        met = batch.filter(pl.concat_list("first", "second").is_in([list(pair) for pair in open_pairs]))
        scores = judge(
            [rollout for index, row in enumerate(met.iter_rows(named=True)) for rollout in _both(index, row)]
        )[::2]
        progress.advance(met.height)
        total += len(scores)
        lost += [f"{score.status}: {score.reason}" for score in scores if score.status != "ok"]
        fix = "Fix the judge and run the stage again, which reuses the verdicts. Or raise max_failed"
        _check_failures(lost, total, params, f"{where}.judge", fix)
        both_cut = met["truncated"] & met["truncated_2"] & (options.most_if_cut is not None)
        wins = [
            (0.5 if tied else score.value) if score.status == "ok" else None
            for score, tied in zip(scores, both_cut, strict=True)
        ]
        slots = [next(iter(judge.first_slot.get(str(index), ())), None) for index in range(met.height)]
        asked.append(
            met.with_columns(
                pl.Series("win", wins, pl.Float64),
                pl.Series("status", [score.status for score in scores], pl.String),
                pl.Series(SLOT, slots, pl.Float64),
                margin=2 * pl.Series("win", wins, pl.Float64) - 1,
            )
        )
        if params.alpha is not None:
            wins_PQ = wins_by_prompt(pl.concat(asked), pairs)
            clear = [is_clear(_known(wins_P), params.alpha / len(pairs)) for wins_P in wins_PQ.T]
            open_pairs = [
                pair for pair, is_over in zip(pairs, clear, strict=True) if pair in open_pairs and not is_over
            ]
        if not open_pairs:
            break
    progress.close()
    return pl.concat(asked)


def _both(index: int, row: Mapping[str, Any]) -> list[Rollout]:
    """Return the two completions of a match as a separate group, which a judge compares in both orders."""
    prompt = Prompt(str(index), row["prompt"], (), row["answer"])
    return [
        Rollout(prompt, 0, TokenRow((), ()), (), row[f"completion{end}"], finish_of(row[f"truncated{end}"]))
        for end in ("", "_2")
    ]


def _known(wins_P: Floats) -> Floats:
    return wins_P[~np.isnan(wins_P)]


def figures(matches: pl.DataFrame, params: RatingRun, where: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the ratings of all policies and the win rates of all pairs, with intervals over prompts."""
    wins_PQ = wins_by_prompt(matches, pairs)
    for (one, other), wins_P in zip(pairs, wins_PQ.T, strict=True):
        if np.isnan(wins_P).all():
            what = f"no match of {one} and {other} has a verdict"
            raise DataError(what=what, where=where, fix="Fix the reward or the judge, or leave one out of policies")
    labels = list(dict.fromkeys(label for pair in pairs for label in pair))
    weights_RP = resampled(len(wins_PQ), params.seed)
    won_RQ, played_RQ = tallies(wins_PQ, weights_RP, params.seed)
    ratings_RK = ratings(won_RQ, played_RQ, [(labels.index(one), labels.index(other)) for one, other in pairs])
    ranks_RK = ranks(ratings_RK)
    with np.errstate(invalid="ignore"):  # a resample may hold no prompt of a pair
        rates_RQ = won_RQ / played_RQ
    table = [
        {
            "policy": labels[place],
            **_estimate("rating", ratings_RK[:, place], digits=2),
            **dict(zip(("rank_low", "rank_high"), map(round, spread(ranks_RK[:, place])), strict=True)),
        }
        for place in np.argsort(ranks_RK[0], kind="stable")
    ]
    numbered = with_numbers(matches)
    rows = [
        _pair_row(numbered.filter(first=one, second=other), wins_P, rates_R, weights_RP, params, len(pairs))
        for (one, other), wins_P, rates_R in zip(pairs, wins_PQ.T, rates_RQ.T, strict=True)
    ]
    return {
        **{f"rating_{row['policy']}": row["rating"] for row in table},
        "decided_by": params.judge.model if params.judge else " + ".join(params.scores or ["score"]),
        "policies": table,
        "pairs": rows,
        "circles": _circles(rows),
        **(_slots(numbered, weights_RP) if params.judge else {}),
    }


def _pair_row(
    matches: pl.DataFrame, wins_P: Floats, rates_R: Floats, weights_RP: Floats, params: RatingRun, pairs: int
) -> dict[str, Any]:
    """Return the figures of a pair, from its matches."""
    judged = matches.drop_nulls("win")
    longer_M = (judged["first_length"] - judged["second_length"]).to_numpy().astype(float)
    controlled_R = rates_R  # where all matches end alike, no length can explain it
    if judged["win"].n_unique() > 1:
        controlled_R = length_controlled(judged["win"].to_numpy(), longer_M, judged["number"].to_numpy(), weights_RP)
    row = {
        "first": matches["first"][0],
        "second": matches["second"][0],
        **_estimate("win", rates_R),
        **_estimate("controlled", controlled_R),
        "ties": round(int((judged["win"] == 0.5).sum()) / judged.height, 5),
        "prompts": len(_known(wins_P)),
        "no_verdict": matches.height - judged.height,
    }
    if params.judge and params.alpha:
        alpha = params.alpha / pairs
        low, high = always_valid(_known(wins_P), alpha)
        row |= {"clear": is_clear(_known(wins_P), alpha), "always_low": round(low, 4), "always_high": round(high, 4)}
    return row


def _circles(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the circles of policies that beat each other. `clear`: no win of it could be a tie, by its interval."""
    clear = {(row["first"], row["second"]) for row in rows if row["win_low"] > 0.5}
    clear |= {(row["second"], row["first"]) for row in rows if row["win_high"] < 0.5}
    cycles = circles({(row["first"], row["second"]): row["win"] for row in rows})
    return [{"policies": list(circle), "clear": is_clear_circle(circle, clear)} for circle in cycles]


def _slots(numbered: pl.DataFrame, weights_RP: Floats) -> dict[str, float]:
    """Return how often the reply that the judge saw first won, with its interval, and how often the order decided.

    1/2: the order has no part in it. Empty if the judge was not asked.
    """
    asked = numbered.drop_nulls(SLOT)
    if asked.is_empty():
        return {}
    sums_P, counts_P = np.zeros(weights_RP.shape[1]), np.zeros(weights_RP.shape[1])
    np.add.at(sums_P, asked["number"].to_numpy(), asked[SLOT].to_numpy())
    np.add.at(counts_P, asked["number"].to_numpy(), 1.0)
    with np.errstate(invalid="ignore"):  # a resample may hold no prompt that was asked about
        share_R: Floats = (weights_RP @ sums_P) / (weights_RP @ counts_P)
    decided = int((asked[SLOT] != 0.5).sum()) / asked.height
    return {**_estimate("first_slot", share_R), "order_decided": round(decided, 5)}


def _estimate(name: str, values_R: Floats, digits: int = 5) -> dict[str, float]:
    """Return an estimate with its interval, rounded."""
    named = zip((name, f"{name}_low", f"{name}_high"), (values_R[0], *spread(values_R)), strict=True)
    return {key: round(float(number), digits) + 0.0 for key, number in named}  # -0.0 + 0.0 is 0.0
