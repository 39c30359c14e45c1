"""Tables of a million rows that keep every rule of their kind, made column by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from posttrain.data.columns import SCORE, TURN, Kind, with_ids

SAMPLES: Final = 8
"""Samples of each prompt in `rollouts`."""
TOKENS: Final = 16
"""Token ids of each completion in `rollouts`."""
QUESTION: Final = "Tom has {} apples and buys 17 more. How many apples does he have now?"
ANSWER: Final = "He begins with {0} apples. {0} + 17 is what he has now, and that is the answer."


def frame_of(kind: Kind, rows: int) -> pl.DataFrame:
    """Return a table of this kind with so many rows."""
    numbers = pl.DataFrame({"number": pl.int_range(rows, eager=True)})
    return with_ids(_MAKERS[kind](numbers), kind)


def _chat(numbers: pl.DataFrame) -> pl.DataFrame:
    turns = pl.concat_list(_turn("user", QUESTION), _turn("assistant", ANSWER))
    return numbers.select(_split(), _problem(), messages=turns)


def _prompts(numbers: pl.DataFrame) -> pl.DataFrame:
    empty = {"info": pl.lit("{}"), "task": pl.lit("")}
    return numbers.select(_split(), _problem(), prompt=_asked(), answer=pl.col("number").cast(pl.String), **empty)


def _pairs(numbers: pl.DataFrame) -> pl.DataFrame:
    sides = {"chosen": _answered(ANSWER), "rejected": _answered("I think that it is {}.")}
    return numbers.select(_split(), _problem(), prompt=_asked(), **sides, margin=pl.lit(1.0))


def _rollouts(numbers: pl.DataFrame) -> pl.DataFrame:
    sample, owner = pl.col("number") % SAMPLES, pl.col("number") // SAMPLES
    prompt = pl.concat_list(_turn("user", QUESTION, owner))
    value = (sample == 0).cast(pl.Float64)
    score = pl.struct(name=pl.lit("correct"), value=value, status=pl.lit("ok")).cast(SCORE)
    return numbers.select(
        prompt_id=pl.format("{}", owner),
        problem=pl.format("{} + 17", owner),
        policy=pl.lit("grpo"),
        sample=sample,
        greedy=pl.lit(value=False),
        prompt=prompt,
        answer=pl.format("{}", owner),
        task=pl.lit(""),
        completion=pl.format(ANSWER.replace("{0}", "{}"), sample, sample),
        completion_ids=pl.concat_list([(pl.col("number") + place) % 32_000 for place in range(TOKENS)]),
        mask=pl.concat_list([pl.lit(value=True)] * TOKENS),
        logps=pl.concat_list([pl.lit(-0.5, dtype=pl.Float32)] * TOKENS),
        truncated=pl.lit(value=False),
        reward=value,
        status=pl.lit("ok"),
        scores=pl.concat_list(score),
    )


def _split() -> pl.Expr:
    return pl.when(pl.col("number") % 20 == 0).then(pl.lit("heldout")).otherwise(pl.lit("train")).alias("split")


def _problem() -> pl.Expr:
    return pl.format("{} + 17", pl.col("number")).alias("problem")


def _asked() -> pl.Expr:
    return pl.concat_list(_turn("user", QUESTION))


def _answered(text: str) -> pl.Expr:
    return pl.concat_list(_turn("assistant", text))


def _turn(role: str, text: str, number: pl.Expr | None = None) -> pl.Expr:
    pattern = text.replace("{0}", "{}")
    values = pl.format(pattern, *[pl.col("number") if number is None else number] * pattern.count("{}"))
    return pl.struct(role=pl.lit(role), content=values).cast(TURN)


_MAKERS: Final[dict[Kind, Callable[[pl.DataFrame], pl.DataFrame]]] = {
    "chat": _chat,
    "prompts": _prompts,
    "pairs": _pairs,
    "rollouts": _rollouts,
}
