"""Train a model on rollouts that an earlier training stored, without sampling."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from posttrain.api.argument_checks import check_config, model_folder
from posttrain.api.models import for_model, opened
from posttrain.api.output import known_by, places, save
from posttrain.data.parquet import DECODE_ERRORS, decode
from posttrain.errors import DataError
from posttrain.online.rollout_log import FORMAT, SUMMARY
from posttrain.online.stored import LoggedRollouts, OfflineConfig, check_groups, logged_rollouts, run_offline
from posttrain.settings.plain import check_format
from posttrain.text.chat import ChatText
from posttrain.train.checkpoint import CheckpointStore
from posttrain.train.metrics import Recorder
from posttrain.train.trained import Trained

NAME = "train_on_rollouts"


def train_on_rollouts(
    model: Any,
    tokenizer: Any,
    rollouts: str | Path | LoggedRollouts,
    config: OfflineConfig,
    *,
    reference: Any | None = None,
    output: str | Path | None = None,
    checkpoints: CheckpointStore | None = None,
    recorder: Recorder | None = None,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
    name: str = NAME,
) -> Trained:
    """Train the model in place on stored rollouts, using the log-probs that their sampler recorded.

    rollouts: the folder `rollouts` of an output of `train_online`, or of a run of a pipeline. Other arguments: as in
    `train_online`.

    Example: `train_on_rollouts(model, tokenizer, "out/rollouts", OfflineConfig.preset("grpo", correction="truncate"))`
    """
    check_config(config, OfflineConfig, NAME, {})
    params = for_model(config, model)
    with opened(model, tokenizer, params, reference) as (models, text):
        logged = rollouts if isinstance(rollouts, LoggedRollouts) else _read(rollouts, text, params)
        check_groups(params, logged, f"{name}: advantage")
        models = replace(models, temperature=logged.temperature)
        given = [known_by(rollouts) if isinstance(rollouts, str | Path) else logged, reference]
        store, log = places(name, params, models, output, given, checkpoints, recorder)
        trained = run_offline(name, params, models, logged, store, log, on_step)
    save(trained, model, tokenizer, output)
    return trained


def _read(rollouts: str | Path, text: ChatText, config: OfflineConfig) -> LoggedRollouts:
    """Read the folder of a training's rollouts. An error follows if the text of a rollout is missing."""
    folder = model_folder(rollouts, "rollouts")
    try:
        summary = json.loads((folder / SUMMARY).read_bytes())
        written, stored, ends, rows = (summary[key] for key in ("format", "rollouts", "text_ends_at_round", "rows"))
        table = pl.concat([decode(file) for file in sorted(folder.glob("part-?????.parquet"))])
    except (OSError, ValueError, LookupError, TypeError, *DECODE_ERRORS) as error:
        fix = "Give the folder `rollouts` of an output of train_online"
        raise DataError(what=f"no rollouts can be read here ({error!r:.100})", where=str(folder), fix=fix) from error
    check_format(written, FORMAT, str(folder / SUMMARY), DataError)
    if stored != "full" or ends is not None:
        fix = "Train again with rollouts: full and a higher rollouts_gb"
        raise DataError(what="some rollouts were stored without text", where=str(folder), fix=fix)
    if table.height != rows:
        what = f"{table.height:,} of {rows:,} rollouts are there"
        raise DataError(what=what, where=str(folder), fix="Copy the folder again")
    return logged_rollouts(table, summary, text.vocabulary, str(folder), grouped=config.advantage_entry.grouped)
