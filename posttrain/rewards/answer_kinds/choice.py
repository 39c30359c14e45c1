"""`answer: choice`: the letter of the right choice, or several letters (docs/rewards.md)."""

from __future__ import annotations

import re
from typing import Any

from posttrain.answers.choice import chosen, chosen_after
from posttrain.answers.nodes import Unreadable
from posttrain.rewards.correct import AnswerKind, CorrectOptions, gold_text, question_of, unparseable
from posttrain.rollout import Rollout, Score


def _letters(gold: str, choices: str) -> str | None:
    """Return the letters of a gold answer, e.g. `B` or `A, C`; None if it contains anything else."""
    letters = re.sub(r"[\W_]", "", gold).upper()
    return "".join(sorted(letters)) if letters and set(letters) <= set(choices) else None


def _why_unreadable(gold: str, options: CorrectOptions) -> str | None:
    return f"none of the choices {options.choices}" if _letters(gold, options.choices) is None else None


def _score(rollout: Rollout, options: CorrectOptions) -> Score:
    question = question_of(rollout.prompt)
    try:
        if options.form == "auto" and options.after is not None:
            letter = chosen_after(rollout.text, options.after, options.choices, question)
        else:
            given: dict[str, Any] = {"truncated": rollout.truncated, "unmarked": options.unmarked, "question": question}
            letter = chosen(rollout.text, options.choices, options.form, **given)
    except Unreadable as reason:
        return unparseable(str(reason))
    return Score(float(letter == _letters(gold_text(rollout.prompt, options), options.choices)), answer=letter)


KINDS = {"choice": AnswerKind(_score, _why_unreadable)}
