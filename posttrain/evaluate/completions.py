"""Choose the prompts and completions that an evaluation stores as text (`evaluate.settings.completions`)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import polars as pl

from posttrain.data.columns import ROLLOUT_TEXT, digest
from posttrain.errors import PosttrainError
from posttrain.evaluate.context import Completions

SAMPLED_PROMPTS = 20
"""With `sampled`, the text of this many prompts is stored: prompts with the lowest ids, which are hashes."""


def select_text(rollouts: pl.DataFrame, completions: Completions) -> pl.DataFrame:
    """Return rollouts with only the stored text. If some text is dropped, each row has a length and log-prob sum."""
    if completions == "full":
        return rollouts
    chosen = rollouts["prompt_id"].unique().sort().head(SAMPLED_PROMPTS if completions == "sampled" else 0)
    stored = pl.col("prompt_id").is_in(chosen.to_list())
    text = [name for name in (*ROLLOUT_TEXT, "info") if name in rollouts.columns]
    # `problem` may be a text of the user's own; its hash still groups the prompts
    hashed = pl.col("problem").map_elements(digest, return_dtype=pl.String())
    return rollouts.with_columns(
        pl.when(stored).then("problem").otherwise(hashed).alias("problem"),
        *(pl.when(stored).then(name).alias(name) for name in text),
        length=pl.col("mask").list.sum().cast(pl.Int64()),
        logp=pl.col("logps").list.eval(pl.element().cast(pl.Float64())).list.sum(),
    )


@contextlib.contextmanager
def hide_quotes(completions: Completions) -> Iterator[None]:
    """With `none`, replace the text of errors, because messages of rewards and tasks quote prompts and completions."""
    try:
        yield
    except PosttrainError as error:
        if completions != "none":
            raise
        what = "it failed; its message is hidden, because it may quote a text (evaluate.settings.completions: none)"
        raise type(error)(what=what, where=error.where, fix="Set completions: full to see the message") from None


@contextlib.contextmanager
def hide_stderr(completions: Completions) -> Iterator[None]:
    """With `none`, drop lines on stderr, because they may quote answers."""
    with contextlib.redirect_stderr(io.StringIO()) if completions == "none" else contextlib.nullcontext():
        yield
