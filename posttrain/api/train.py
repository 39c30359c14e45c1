"""Train a model on rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from posttrain.algorithms.objective import Objective
from posttrain.algorithms.padded import settings_of
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.api.model import Messages, device_of, frozen_of, our_attention, own_model, text_of
from posttrain.api.output import run_loop, save
from posttrain.api.reward_model import forget_scale
from posttrain.data.layouts import convert
from posttrain.data.turns import RowError
from posttrain.errors import DataError, ParamsError
from posttrain.models.device import Runtime
from posttrain.models.files.loading import is_scorer
from posttrain.models.master_weights import computing
from posttrain.online.sampled import SAMPLED_ROWS
from posttrain.rollout import TokenRow
from posttrain.settings.params import Params, check
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import BatchSource, ChunkedSource, EpochSource, Example, KtoSource
from posttrain.train.callback import NoWatch
from posttrain.train.learning_rates import RateKind
from posttrain.train.loop import TrainingParams, TrainingRun, adamw
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch, StepClosure
from posttrain.train.tokenize_tables import conversation, exchanges


class Amounts(Params):
    """Numbers among the arguments."""

    epochs: float = Field(1.0, gt=0, description="times through the rows")
    batch_size: int = Field(16, ge=1, description="rows per step")
    evaluate_every: int = Field(50, ge=1, description="steps between measurements")


def train_model(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    algorithm: str = "sft",
    *,
    epochs: float = 1.0,
    batch_size: int = 16,
    seed: int = 0,
    reference: Any | None = None,
    settings: Mapping[str, Any] | None = None,
    optimizer: Mapping[str, Any] | None = None,
    micro_tokens: int = 16_384,
    heldout: Sequence[Mapping[str, Any]] = (),
    evaluate_every: int = 50,
    output: str | Path | None = None,
    checkpoint_every: int = 50,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:
    """Train the model in place on rows in memory; returns the metrics of each step. Of a peft model: its adapters.

    algorithm: sft, a preference algorithm (dpo, simpo, kto, ...: docs/algorithms.md) or `reward` (of a model that
    `reward_model` made), with `settings` of it. rows of sft: `messages`, or `prompt` and `completion`; of pairs and of
    reward: `prompt`, `chosen`, `rejected`; of kto and bco: `prompt`, `completion`, `label`. A turn is a string or a
    list of messages.

    reference: the frozen model that preference algorithms compare with; by default a copy of the model as it is.
    optimizer: e.g. `{"lr": 1e-5}` (docs: `posttrain params sft`). micro_tokens: most tokens in one forward pass.

    heldout: rows that are measured (`heldout_loss` and others) before the first step, every `evaluate_every` steps, and
    at the end, as a last row of the metrics. output: a folder for checkpoints, metrics.csv and model/, which
    `load_model` reads; a call with the same arguments resumes a killed one. on_step: called with each step's number and
    its metrics.
    """
    given, model = model, own_model(model)
    objective: Objective = _objective(algorithm, settings, model)
    forget_scale(model)
    values = {"seed": seed, "optimizer": dict(optimizer or {}), "micro_tokens": micro_tokens}
    values |= {"checkpoint_every": checkpoint_every, "device": device_of(model)}
    values |= {"limits": {"entropy": None}} if isinstance(objective, LikelihoodObjective) else {}  # it may fall to 0
    params = check(TrainingParams, values, where="train_model", file="arguments")
    _check_amounts(epochs=epochs, batch_size=batch_size, evaluate_every=evaluate_every)
    text = text_of(model, tokenizer)
    examples = _examples(text, rows, objective, "rows")
    measured = _examples(text, heldout, objective, "heldout") if heldout else []
    start = frozen_of(model, reference, moves=_parts(objective) > 1) if "ref_logp" in objective.needs else reference
    runtime, frozen = Runtime(params.device), model if start is None else start
    with our_attention(model), our_attention(frozen), computing(model, runtime), computing(frozen, runtime):
        models = ModelSet(model, runtime, reference=start, micro_tokens=micro_tokens)
        source = _source(objective, examples, models, batch_size, epochs, seed)
        update = adamw(models.trained, params, source.steps, given, _rate_kind(objective))
        run = TrainingRun("train_model", params, objective, source, models, update, 0, on_step=on_step)
        if measured:
            batch = _source_type(objective)(measured, len(measured), 1, seed).batch(0)
            run = replace(run, watch=HeldoutLoss(run, batch, evaluate_every))
        tokens = [([(row.prompt, row.rest, row.mask) for row in example.rows], example.columns) for example in examples]
        arguments = [algorithm, settings, repr(tokens), epochs, batch_size, runtime.device.type, reference]
        history = run_loop(run, output, arguments)
    save(given, tokenizer, output)
    return history


class HeldoutLoss(NoWatch):
    """Measures the objective on held-out rows: a `Watch` of a run."""

    def __init__(self, run: TrainingRun, batch: Batch, every: int) -> None:
        self._run, self._batch, self._every = run, batch, every

    def look(self, step: int) -> dict[str, float]:
        """Return the metrics of the weights before this step, where one is due."""
        if step % self._every and step != self._run.source.steps:
            return {}
        objective, models = self._run.objective, self._run.models
        batch = models.add_scored_columns(self._batch, objective.needs)
        prepared = objective.prepare(batch.columns, objective.initial_state())
        measured = StepClosure(objective, models, batch.with_prepared(prepared.step), state=prepared.state).measured()
        return {f"heldout_{name}": value for name, value in measured.items()}


def _check_amounts(**amounts: float) -> None:
    """Refuse numbers without a meaning."""
    check(Amounts, amounts, where="train_model", file="arguments")


def _rate_kind(objective: Objective) -> RateKind:
    """Return what decides the default learning rate."""
    if isinstance(objective, RewardObjective):
        return "reward"
    return "sft" if isinstance(objective, LikelihoodObjective) else "preference"


def _objective(algorithm: str, settings: Mapping[str, Any] | None, model: Any) -> Objective:
    """Return the objective of an algorithm; refuse a model of another kind."""
    if (algorithm == "reward") != is_scorer(model):
        what = f"{algorithm} trains a {'reward' if algorithm == 'reward' else 'language'} model, not this one"
        raise ParamsError(what=what, where="model", fix="posttrain.reward_model(model) makes a reward model of a copy")
    if algorithm == "reward":
        config = check(RewardConfig, dict(settings or {}), where="reward", file="settings")
        if config.compare == "ranks":
            what, fix = "a call compares the answers of a row", "Give pairs, or use a pipeline (docs/algorithms.md)"
            raise ParamsError(what=what, where="settings.compare", fix=fix)
        return RewardObjective(config)
    if algorithm == "sft":
        return LikelihoodObjective(check(LikelihoodConfig, dict(settings or {}), where="sft", file="settings"))
    if algorithm not in PREFERENCE_ROWS and (algorithm in POLICY_ROWS or algorithm in SAMPLED_ROWS):
        what = f"'{algorithm}' learns from its own samples, and train_model from rows in memory"
        fix = "Use posttrain.train_online, or posttrain.losses.policy_loss in a loop of your own"
        raise ParamsError(what=what, where="algorithm", fix=fix)
    return PreferenceObjective(settings_of(PREFERENCE_ROWS, algorithm, settings))


def _source(
    objective: Objective, examples: list[Example], models: ModelSet, batch_size: int, epochs: float, seed: int
) -> BatchSource:
    source = _source_type(objective)
    if (parts := _parts(objective)) > 1:
        return ChunkedSource(examples, batch_size, epochs, seed, parts=parts, models=models, source=source)
    return source(examples, batch_size, epochs, seed)


def _parts(objective: Objective) -> int:
    """Return the parts of the data, each with a reference of its own."""
    return objective.knobs.parts if isinstance(objective, PreferenceObjective) else 1


def _source_type(objective: Objective) -> type[EpochSource]:
    return KtoSource if isinstance(objective, PreferenceObjective) and objective.mismatched else EpochSource


def _examples(text: ChatText, rows: Sequence[Mapping[str, Any]], objective: Objective, argument: str) -> list[Example]:
    if not rows:
        raise DataError(what="there are no rows", where=argument, fix="Give at least one")
    examples = []
    for number, row in enumerate(rows):
        try:
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


def _example(text: ChatText, row: Mapping[str, Any], objective: Objective) -> Example:
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


def _is_paired(objective: Objective) -> bool:
    """Return whether a row has two answers."""
    if isinstance(objective, RewardObjective):
        return objective.knobs.compare == "pairs"
    return isinstance(objective, PreferenceObjective) and objective.knobs.paired


def _answer(text: ChatText, read: Mapping[str, Any], column: str) -> TokenRow:
    row = {**read, "prompt": _messages(read["prompt"]), column: _messages(read[column])}
    return exchanges(text, [row], column)[0]


def _messages(turns: Sequence[tuple[str, str]]) -> Messages:
    return [{"role": role, "content": content} for role, content in turns]
