"""Train a model on rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig
from posttrain.api.model import Messages
from posttrain.api.models import for_model, opened
from posttrain.api.output import places, save
from posttrain.api.reward_model import forget_scale
from posttrain.data.layouts import convert
from posttrain.data.turns import RowError
from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.table_watch import MeasuredObjective
from posttrain.models.files.loading import is_scorer
from posttrain.rollout import TokenRow
from posttrain.settings.params import Params, check
from posttrain.supervised.config import PreferenceTraining, RewardTraining, SftConfig, SupervisedConfig
from posttrain.supervised.run import train_on_rows
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.checkpoint import CheckpointStore
from posttrain.train.examples import Examples
from posttrain.train.metrics import Recorder
from posttrain.train.tokenize_tables import conversation, exchanges
from posttrain.train.trained import Trained

NAME = "train_model"


class Amounts(Params):
    """Numbers among the arguments."""

    epochs: float = Field(1.0, gt=0, description="times through the rows")
    batch_size: int = Field(16, ge=1, description="rows per step")
    evaluate_every: int = Field(50, ge=1, description="steps between measurements")


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
    """Train the model in place on rows in memory; returns the metrics of each step. Of a peft model: its adapters.

    model, tokenizer: of transformers, or the models of `load_models` and None, with which adapters and several
    processes work. algorithm: sft, a preference algorithm (dpo, simpo, kto, ...: docs/algorithms.md) or `reward` (of a
    model that `reward_model` made), with `settings` of it. rows of sft: `messages`, or `prompt` and `completion`; of
    pairs and of reward: `prompt`, `chosen`, `rejected`; of kto and bco: `prompt`, `completion`, `label`. A turn is a
    string or a list of messages.

    config: all settings, typed, in place of algorithm, settings, optimizer and the numbers. reference: the frozen model
    that preference algorithms compare with; by default a copy of the model as it is. optimizer: e.g. `{"lr": 1e-5}`
    (docs: `posttrain params sft`). micro_tokens: most tokens in one forward pass.

    heldout: rows that are measured (`heldout_loss` and others) before the first step, every `evaluate_every` steps, and
    at the end, as a last row of the metrics; of a config: by its `watch`. heldout_table: the same rows as a table, for
    a `watch` that samples their prompts. output: a folder for checkpoints, metrics.csv and model/, which `load_model`
    reads; a call with the same arguments resumes a killed one. checkpoints, recorder: your own places for these.
    on_step: called with each step's number and its metrics. name: what messages and checkpoints call the run.
    """
    if config is None:
        _check_amounts(epochs=epochs, batch_size=batch_size, evaluate_every=evaluate_every)
        values: dict[str, Any] = {"epochs": epochs, "batch": batch_size, "seed": seed, "micro_tokens": micro_tokens}
        values |= {"optimizer": dict(optimizer or {}), "checkpoint_every": checkpoint_every}
        watch = {"watch": {"every": evaluate_every}} if len(heldout) else {}
        config = _config(algorithm, settings, values | watch)
    elif settings is not None or optimizer is not None:
        what, fix = "config has all settings", "Give config alone, or algorithm, settings, optimizer and the numbers"
        raise ParamsError(what=what, where="config", fix=fix)
    config = for_model(config, model)
    with opened(model, tokenizer, config, reference) as (models, text):
        _check_kind(config, models.policy)
        forget_scale(models.policy)
        objective = config.goal()
        examples = _examples(text, rows, objective, "rows")
        measured = _examples(text, heldout, objective, "heldout") if len(heldout) else ()
        store, log = places(
            name, config, models, output, _given(config, rows, examples, reference), checkpoints, recorder
        )
        trained = train_on_rows(
            name, config, models, text, examples, measured, heldout_table, store, log, on_step
        )  # fmt: skip
    save(trained, model, tokenizer, output)
    return trained


def _given(config: SupervisedConfig, rows: Sequence[Any], examples: Sequence[Example], reference: Any) -> list[Any]:
    """Return what names the checkpoints of an output; nothing where rows are examples, whose store is the caller's."""
    if examples is rows:
        return []
    tokens = [([(row.prompt, row.rest, row.mask) for row in example.rows], example.columns) for example in examples]
    return [repr(tokens), config.goal(), reference]


def _check_kind(config: SupervisedConfig, policy: Any) -> None:
    """Refuse a language model where a reward model is trained, and the other way round."""
    scores = isinstance(config, RewardTraining)
    if scores != is_scorer(policy):
        named = getattr(config, "algorithm", "reward" if scores else "sft")
        what = f"{named} trains a {'reward' if scores else 'language'} model, not this one"
        raise ParamsError(what=what, where="model", fix="posttrain.reward_model(model) makes a reward model of a copy")


def _check_amounts(**amounts: float) -> None:
    """Refuse numbers without a meaning."""
    check(Amounts, amounts, where=NAME, file="arguments")


def _config(algorithm: str, settings: Mapping[str, Any] | None, values: dict[str, Any]) -> SupervisedConfig:
    """Return the settings of a training by the name of its algorithm."""
    own, most = dict(settings or {}), {"max_tokens": 2**31}  # a call leaves no row out
    if algorithm == "reward":
        knobs = check(RewardConfig, own, where="reward", file="settings")
        if knobs.compare == "ranks":
            what, fix = "a call compares the answers of a row", "Give pairs, or use a pipeline (docs/algorithms.md)"
            raise ParamsError(what=what, where="settings.compare", fix=fix)
        return check(RewardTraining, {**values, **most, "objective": knobs}, where=NAME, file="arguments")
    if algorithm == "sft":
        likelihood = check(LikelihoodConfig, own, where="sft", file="settings")
        return check(SftConfig, {**values, **most, "objective": likelihood}, where=NAME, file="arguments")
    if algorithm not in PREFERENCE_ROWS and _learns_from_samples(algorithm):
        what = f"'{algorithm}' learns from its own samples, and train_model from rows in memory"
        fix = "Use posttrain.train_online, or posttrain.losses.policy_loss in a loop of your own"
        raise ParamsError(what=what, where="algorithm", fix=fix)
    return PreferenceTraining.preset(algorithm, **{**values, **most, **own})


def _learns_from_samples(algorithm: str) -> bool:
    """Return whether an algorithm is one of train_online."""
    from posttrain.online.sampled import SAMPLED_ROWS  # a stage that trains on rows does not depend on it

    return algorithm in POLICY_ROWS or algorithm in SAMPLED_ROWS


def _examples(
    text: ChatText, rows: Sequence[Mapping[str, Any] | Example], objective: MeasuredObjective, argument: str
) -> Sequence[Example]:
    if not len(rows):
        raise DataError(what="there are no rows", where=argument, fix="Give at least one")
    if isinstance(rows, Examples) or all(isinstance(row, Example) for row in rows):
        return rows  # type: ignore[return-value]
    examples: list[Example] = []
    for number, row in enumerate(rows):
        try:
            if isinstance(row, Example):
                raise RowError("it is an example, and other rows are not")
            examples.append(_example(text, row, objective))
        except RowError as error:
            fix = "help(posttrain.train_model) lists the columns"
            raise DataError(what=str(error), where=f"{argument}[{number}]", fix=fix) from error
        except DataError as error:
            raise DataError(what=error.what, where=f"{argument}[{number}]", fix=error.fix) from error
        longest = max(map(len, examples[-1].rows))
        if text.context is not None and longest > text.context:
            what = f"{longest} tokens are longer than the model's context of {text.context}"
            raise DataError(what=what, where=f"{argument}[{number}]", fix="Shorten it or leave it out")
    if isinstance(objective, PreferenceObjective) and objective.mismatched and text.context is not None:
        answered = [row for example in examples for row in example.rows]
        longest = max(len(row.prompt) for row in answered) + max(len(row.rest) for row in answered)
        if longest > text.context:
            what = "prompts are also answered with other rows' answers, which makes rows of up to "
            what += f"{longest} tokens, more than the model's context of {text.context}"
            raise DataError(what=what, where=argument, fix="Shorten or leave out the longest")
    return examples


def _example(text: ChatText, row: Mapping[str, Any], objective: MeasuredObjective) -> Example:
    """Return a row as training has it; it is read as a row of a file is."""
    if _is_paired(objective):
        read = convert(row, "pairs")
        columns: dict[str, Sequence[float]] = {"side": [1.0, -1.0]}
        if "margin" in objective.needs:
            columns["margin"] = [float(read.get("margin") or 0.0)] * 2
        return Example([_answer(text, read, "chosen"), _answer(text, read, "rejected")], columns)
    if isinstance(objective, PreferenceObjective | RewardObjective):
        read = convert(row, "feedback")
        return Example([_answer(text, read, "completion")], {"label": [1.0 if read["label"] else -1.0]})
    read = convert(row, "chat")
    if [role for role, _ in read["messages"]][-1:] != ["assistant"]:
        raise RowError("it does not end with a turn of the assistant, which is what is trained")
    whole = conversation({**read, "id": "", "messages": _messages(read["messages"])}, "rows")
    return Example(text.conversations([whole], "all" if row.get("messages") is not None else "last"))


def _is_paired(objective: MeasuredObjective) -> bool:
    """Return whether a row has two answers."""
    if isinstance(objective, RewardObjective):
        return objective.knobs.compare == "pairs"
    return isinstance(objective, PreferenceObjective) and objective.knobs.paired


def _answer(text: ChatText, read: Mapping[str, Any], column: str) -> TokenRow:
    row = {**read, "prompt": _messages(read["prompt"]), column: _messages(read[column])}
    return exchanges(text, [row], column)[0]


def _messages(turns: Sequence[tuple[str, str]]) -> Messages:
    return [{"role": role, "content": content} for role, content in turns]
