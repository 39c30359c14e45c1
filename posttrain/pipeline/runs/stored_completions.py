"""The folder of an evaluation's completions: a table, and metrics measured with the policy's weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from posttrain.data.columns import canonical, with_ids
from posttrain.errors import DataError
from posttrain.evaluate.in_context import BY_CONTEXT
from posttrain.evaluate.sampled import SampledCompletions
from posttrain.files import atomic_path, read_finite_json, rounded, write_json
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.pipeline.workspace import VERIFY
from posttrain.rollout import Prompt, Rollout, Score, TokenRow

TABLE: Final = "completions.parquet"
MEASURED: Final = "measured.json"
"""The metrics that need the policy's weights. In a folder without a table it is the only file."""


def write_completions(completions: SampledCompletions, folder: Path) -> None:
    """Write the folder, completely or not at all."""
    parts = [(completions.rollouts, False), (completions.greedy, True)]
    rows = pl.concat(_table(rollouts, greedy=greedy) for rollouts, greedy in parts)
    with atomic_path(folder) as made:
        write_table(with_ids(rows, "completions"), made / TABLE, "completions")
        write_json(made / MEASURED, rounded(completions.metrics, 17))


def write_no_completions(folder: Path) -> None:
    """Write a folder without a table."""
    with atomic_path(folder) as made:
        made.mkdir()
        write_json(made / MEASURED, {})


def read_completions(folder: Path, prompts: Sequence[Prompt], version: str) -> SampledCompletions | None:
    """Return the completions of these prompts; None if none are stored. `version`: the name of the policy."""
    measured = _measured(folder / MEASURED)
    if not (folder / TABLE).is_file():
        return None
    rows = read_table(folder / TABLE, "completions")
    greedy = rows.filter("greedy")
    if greedy["prompt_id"].to_list() != [prompt.id for prompt in prompts]:
        what = "its completions answer other prompts than params.yaml and the table specify"
        raise DataError(what=what, where=str(folder / TABLE), fix="Run `dvc repro` to sample them again")
    asked = {prompt.id: prompt for prompt in prompts}
    return SampledCompletions(
        _rollouts(rows.filter(~pl.col("greedy")).iter_rows(named=True), asked, version, folder),
        _rollouts(greedy.iter_rows(named=True), asked, version, folder),
        measured,
    )


def _measured(file: Path) -> dict[str, float]:
    """Return the metrics that need the policy's weights."""
    try:
        return {str(name): float(value) for name, value in read_finite_json(file).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(what=f"the file has no readable metrics ({error})", where=str(file), fix=VERIFY) from error


def _table(rollouts: Sequence[Rollout], *, greedy: bool) -> pl.DataFrame:
    """Return rollouts as a table without ids."""
    gains = [rollout.scores[BY_CONTEXT].value if BY_CONTEXT in rollout.scores else None for rollout in rollouts]
    return pl.DataFrame(
        {
            "prompt_id": [rollout.prompt.id for rollout in rollouts],
            "sample": [rollout.sample for rollout in rollouts],
            "greedy": [greedy] * len(rollouts),
            "prompt_ids": [list(rollout.row.prompt) for rollout in rollouts],
            "completion": [rollout.text for rollout in rollouts],
            "completion_ids": [list(rollout.row.rest) for rollout in rollouts],
            "mask": [list(rollout.row.mask or [True] * len(rollout.row.rest)) for rollout in rollouts],
            "logps": pl.Series([list(rollout.logps) for rollout in rollouts], dtype=pl.List(pl.Float32)),
            "turns": [canonical([dict(turn) for turn in rollout.turns]) for rollout in rollouts],
            "finish": [rollout.finish for rollout in rollouts],
            "reason": [rollout.reason for rollout in rollouts],
            "turn_rewards": pl.Series([list(rollout.turn_rewards) for rollout in rollouts], dtype=pl.List(pl.Float64)),
            "info": [canonical(dict(rollout.info)) for rollout in rollouts],
            "gain": pl.Series(gains, dtype=pl.Float64),
        }
    )


def _rollouts(
    rows: Iterable[Mapping[str, Any]], asked: Mapping[str, Prompt], version: str, folder: Path
) -> list[Rollout]:
    rollouts = []
    for row in rows:
        if row["prompt_id"] not in asked:
            what = f"the row {row['id']} belongs to a prompt without a greedy completion"
            raise DataError(what=what, where=str(folder / TABLE), fix=VERIFY)
        prompt = replace(asked[row["prompt_id"]], ids=row["prompt_ids"])
        rollouts.append(
            Rollout(
                prompt,
                row["sample"],
                TokenRow(prompt.ids, row["completion_ids"], None if all(row["mask"]) else row["mask"]),
                row["logps"],
                row["completion"],
                row["finish"],
                turns=json.loads(row["turns"]),
                version=version,
                scores={} if row["gain"] is None else {BY_CONTEXT: Score(row["gain"])},
                turn_rewards=row["turn_rewards"],
                info=json.loads(row["info"]),
                reason=row["reason"],
            )
        )
    return rollouts
