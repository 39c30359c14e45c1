"""Run a training on rows of a table, from its inputs to the trained model. Stages and calls both use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from posttrain.evaluate.table_watch import table_watch
from posttrain.supervised.config import SupervisedConfig
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.checkpoint import CheckpointStore
from posttrain.train.loop import TrainingRun, adamw
from posttrain.train.metrics import Recorder
from posttrain.train.model_set import ModelSet
from posttrain.train.trained import Trained, run_training


def run_supervised(
    name: str, config: SupervisedConfig, models: ModelSet, text: ChatText, examples: Sequence[Example],
    heldout: Sequence[Example], table: pl.DataFrame | None, checkpoints: CheckpointStore, recorder: Recorder,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> Trained:  # fmt: skip
    """Train on the examples, and evaluate the held-out examples if the settings require it.

    `table`: the rows behind the held-out examples. Their prompts are sampled if the setting `watch` has a reward.
    """
    objective = config.goal()
    source = config.source(examples, models)
    update = adamw(models.trained, config, source.steps, models.policy)
    tokens = config.step_tokens(examples)
    run = TrainingRun(name, config, objective, source, models, update, tokens, config.progress, on_step=on_step)
    watch = table_watch(run, config.goal(), config.watched, heldout, table, text)
    return run_training(run if watch is None else replace(run, watch=watch), checkpoints, recorder)
