"""What an evaluation keeps of prompts and completions: all of them, a few, or only figures."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import polars as pl

from posttrain.errors import PosttrainError
from posttrain.evaluate.settings import Completions
from posttrain.tables.columns import ROLLOUT_TEXT, digest

SAMPLED_PROMPTS = 20
"""With `sampled` the text of so many prompts is kept: those with the lowest ids, which are hashes."""


def kept_text(rollouts: pl.DataFrame, completions: Completions) -> pl.DataFrame:
    """The rollouts with the text that is kept; where not all is, with the length and log-prob sum of every row."""
    if completions == "full":
        return rollouts
    chosen = rollouts["prompt_id"].unique().sort().head(SAMPLED_PROMPTS if completions == "sampled" else 0)
    kept = pl.col("prompt_id").is_in(chosen.to_list())
    # `problem` may be a text of the user's own; its hash still tells which prompts belong together
    hashed = pl.col("problem").map_elements(digest, return_dtype=pl.String())
    return rollouts.with_columns(
        pl.when(kept).then("problem").otherwise(hashed).alias("problem"),
        *(pl.when(kept).then(name).alias(name) for name in ROLLOUT_TEXT),
        length=pl.col("mask").list.sum().cast(pl.Int64()),
        logp=pl.col("logps").list.eval(pl.element().cast(pl.Float64())).list.sum(),
    )


@contextlib.contextmanager
def unquoted(completions: Completions) -> Iterator[None]:
    """With `none`, errors do not say what they quote: messages of rewards and tasks hold prompts and completions."""
    try:
        yield
    except PosttrainError as error:
        if completions != "none":
            raise
        what = "it failed; the message may quote a text, so it is left out (evaluate.settings.completions: none)"
        raise type(error)(what=what, where=error.where, fix="Set completions: full to read it") from None


@contextlib.contextmanager
def quiet(completions: Completions) -> Iterator[None]:
    """With `none`, lines on stderr that quote answers are left out."""
    with contextlib.redirect_stderr(io.StringIO()) if completions == "none" else contextlib.nullcontext():
        yield
