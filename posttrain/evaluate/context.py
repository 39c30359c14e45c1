"""Turns before each prompt of an evaluation, and how much text its results store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from posttrain.settings.params import Params

Completions = Literal["none", "sampled", "full"]


class ContextTurn(Params):
    """One turn before the prompt."""

    role: Literal["system", "user", "assistant"] = Field(description="role of the turn")
    content: str = Field(min_length=1, description="text of the turn")


def check_turns(context: Sequence[ContextTurn]) -> Sequence[ContextTurn]:
    """Reject turns that no prompt can follow. Allowed: a system turn first, then user and assistant in alternation."""
    examples = [turn.role for turn in context if turn.role != "system"]
    first = ["system"] * (len(context) - len(examples))
    if len(first) > 1 or [turn.role for turn in context] != first + ["user", "assistant"] * (len(examples) // 2):
        roles = ", ".join(turn.role for turn in context)
        raise ValueError(
            f"a prompt cannot follow {roles}. Give an optional system turn, then alternating user and assistant turns"
        )
    return context
