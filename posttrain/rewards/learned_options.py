"""Options of rewards with a learned model: completions that were cut off, and thoughts hidden from the model.

A number for a completion that was cut off is only safe if no score is below it. A judge's scores have such a bound. A
reward model's scores have none: where most are negative, 0 would pay the policy for never ending. So there the number
is an upper bound, next to the scores of the same prompt's samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from posttrain.rollout import Rollout, TokenRow
from posttrain.settings.params import Params

if TYPE_CHECKING:
    from posttrain.text.chat import ChatText

OPENING: Final = 16
"""The number of prompt tokens in which a template may open the thoughts."""


class LearnedOptions(Params):
    """Completions that were cut off, and thoughts."""

    truncated: float | Literal["score"] = Field(
        0.0,
        description="highest score of a completion that was cut off; at most the lowest score of the prompt's "
        "samples, and at most the score of the same text as a complete one; score: score it like any "
        "other completion",
    )
    hide: str | None = Field(
        "<think>",
        pattern=r"^<[\w-]+>$",
        description="a tag, e.g. <think>: the model is not shown the text up to the last </think>, and nothing of a "
        "completion whose <think> never ends; null: show everything",
    )

    @property
    def most_if_cut(self) -> float | None:
        """The highest score of a completion that was cut off; None: it is scored like any other completion."""
        return None if self.truncated == "score" else self.truncated


def shown(rollout: Rollout, tag: str | None, text: ChatText | None = None) -> Rollout:
    """Return the rollout without thoughts and without its tokens; the same rollout if it has no thoughts.

    `text`: the policy's template, which may open the thoughts at the end of the prompt.
    """
    if tag is None:
        return rollout
    opened = text is not None and text.decode(rollout.prompt.ids[-OPENING:]).rstrip().endswith(tag)

    def rest(content: str) -> str:
        return without_thoughts(f"{tag}{content}" if opened else content, tag)

    turns = [
        {**turn, "content": rest(turn["content"])} if turn["role"] == "assistant" and turn["content"] else turn
        for turn in rollout.turns
    ]
    if rest(rollout.text) == rollout.text and turns == list(rollout.turns):
        return rollout
    return replace(rollout, text=rest(rollout.text), turns=tuple(turns), row=TokenRow((), ()))


def without_thoughts(text: str, tag: str) -> str:
    """Return the text after the last closing tag; "" if thoughts have no end."""
    _, closed, rest = text.rpartition(f"</{tag[1:]}")
    rest = rest.lstrip() if closed else text
    return "" if tag in rest else rest
