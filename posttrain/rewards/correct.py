"""The reward `correct`: whether the final answer of a completion is the prompt's answer (docs/rewards.md)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from typing import Literal

from pydantic import Field, model_validator

from posttrain.answers.choice import chosen
from posttrain.answers.extract import Form, after_mark, final_answer, gold_answer
from posttrain.answers.nodes import Unreadable
from posttrain.errors import excerpt
from posttrain.rewards.numeric import NumericOptions, expected_number, final_number, missing_number, why_no_number
from posttrain.rewards.reward import Examples, rule
from posttrain.rollout import Prompt, Rollout, Score

Answer = Literal["numeric", "math", "choice", "exact", "regex"]
MAY_TAKE_LONG: tuple[Answer, ...] = ("math", "choice", "regex")
"""What runs in worker processes: the user's own patterns, and texts of a model under many patterns."""
OTHER_NUMBER = "987654321"
"""In wrong examples of answers that are no numbers."""


class CorrectOptions(NumericOptions):
    """How a final answer is found and compared."""

    answer: Answer = Field(
        "numeric",
        description="numeric: a plain number; math: any equal form of it (LaTeX, fractions, units, sets, intervals); "
        "choice: a letter; exact: the same text; regex: what a pattern finds is the same text",
    )
    form: Form = Field(
        "auto",
        description="math, choice: where the answer is: boxed, hashes (####), answer_is ('the answer is'), tags "
        "(<answer>), whole (nothing else); auto: the last of these. A form other than auto goes before `after`",
    )
    choices: str = Field("ABCD", pattern="^[A-Z]{2,26}$", description="choice: the letters, two or more")
    pairs: Literal["unsure", "points", "intervals"] = Field(
        "unsure",
        description="math: what (1, 2) is in the prompts' answers; points: `x = 1, y = 2` is right as well; "
        "intervals: `1 < x < 2` is; unsure: neither",
    )
    pattern: str | None = Field(
        None,
        min_length=1,
        description="regex: its last match in the completion, or the group of it, must be the prompt's answer",
    )

    @model_validator(mode="after")
    def _belong_together(self) -> CorrectOptions:
        for name, kinds in (
            ("form", ("math", "choice")),
            ("pairs", ("math",)),
            ("choices", ("choice",)),
            ("pattern", ("regex",)),
        ):
            if name in self.model_fields_set and getattr(self, name) is not None and self.answer not in kinds:
                raise ValueError(f"{name} is an option of answer: {' and '.join(kinds)}, and answer is {self.answer}")
        if self.answer == "regex":
            _check_pattern(self.pattern)
        return self


def _check_pattern(pattern: str | None) -> None:
    if pattern is None:
        raise ValueError("answer: regex needs a pattern, e.g. pattern: 'Answer: (\\w+)'")
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the pattern {excerpt(pattern, 80)} is no regular expression ({error})") from error
    if groups > 1:
        raise ValueError(
            f"the pattern {excerpt(pattern, 80)} has {groups} groups. Keep one, and write the others as (?:...)"
        )


def _marked(prompt: Prompt, options: CorrectOptions) -> str:
    """Return the prompt's answer, or what follows its last mark."""
    return (prompt.answer if options.after is None else prompt.answer.rpartition(options.after)[2]).strip()


def _cannot_score(prompt: Prompt, options: CorrectOptions) -> str | None:
    if options.answer == "numeric":
        found = expected_number(prompt.answer, options.after)
        return None if found is not None else why_no_number(prompt.answer, options.after)
    gold = _marked(prompt, options)
    if not gold:
        return "empty"
    if options.answer == "choice" and _letter(gold) not in tuple(options.choices):
        return f"none of the choices {options.choices}"
    return _why_unreadable(gold) if options.answer == "math" else None


def _letter(gold: str) -> str:
    return gold.strip("()[]. ").upper()


def _why_unreadable(gold: str) -> str | None:
    from posttrain.answers.equal import why_unreadable  # the parser is for the runs that name it

    try:
        return why_unreadable(gold_answer(gold))
    except Unreadable as reason:
        return str(reason)


def _numeric(rollout: Rollout, options: CorrectOptions) -> Score:
    found = final_number(rollout.text, options)
    expected = expected_number(rollout.prompt.answer, options.after)
    if found is None:
        return missing_number(options)
    if expected is None:
        return Score(0.0, "unparseable", "the prompt has no answer that can be read")
    return Score(float(found == expected))


def _math(rollout: Rollout, options: CorrectOptions) -> Score:
    from posttrain.answers.echo import is_echo
    from posttrain.answers.equal import same_answer

    if options.form == "auto" and options.after is not None:
        found = after_mark(rollout.text, options.after)
    else:
        found = final_answer(rollout.text, options.form, truncated=rollout.truncated)
    gold = gold_answer(_marked(rollout.prompt, options))
    right = same_answer(gold, found, options.pairs)
    if right and is_echo(_question(rollout.prompt), found, gold):
        return Score(0.0, reason="it repeats an expression of the prompt")
    return Score(float(right))


def _question(prompt: Prompt) -> str:
    """Return what the prompt's user turns say."""
    return "\n".join(str(message.get("content") or "") for message in prompt.messages if message["role"] == "user")


def _choice(rollout: Rollout, options: CorrectOptions) -> Score:
    text, form = rollout.text, options.form
    if form == "auto" and options.after is not None:
        text, form = after_mark(text, options.after), "whole"
    letter = chosen(text, options.choices, form, truncated=rollout.truncated)
    return Score(float(letter == _letter(_marked(rollout.prompt, options))))


def _exact(rollout: Rollout, options: CorrectOptions) -> Score:
    text = rollout.text
    if options.after is not None:
        _, found, text = text.rpartition(options.after)
        if not found:
            raise Unreadable(f"it does not have `{options.after} ANSWER`")
    if not text.strip():
        raise Unreadable("it is empty")
    return Score(float(text.strip() == rollout.prompt.answer.strip()))


def _regex(rollout: Rollout, options: CorrectOptions) -> Score:
    assert options.pattern is not None
    matches = deque(re.finditer(options.pattern, rollout.text), maxlen=1)
    found = matches[0] if matches else None
    if found is None or found[found.re.groups] is None:
        raise Unreadable(f"nothing in it matches {excerpt(options.pattern)}")
    return Score(float(found[found.re.groups].strip() == _marked(rollout.prompt, options)))


SCORE_FNS: dict[Answer, Callable[[Rollout, CorrectOptions], Score]] = {
    "numeric": _numeric,
    "math": _math,
    "choice": _choice,
    "exact": _exact,
    "regex": _regex,
}


def _examples(prompt: Prompt, options: CorrectOptions) -> Examples:
    """Return the prompt's answer as a completion, and other answers in the same form."""
    if _cannot_score(prompt, options) is not None or options.answer == "regex":
        return Examples()
    gold = gold_answer(_marked(prompt, options)) if options.answer == "math" else _marked(prompt, options)
    if options.answer == "choice":
        letter = _letter(gold)
        wrong = [choice for choice in options.choices if choice != letter]
    elif options.answer == "exact":
        letter, wrong = gold, [gold + "x"]
    elif options.answer == "math":
        letter, wrong = gold, [OTHER_NUMBER, f"{gold} or {OTHER_NUMBER}"]
    else:
        number = expected_number(prompt.answer, options.after)
        assert number is not None
        letter, wrong = f"{number:f}", [f"{number + Decimal(1):f}"]
    return Examples([_written(letter, options)], [_written(answer, options) for answer in wrong])


def _written(answer: str, options: CorrectOptions) -> str:
    """Return a completion that has only an answer, in the form that the options ask for."""
    if options.form == "auto" and options.after is not None:
        return f"{options.after} {answer}"
    if options.answer in ("numeric", "exact") or options.form == "whole":
        return answer
    forms = {"hashes": "#### {}", "answer_is": "The answer is {}.", "tags": "<answer>{}</answer>"}
    return forms.get(options.form, r"\boxed{{{}}}").format(answer)


@rule(CorrectOptions, _cannot_score, examples=_examples, isolated=lambda options: options.answer in MAY_TAKE_LONG)
def correct(rollout: Rollout, options: CorrectOptions) -> Score:
    """1 where the final answer is the expected one."""
    try:
        return SCORE_FNS[options.answer](rollout, options)
    except Unreadable as reason:
        return Score(0.0, "unparseable", str(reason))


REWARDS = {"correct": correct}
