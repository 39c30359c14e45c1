"""The question and the answer as texts for a judge."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.rollout import Message, Prompt, Rollout


def said(rollout: Rollout) -> str:
    """Return the completion; for an episode of several turns, all turns."""
    return rollout.text if len(rollout.turns) < 2 else _talk(rollout.turns)


def asked_of(prompt: Prompt) -> str:
    """Return the question; for a prompt of several messages, all messages."""
    return prompt.messages[0]["content"] if len(prompt.messages) == 1 else _talk(prompt.messages)


def _talk(turns: Sequence[Message]) -> str:
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
