"""What was asked and said, as the texts that a judge reads."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.rollout import Message, Prompt, Rollout


def said(rollout: Rollout) -> str:
    """Return the completion; all turns of an episode of several."""
    return rollout.text if len(rollout.turns) < 2 else _talk(rollout.turns)


def asked_of(prompt: Prompt) -> str:
    """Return the question; all messages of a prompt of several."""
    return prompt.messages[0]["content"] if len(prompt.messages) == 1 else _talk(prompt.messages)


def _talk(turns: Sequence[Message]) -> str:
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
