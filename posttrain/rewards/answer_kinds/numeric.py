"""`answer: numeric`: the prompt's answer is a plain number; completions may write it in any form that `math` reads."""

from __future__ import annotations

from posttrain.answers.finished import reads_number
from posttrain.rewards.answer_kinds.math import score_math
from posttrain.rewards.correct import AnswerKind, CorrectOptions, unparseable
from posttrain.rewards.numeric import expected_number, final_number, missing_number, why_no_number
from posttrain.rollout import Rollout, Score


def _why_unreadable(answer: str, options: CorrectOptions) -> str | None:
    return None if expected_number(answer, options.after) is not None else why_no_number(answer, options.after)


def _score(rollout: Rollout, options: CorrectOptions) -> Score:
    number = final_number(rollout.text, options)
    expected = expected_number(rollout.prompt.answer, options.after)
    if expected is None:
        return unparseable("the prompt has no answer that can be read")
    if number is not None:
        return Score(float(number == expected), answer=str(number.normalize()))
    if options.find == "last":
        return missing_number(options)
    read = score_math(rollout, options, reads_number)
    return missing_number(options) if read.status == "unparseable" else read


KINDS = {"numeric": AnswerKind(_score, _why_unreadable)}
