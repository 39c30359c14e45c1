"""The arguments of the commands `replay`, `where` and `why`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add_trails(commands: Any, add: Callable[..., Any], add_json: Callable[[Any], None]) -> None:
    """Add the commands; `add` makes one, with its help and an example, and `add_json` gives it `--json`."""
    does = "train a finished run again on its stored rollouts, and say whether each step has the same loss and gradient"
    replay = add(commands, "replay", does, "online/grpo --step 40")
    replay.add_argument("run", metavar="RUN", help="a run of online or distill, e.g. online/grpo")
    replay.add_argument("--step", type=int, help="the last step, as plots/ counts them; default: all")
    does = "find every copy of a row of data in the workspace, DVC's cache and git, and the runs that have read it"
    row = add(commands, "where", does, "my/data/chat.jsonl:17")
    row.add_argument("row", metavar="ROW", help="its id, FILE:LINE of a file of yours, or a piece of its text")
    add_json(row)
    does = "show what a figure comes from, back to its rows, weights and sources; and what a source row reached"
    what = add(commands, "why", does, "grpo.score")
    what.add_argument("what", metavar="WHAT", help="a figure, a number as it is written, the id of a row, or FILE:LINE")
    add_json(what)
