"""The rows that `reward test` scores: a table of rollouts, a file with completions, or prompts and their examples."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from posttrain.data.layouts import convert
from posttrain.data.turns import RowError, turns
from posttrain.errors import DataError
from posttrain.pipeline.checks.named_table import table_file
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import Evaluated, evaluated, group_of
from posttrain.pipeline.tables.options import FileTable
from posttrain.pipeline.tables.readers import PLAIN, READERS, Columns, CsvDialect, file_part
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import PARAMS_FILE, table_path
from posttrain.rewards.reward import Examples
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.settings.params import check
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation

WANTED: Final = frozenset({"id", "prompt", "completion", "answer", "info", "task", "truncated"})
_TURN: Final = "\n\nassistant: "
"""What stands before the policy's turns in an episode of several."""


@dataclass(frozen=True)
class Row:
    """A row of the table; or an example of its prompt, and how it has to be scored."""

    number: int
    rollout: Rollout
    expected: Literal["right", "wrong", ""] = ""


def readable_file(name: str) -> Path:
    """Return the file of a table that is named NAME/KIND or by its path."""
    path = table_file(name)
    if path.suffix.lower() not in READERS:
        raise DataError(
            what=f"{path.suffix or 'no suffix'} cannot be read", where=name, fix=f"Use {', '.join(READERS)}"
        )
    return path


def rollouts_of(file: Path, count: int, text: ChatText | None) -> list[Row]:
    """Return the first rows of a table of rollouts, with the tokens that were sampled."""
    frame = read_table(file, "rollouts").with_row_index("number", 1).filter(pl.col("prompt").is_not_null())
    if frame.is_empty():
        what, fix = "it has no text (evaluate.settings.completions: none)", "Evaluate with `sampled` or `full`"
        raise DataError(what=what, where=str(file), fix=fix)
    rows = frame.head(count).rows(named=True)
    if not all(all(row["mask"]) for row in rows):
        print(f"{file}: of episodes with several turns rewards read the last turn alone here", file=sys.stderr)
    infos = infos_of(file, {row["prompt_id"] for row in rows})
    ids = text.prompts([row["prompt"] for row in rows]) if text else [()] * len(rows)
    return [
        Row(row["number"], _sampled(row, prompt_ids, infos.get(row["prompt_id"], {})))
        for row, prompt_ids in zip(rows, ids, strict=True)
    ]


def _sampled(row: Mapping[str, Any], ids: Sequence[int], info: Mapping[str, Any]) -> Rollout:
    prompt = Prompt(row["prompt_id"], row["prompt"], ids, row["answer"], info, row["task"], row["problem"])
    several = not all(row["mask"])
    text = row["completion"].rpartition(_TURN)[2] if several else row["completion"]
    tokens = TokenRow(ids, row["completion_ids"], row["mask"] if several else None)
    said = ({"role": "assistant", "content": text},)
    sampled = Rollout(prompt, row["sample"], tokens, row["logps"], text, _finish(row["truncated"]), said)
    return replace(sampled, turn_rewards=row.get("turn_rewards") or (), info=json.loads(row.get("info") or "{}"))


def infos_of(rollouts: Path, ids: set[str]) -> dict[str, Mapping[str, Any]]:
    """Return the info of prompts, which a table of rollouts has not, from the table that its evaluation has read."""
    if not Path(PARAMS_FILE).is_file():
        return {}
    settings = read()
    usual = Evaluated("", str(group_of(settings, "evaluate.settings").get("data", "")), "")
    file = table_path(evaluated(settings).get(rollouts.parent.name, usual).table or "none/prompts")
    if not file.is_file():
        return {}
    frame = read_table(file, "prompts").filter(pl.col("id").is_in(list(ids)))
    return {name: json.loads(info) for name, info in frame.select("id", "info").iter_rows()}


def csv_dialect(separator: str | None, encoding: str | None) -> CsvDialect:
    """Return how a csv file is read, with the rules of these options in params.yaml."""
    given = {name: value for name, value in (("separator", separator), ("encoding", encoding)) if value is not None}
    return check(FileTable, {"path": "a.csv", **given}, where="--", file="command line").dialect


def given_rows(
    file: Path, count: int, examples: Callable[[Prompt], Examples], text: ChatText | None, dialect: CsvDialect = PLAIN
) -> list[Row]:
    """Return the first rows of a file with prompts and completions, or the examples of prompts without completions."""
    rows: list[Row] = []
    for number, row in islice(file_part(file, dialect).rows(Columns(WANTED), "reward test"), count):
        if isinstance(row, str):
            raise DataError(what=f"row {number}: {row}", where=str(file), fix="Fix the file")
        try:
            rows += _rows(number, row, examples)
        except RowError as error:
            raise DataError(what=f"row {number}: {error}", where=str(file), fix="Fix the file") from error
    if not rows:
        what = "it has no completions, and the reward has no examples for its prompts"
        raise DataError(what=what, where=str(file), fix="Add a column `completion`, or give a table of rollouts")
    return _with_tokens(rows, text) if text else rows


def _rows(number: int, row: Mapping[str, Any], examples: Callable[[Prompt], Examples]) -> Iterator[Row]:
    found = convert(row, "prompts")
    messages = [{"role": role, "content": content} for role, content in found["prompt"]]
    name = str(row.get("id") or f"row {number}")
    prompt = Prompt(name, messages, (), found["answer"], json.loads(found["info"]), row.get("task") or "")
    if row.get("completion") is not None:
        yield Row(number, _rollout(prompt, turns(row, "completion")[-1][1], _finish(row.get("truncated"))))
        return
    known = examples(prompt)
    yield from (Row(number, _rollout(prompt, text), "right") for text in known.right)
    yield from (Row(number, _rollout(prompt, text), "wrong") for text in known.wrong)


def _rollout(prompt: Prompt, text: str, finish: Literal["stop", "length"] = "stop") -> Rollout:
    """Return a rollout whose tokens are not known."""
    return Rollout(prompt, 0, TokenRow((), ()), (), text, finish, ({"role": "assistant", "content": text},))


def _finish(truncated: object) -> Literal["stop", "length"]:
    return "length" if truncated is True else "stop"


def _with_tokens(rows: Sequence[Row], text: ChatText) -> list[Row]:
    """Return the rows in the tokens of a run's policy; a completion that was not truncated ends with its stop token."""
    rollouts = [table_row.rollout for table_row in rows]
    tokens = text.conversations(
        [Conversation([*completed.prompt.messages, *completed.turns]) for completed in rollouts], "last"
    )
    whole = []
    for row, rollout, found in zip(rows, rollouts, tokens, strict=True):
        tokens_of = replace(found, rest=found.rest[:-1]) if rollout.truncated else found
        prompt = replace(rollout.prompt, ids=found.prompt)
        whole.append(
            replace(row, rollout=replace(rollout, prompt=prompt, row=tokens_of, logps=[0.0] * len(tokens_of.rest)))
        )
    return whole
