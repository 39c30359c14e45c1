"""Prompts that a call receives as arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from posttrain.api.argument_checks import refuse_no_rows, rename_hint
from posttrain.api.own_model import Messages
from posttrain.data.columns import with_ids
from posttrain.data.layouts import convert, table_of
from posttrain.data.shown import short_repr
from posttrain.data.turns import RowError
from posttrain.errors import DataError
from posttrain.rollout import Prompt
from posttrain.sampling.sampler import encode_prompts, prompts_of
from posttrain.tasks.task import load_task
from posttrain.text.chat import ChatText


def _task(row: Mapping[str, Any]) -> str:
    """Return the task of a row, which decides default rewards and replies; "" if the row has none."""
    task = row.get("task") or ""
    if not isinstance(task, str):
        raise RowError(f"'task' is {short_repr(task)}; give the name of a task")
    load_task(task)
    return task


def prompts_given(
    text: ChatText, given: Sequence[str | Messages | Mapping[str, Any] | Prompt], argument: str = "prompts"
) -> list[Prompt]:
    """Return the prompts with their tokens. A row is read like a row of a file."""
    if isinstance(given, str):
        raise DataError(what="this is one string, not a list", where=argument, fix=f"Write [{short_repr(given)}]")
    refuse_no_rows(given, argument, "prompts")
    if all(isinstance(prompt, Prompt) for prompt in given):
        return [prompt for prompt in given if isinstance(prompt, Prompt)]
    rows = []
    for number, asked in enumerate(given):
        row = asked if isinstance(asked, Mapping) else {"prompt": asked}
        try:
            rows.append({**convert(row, "prompts"), "task": _task(row)})
        except RowError as error:
            fix = f"{rename_hint(row, 'prompts')}help(posttrain.train_online) lists the columns"
            raise DataError(what=str(error), where=f"{argument}[{number}]", fix=fix) from error
    table = with_ids(table_of(rows, "prompts").with_columns(split=pl.lit("train")), "prompts")
    return encode_prompts(text, prompts_of(table.iter_rows(named=True)))
