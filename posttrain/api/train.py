"""Train a model on rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import polars as pl

from posttrain.api.argument_checks import check_config, refuse_no_rows
from posttrain.api.models import check_watched, for_model, forget_scale, opened
from posttrain.api.output import places, save
from posttrain.errors import DataError, ParamsError
from posttrain.models.files.loading import is_scorer
from posttrain.supervised.config import SupervisedConfig
from posttrain.supervised.run import run_supervised
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.checkpoint import CheckpointStore
from posttrain.train.examples import Examples
from posttrain.train.metrics import Recorder
from posttrain.train.trained import Trained

NAME = "train_model"
DEFAULTS: Final[Mapping[str, Any]] = {
    "algorithm": "sft", "settings": None, "optimizer": None, "epochs": 1.0, "batch_size": 16, "evaluate_every": 50,
    "seed": 0, "micro_tokens": 16_384, "checkpoint_every": 50,
}  # fmt: skip
"""Arguments that a config replaces, and their defaults."""


def train_model(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any] | Example],
    algorithm: str = "sft",
    *,
    config: SupervisedConfig | None = None,
    epochs: float = 1.0,
    batch_size: int = 16,
    seed: int = 0,
    reference: Any | None = None,
    settings: Mapping[str, Any] | None = None,
    optimizer: Mapping[str, Any] | None = None,
    micro_tokens: int = 16_384,
    heldout: Sequence[Mapping[str, Any] | Example] = (),
    heldout_table: pl.DataFrame | None = None,
    evaluate_every: int = 50,
    output: str | Path | None = None,
    checkpoint_every: int = 50,
    checkpoints: CheckpointStore | None = None,
    recorder: Recorder | None = None,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
    name: str = NAME,
) -> Trained:
    """Train the model in place on rows in memory (a PEFT model: its adapters). Return the metrics of each step.

    model, tokenizer: from transformers; or models from `load_models`, and None, which adapters and several processes
    need. algorithm: sft, a preference algorithm (dpo, simpo, kto, ...: docs/algorithms.md) or `reward` (for a model
    from `reward_model`), with its `settings`. rows for sft: `messages`, or `prompt` and `completion`; for pairs and
    reward: `prompt`, `chosen`, `rejected`; for kto and bco: `prompt`, `completion`, `label`. A turn is a string or a
    list of messages.

    config: all settings as one typed object, instead of algorithm, settings, optimizer and the numbers. reference: the
    frozen model for preference algorithms; the default is a copy of the initial model. optimizer: e.g. `{"lr": 1e-5}`
    (docs: `posttrain params sft`). micro_tokens: most tokens in one forward pass.

    heldout: rows that are evaluated (`heldout_loss` and others) before the first step, every `evaluate_every` steps,
    and at the end as a last row of the metrics. With a config, its `watch` decides. heldout_table: the same rows as a
    table, for a `watch` that samples their prompts. output: a folder for checkpoints, metrics.csv and model/.
    `load_model` reads model/. A call with the same arguments resumes an interrupted one. For a PEFT model, model/
    contains the whole model with the adapter merged, and adapter/ the adapter in PEFT's own format. checkpoints,
    recorder: your own stores instead. on_step: a function that is called with each step's number and metrics. name: the
    run's name in messages and checkpoints.
    """
    given = {"algorithm": algorithm, "settings": settings, "optimizer": optimizer}
    numbers = {"epochs": epochs, "batch_size": batch_size, "evaluate_every": evaluate_every}
    values = {"seed": seed, "micro_tokens": micro_tokens, "checkpoint_every": checkpoint_every}
    config = _config(config, given, numbers, values, watched=len(heldout) > 0)
    _check_heldout(config, heldout, heldout_table)
    config = for_model(config, model)
    with opened(model, tokenizer, config, reference) as (models, text):
        _check_kind(config, models.policy)
        forget_scale(models.policy)
        examples = _examples(text, rows, config, "rows")
        measured = _examples(text, heldout, config, "heldout") if len(heldout) else ()
        named = [] if output is None else _given(config, examples, reference)
        store, log = places(name, config, models, output, named, checkpoints, recorder)
        trained = run_supervised(name, config, models, text, examples, measured, heldout_table, store, log, on_step)
    save(trained, model, tokenizer, output)
    return trained


def _config(
    config: SupervisedConfig | None, given: Mapping[str, Any], numbers: Mapping[str, Any], values: Mapping[str, Any],
    *, watched: bool,
) -> SupervisedConfig:  # fmt: skip
    """Return the given config, which excludes other settings, or a config made from the arguments."""
    if config is None:
        made: SupervisedConfig = _rows().config_of(**given, numbers=numbers, given=values, watched=watched)
        return made
    check_config(
        config, SupervisedConfig, NAME,
        {name: (value, DEFAULTS[name]) for name, value in {**given, **numbers, **values}.items()},
    )  # fmt: skip
    return config


def _rows() -> Any:
    """Import the module that reads rows and names. A stage gives a config and examples and does not depend on it."""
    return import_module(f"{__package__}.rows")


def _examples(
    text: ChatText, rows: Sequence[Mapping[str, Any] | Example], config: SupervisedConfig, argument: str
) -> Sequence[Example]:
    """Return rows as examples. Examples are returned unchanged."""
    refuse_no_rows(rows, argument)
    if isinstance(rows, Examples):
        return rows
    if all(isinstance(row, Example) for row in rows):
        return [row for row in rows if isinstance(row, Example)]
    read: Sequence[Example] = _rows().examples_of(text, rows, config.goal(), argument)
    return read


def _check_heldout(config: SupervisedConfig, heldout: Sequence[Any], table: pl.DataFrame | None) -> None:
    """Reject held-out rows that nothing measures, and a watch without the rows or the table that it needs."""
    check_watched(config.watched, heldout)
    check_table(config.watched, table)


def check_table(watch: Any, table: pl.DataFrame | None) -> None:
    """Reject a watch that samples prompts if the call has no table of them."""
    if table is None and watch is not None and getattr(watch, "reward", None) is not None:
        what, fix = "watch.reward samples the prompts of held-out rows", "Give heldout_table, or remove watch.reward"
        raise DataError(what=what, where="heldout_table", fix=fix)


def _given(config: SupervisedConfig, examples: Sequence[Example], reference: Any) -> list[Any]:
    """Return the arguments that, with the settings and weights, identify the checkpoints of an output."""
    tokens = [([(row.prompt, row.rest, row.mask) for row in example.rows], example.columns) for example in examples]
    return [repr(tokens), config.goal(), reference]


def _check_kind(config: SupervisedConfig, policy: Any) -> None:
    """Reject a language model where a reward model is trained, and the other way round."""
    scores = config.scores
    if scores != is_scorer(policy):
        named = getattr(config, "algorithm", "reward" if scores else "sft")
        what = f"{named} trains {'reward' if scores else 'language'} models, and this is not one"
        raise ParamsError(
            what=what, where="model", fix="posttrain.reward_model(model) returns a copy as a reward model"
        )
