"""Rows in memory, and the settings of an algorithm by its name, for `train_model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig
from posttrain.api.argument_checks import rename_hint
from posttrain.api.own_model import Messages
from posttrain.data.columns import Kind
from posttrain.data.layouts import convert
from posttrain.data.turns import RowError, type_name
from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.table_watch import MeasuredObjective
from posttrain.rollout import TokenRow
from posttrain.settings.listing import row_modules
from posttrain.settings.params import Params, check
from posttrain.supervised.config import SupervisedConfig
from posttrain.supervised.preference import PreferenceTraining
from posttrain.supervised.reward import RewardTraining
from posttrain.supervised.sft import SftConfig
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation
from posttrain.train.batch_sources import Example
from posttrain.train.tokenize_tables import conversation, exchanges


class Amounts(Params):
    """Numeric arguments of `train_model`."""

    epochs: float = Field(1.0, gt=0, description="passes through the rows")
    batch_size: int = Field(16, ge=1, description="rows per step")
    evaluate_every: int = Field(50, ge=1, description="steps between evaluations")


def config_of(
    algorithm: str, settings: Mapping[str, Any] | None, optimizer: Mapping[str, Any] | None, numbers: Mapping[str, Any],
    given: Mapping[str, Any], *, watched: bool,
) -> SupervisedConfig:  # fmt: skip
    """Return the settings of a training algorithm by its name. `watched`: the call has held-out rows."""
    amounts = check(Amounts, dict(numbers), where="train_model", file="arguments")
    values = {**given, "epochs": amounts.epochs, "batch": amounts.batch_size, "optimizer": dict(optimizer or {})}
    values |= {"watch": {"every": amounts.evaluate_every}} if watched else {}
    chosen, most = dict(settings or {}), {"max_tokens": 2**31}  # a call leaves no row out
    if algorithm == "reward":
        objective = check(RewardConfig, chosen, where="reward", file="settings")
        if objective.compare == "ranks":
            what, fix = (
                "ranks compares several rows, but a call only compares the answers of one row",
                "Give pairs, or use a pipeline (docs/algorithms.md)",
            )
            raise ParamsError(what=what, where="settings.compare", fix=fix)
        return check(RewardTraining, {**values, **most, "objective": objective}, where="train_model", file="arguments")
    if algorithm == "sft":
        likelihood = check(LikelihoodConfig, chosen, where="sft", file="settings")
        return check(SftConfig, {**values, **most, "objective": likelihood}, where="train_model", file="arguments")
    if algorithm not in PREFERENCE_ROWS and _learns_from_samples(algorithm):
        what = f"'{algorithm}' trains on the policy's samples, but train_model trains on given rows"
        fix = "Use posttrain.train_online, or posttrain.losses.policy_loss in your own loop"
        raise ParamsError(what=what, where="algorithm", fix=fix)
    return PreferenceTraining.preset(algorithm, **{**values, **most, **chosen})


def _learns_from_samples(algorithm: str) -> bool:
    """Tell whether the algorithm belongs to `train_online`."""
    return any(
        algorithm in row_modules(f"posttrain.{room}", "ROWS") for room in ("algorithms.policy", "online.sampled")
    )


def examples_of(
    text: ChatText, rows: Sequence[Mapping[str, Any] | Example], objective: MeasuredObjective, argument: str
) -> Sequence[Example]:
    """Return rows in memory as examples. Each row is read like a row of a file."""
    examples: list[Example] = []
    for number, row in enumerate(rows):
        try:
            if isinstance(row, Example):
                raise RowError("it is an example, but other rows are not")
            if not isinstance(row, Mapping):
                raise RowError(f"it is {type_name(row)}, not a row")
            examples.append(_example(text, row, objective))
        except RowError as error:
            hint = rename_hint(row, _kind(objective)) if isinstance(row, Mapping) else ""
            fix = f"{hint}help(posttrain.train_model) lists the columns"
            raise DataError(what=str(error), where=f"{argument}[{number}]", fix=fix) from error
        except DataError as error:
            raise DataError(what=error.what, where=f"{argument}[{number}]", fix=error.fix) from error
        longest = max(map(len, examples[-1].rows))
        if text.context is not None and longest > text.context:
            what = f"it has {longest} tokens, more than the model's context of {text.context}"
            raise DataError(what=what, where=f"{argument}[{number}]", fix="Shorten it or leave it out")
    if isinstance(objective, PreferenceObjective) and objective.mismatched and text.context is not None:
        answered = [row for example in examples for row in example.rows]
        longest = max(len(row.prompt) for row in answered) + max(len(row.rest) for row in answered)
        if longest > text.context:
            what = "prompts are paired with answers of other rows too, which makes rows of up to "
            what += f"{longest} tokens, more than the model's context of {text.context}"
            raise DataError(what=what, where=argument, fix="Shorten or remove the longest rows")
    return examples


def _example(text: ChatText, row: Mapping[str, Any], objective: MeasuredObjective) -> Example:
    """Return a row as a training example. It is read like a row of a file."""
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
        raise RowError("it does not end with an assistant turn, and only assistant turns are trained")
    whole = conversation({**read, "id": "", "messages": _messages(read["messages"])}, "rows")
    return Example(text.conversations([whole], "all" if row.get("messages") is not None else "last"))


def questions_of(rows: Sequence[Mapping[str, Any] | Example]) -> list[Conversation]:
    """Return the questions of demonstrations: all turns except the last."""
    talks = []
    for number, row in enumerate(rows):
        if isinstance(row, Example):
            what, fix = (
                "these rows have tokens, but no turns",
                "Give sft rows, so that the teacher can read their turns",
            )
            raise DataError(what=what, where="demonstrations", fix=fix)
        try:
            read = convert(row, "chat")
        except RowError as error:
            fix = "help(posttrain.train_model) lists the columns"
            raise DataError(what=str(error), where=f"demonstrations[{number}]", fix=fix) from error
        talks.append(conversation({**read, "id": "", "messages": _messages(read["messages"][:-1])}, "rows"))
    return talks


def _kind(objective: MeasuredObjective) -> Kind:
    """Return the kind of table whose columns the rows have."""
    if _is_paired(objective):
        return "pairs"
    return "feedback" if isinstance(objective, PreferenceObjective | RewardObjective) else "chat"


def _is_paired(objective: MeasuredObjective) -> bool:
    """Tell whether a row has two answers."""
    if isinstance(objective, RewardObjective):
        return objective.config.compare == "pairs"
    return isinstance(objective, PreferenceObjective) and objective.config.paired


def _answer(text: ChatText, read: Mapping[str, Any], column: str) -> TokenRow:
    row = {**read, "prompt": _messages(read["prompt"]), column: _messages(read[column])}
    return exchanges(text, [row], column)[0]


def _messages(turns: Sequence[tuple[str, str]]) -> Messages:
    return [{"role": role, "content": content} for role, content in turns]
