"""The arguments of the command `replay`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add_replay(commands: Any, add: Callable[..., Any]) -> None:
    """Add the command; `add` makes it, with its help and an example."""
    does = "train a finished run again on its stored rollouts, and say whether each step has the same loss and gradient"
    replay = add(commands, "replay", does, "online/grpo --step 40")
    replay.add_argument("run", metavar="RUN", help="a run of online or distill, e.g. online/grpo")
    replay.add_argument("--step", type=int, help="the last step, as plots/ counts them; default: all")
