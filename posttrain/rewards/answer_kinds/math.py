"""`answer: math`: any form that equals the prompt's answer is right (docs/rewards.md)."""

from __future__ import annotations

from posttrain.answers.echo import why_refused
from posttrain.answers.equal import same_answer, why_unreadable
from posttrain.answers.extract import after_mark, final_answer, gold_answer
from posttrain.answers.nodes import Unreadable
from posttrain.rewards.correct import AnswerKind, CorrectOptions, gold_text, question_of, unparseable
from posttrain.rollout import Rollout, Score


def _why_unreadable(gold: str, options: CorrectOptions) -> str | None:  # noqa: ARG001
    try:
        return why_unreadable(gold_answer(gold))
    except Unreadable as reason:
        return str(reason)


def _score(rollout: Rollout, options: CorrectOptions) -> Score:
    try:
        if options.form == "auto" and options.after is not None:
            found = after_mark(rollout.text, options.after)
        else:
            found = final_answer(rollout.text, options.form, truncated=rollout.truncated, unmarked=options.unmarked)
        gold = gold_answer(gold_text(rollout.prompt, options))
        right = same_answer(gold, found, options.pairs)
    except Unreadable as reason:
        return unparseable(str(reason))
    if right and (why := why_refused(question_of(rollout.prompt), found, gold)):
        return Score(0.0, reason=why)
    return Score(float(right), answer=found)


KINDS = {"math": AnswerKind(_score, _why_unreadable)}
