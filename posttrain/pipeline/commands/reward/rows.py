"""The rows that `reward test` scores: a table of rollouts, a file with completions, or prompts and their examples."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import polars as pl

from posttrain.errors import DataError
from posttrain.pipeline.checks.named_table import table_file
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import Evaluated, evaluated, group_of
from posttrain.pipeline.tables.options import FileTable
from posttrain.pipeline.tables.readers import PLAIN, READERS, Columns, CsvDialect, file_part
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import PARAMS_FILE, table_path
from posttrain.rewards.reward import Examples
from posttrain.rewards.trial import Row, finish_of, given_rows
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.settings.params import check
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation

WANTED: Final = frozenset({"id", "prompt", "completion", "answer", "info", "task", "truncated"})
_TURN: Final = "\n\nassistant: "
"""The text before the policy's turns in an episode of several."""


def readable_file(name: str) -> Path:
    """Return the file of a table given as NAME/KIND or as a path."""
    path = table_file(name)
    if path.suffix.lower() not in READERS:
        raise DataError(
            what=f"{path.suffix or 'no suffix'} cannot be read", where=name, fix=f"Use {', '.join(READERS)}"
        )
    return path


def rollouts_of(file: Path, count: int, text: ChatText | None) -> list[Row]:
    """Return the first rows of a table of rollouts, with their sampled tokens."""
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
    sampled = Rollout(prompt, row["sample"], tokens, row["logps"], text, finish_of(row["truncated"]), said)
    return replace(sampled, turn_rewards=row.get("turn_rewards") or (), info=json.loads(row.get("info") or "{}"))


def infos_of(rollouts: Path, ids: set[str]) -> dict[str, Mapping[str, Any]]:
    """Return the info of prompts from the evaluation's table, because a table of rollouts lacks it."""
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
    """Return the csv format that these options set, with the same rules as in params.yaml."""
    given = {name: value for name, value in (("separator", separator), ("encoding", encoding)) if value is not None}
    return check(FileTable, {"path": "a.csv", **given}, where="--", file="command line").dialect


def file_rows(
    file: Path, count: int, examples: Callable[[Prompt], Examples], text: ChatText | None, dialect: CsvDialect = PLAIN
) -> list[Row]:
    """Return a file's first rows with prompts and completions, or the examples of prompts without completions."""
    read_rows = islice(file_part(file, dialect).rows(Columns(WANTED), "reward test"), count)
    rows = given_rows(read_rows, str(file), examples)
    return _with_tokens(rows, text) if text else rows


def _with_tokens(rows: Sequence[Row], text: ChatText) -> list[Row]:
    """Return the rows in the tokens of a run's policy. A completion that was not truncated ends with its stop token."""
    rollouts = [table_row.rollout for table_row in rows]
    tokens = text.conversations(
        [Conversation([*completed.prompt.messages, *completed.turns]) for completed in rollouts], "last"
    )
    whole = []
    for row, rollout, row_tokens in zip(rows, rollouts, tokens, strict=True):
        tokens_of = replace(row_tokens, rest=row_tokens.rest[:-1]) if rollout.truncated else row_tokens
        prompt = replace(rollout.prompt, ids=row_tokens.prompt)
        whole.append(
            replace(row, rollout=replace(rollout, prompt=prompt, row=tokens_of, logps=[0.0] * len(tokens_of.rest)))
        )
    return whole
