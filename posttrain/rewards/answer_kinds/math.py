"""`answer: math`: any form that equals the prompt's answer is right (docs/rewards.md)."""

from __future__ import annotations

import re

from posttrain.answers.asked import why_not_asked
from posttrain.answers.equal import same_answer, why_unreadable
from posttrain.answers.extract import Fits, after_mark, final_answer, gold_answer, reads
from posttrain.answers.finished import why_unfinished
from posttrain.answers.nodes import Unreadable
from posttrain.answers.prompted import as_asked, why_not_as_asked
from posttrain.rewards.correct import AnswerKind, CorrectOptions, gold_text, question_of, unparseable
from posttrain.rollout import Rollout, Score

LONGEST_QUESTION = 8000
"""The number of characters at the end of a question that are compared with an answer."""


def _why_unreadable(gold: str, options: CorrectOptions) -> str | None:  # noqa: ARG001
    try:
        return why_unreadable(gold_answer(gold))
    except Unreadable as reason:
        return str(reason)


def score_math(rollout: Rollout, options: CorrectOptions, fits: Fits = reads) -> Score:
    """Compare the final answer of a completion with the prompt's. `fits`: whether a text is an answer."""
    question = question_of(rollout.prompt)[-LONGEST_QUESTION:]
    try:
        if options.form == "auto" and options.after is not None:
            said = after_mark(rollout.text, options.after, fits, question)
        else:
            said = final_answer(
                rollout.text,
                options.form,
                truncated=rollout.truncated,
                unmarked=options.unmarked,
                fits=fits,
                question=question,
            )
        gold = gold_answer(gold_text(rollout.prompt, options))
        said = as_asked(question, said, gold)
        right = _spelled(gold) == _spelled(said) or same_answer(gold, said, options.pairs)
    except Unreadable as reason:
        return unparseable(str(reason))
    for why_wrong in (why_unfinished, why_not_asked, why_not_as_asked) if right else ():
        if why := why_wrong(question, said, gold):
            return Score(0.0, reason=why)
    return Score(float(right), answer=said)


def _spelled(text: str) -> str:
    """A text without spaces, besides those between digits."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


KINDS = {"math": AnswerKind(score_math, _why_unreadable)}
