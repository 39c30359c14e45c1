"""The latest samples of active runs, from the files written with each checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import polars as pl

from posttrain.data.parquet import DECODE_ERRORS, decode
from posttrain.errors import ParamsError
from posttrain.pipeline.params.params_file import at
from posttrain.pipeline.report.markup import Markup, element
from posttrain.pipeline.workspace import table_path
from posttrain.rollout import stored_value

PROMPTS: Final = 3
SAMPLES: Final = 4
"""The number of prompts, and of samples per prompt, that are shown from the newest round."""
LONGEST: Final = 1000
"""The most characters of a text. Longer ones are cut."""


def last_rollouts(settings: Any, stages: Iterable[str]) -> Markup:
    """Return the samples of each stage's newest round as collapsed HTML."""
    parts = []
    for stage in stages:
        files = Path("checkpoints").glob(f"{stage.replace('@', '/')}/*/rollouts/draw-*.parquet")
        with suppress(*DECODE_ERRORS):  # it has been removed, since the run has ended
            if newest := max(files, key=lambda file: file.stat().st_mtime_ns, default=None):
                parts.append(_round(stage, decode(newest), _asked(settings, stage)))
    return Markup("".join(parts))


def _asked(settings: Any, stage: str) -> dict[str, str]:
    """Return id -> prompt text for a run's table; empty if it cannot be read."""
    with suppress(ParamsError, *DECODE_ERRORS):
        file = table_path(str(at(settings, f"{stage.replace('@', '.runs.')}.data")))
        table = pl.read_parquet(file, columns=["id", "prompt"])
        return {row["id"]: row["prompt"][-1]["content"] for row in table.iter_rows(named=True)}
    return {}


def _round(stage: str, rollouts: pl.DataFrame, asked: dict[str, str]) -> Markup:
    """Return the first prompts of the newest round with their first samples."""
    newest = rollouts.filter(pl.col("round") == pl.col("round").max())
    draws = newest["draw"].unique(maintain_order=True).head(PROMPTS).to_list()
    cards = []
    for draw in draws:
        rows = newest.filter(draw=draw).head(SAMPLES).to_dicts()
        prompt = asked.get(rows[0]["prompt_id"], rows[0]["problem"])
        samples = element("div", *map(_sample, rows), class_="answers")
        cards.append(element("li", element("p", prompt[:LONGEST], class_="asked"), samples))
    title = f"Last samples of {stage}: round {newest['round'][0]}, as of its last checkpoint"
    shown = element("ol", *cards, class_="prompts")
    return element("details", element("summary", title), shown, id=f"last-{stage}", open="open")


def _sample(row: dict[str, Any]) -> Markup:
    """Return one sample as HTML: its reward with the parts, how it ended, and its text."""
    parts = [f"{part['name']} {_short(stored_value(part))} ({part['status']})" for part in row["scores"]]
    facts = ", ".join([*parts, row["finish"], f"{row['length']} token{'s' * (row['length'] != 1)}"])
    text = "(its text is not kept)" if row["completion"] is None else row["completion"][:LONGEST]
    return element(
        "article",
        element("h3", f"reward {_short(row['reward'])}"),
        element("p", facts, class_="parts"),
        element("pre", text),
    )


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
