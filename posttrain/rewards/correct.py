"""The reward `correct`: 1 if the final answer of a completion equals the prompt's answer (docs/rewards.md)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from pydantic import Field, model_validator

from posttrain.errors import excerpt
from posttrain.rewards.numeric import NumericOptions
from posttrain.rewards.reward import Examples, rule
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.settings.listing import Listing

Answer = Literal["numeric", "math", "choice", "exact", "regex"]
Form = Literal["auto", "boxed", "hashes", "answer_is", "tags", "whole"]
MAY_TAKE_LONG: tuple[Answer, ...] = ("math", "choice", "regex")
"""Kinds of answers that are compared in worker processes: they match the user's own or many patterns."""
OTHER_NUMBER = "987654321"
"""A wrong answer, for wrong examples."""
LONGEST_ECHO = 300
MARKED = re.compile(r"\\(?:boxed|fbox)\b|####")
"""Marks in a gold answer that is a whole solution."""


class CorrectOptions(NumericOptions):
    """How a final answer is found and compared."""

    answer: Answer = Field(
        "numeric",
        description="numeric: the prompt's answer is a plain number; math: it may also be a fraction, set, interval, "
        "equation or text (LaTeX, units); "
        "choice: a letter; exact: the same text; regex: the match of a pattern equals the answer",
    )
    form: Form = Field(
        "auto",
        description="math, choice: how the answer is marked: boxed, hashes (####), answer_is ('the answer is'), tags "
        "(<answer>), whole (nothing else); auto: the last mark of any of these forms. A form other than auto "
        "overrides `after`",
    )
    unmarked: bool = Field(
        False,
        description="math, choice: true: with form auto, read the last sentence of a completion without a mark",
    )
    choices: str = Field("ABCD", pattern="^[A-Z]{2,26}$", description="choice: the letters, two or more")
    pairs: Literal["unsure", "points", "intervals"] = Field(
        "unsure",
        description="math: meaning of (1, 2) in the prompts' answers; points: also accept `x = 1, y = 2`; intervals: "
        "also accept `1 < x < 2`; unsure: accept both",
    )
    pattern: str | None = Field(
        None,
        min_length=1,
        description="regex: the pattern's last match in the completion, or its group, must equal the prompt's answer",
    )

    @model_validator(mode="after")
    def _belong_together(self) -> CorrectOptions:
        for name, kinds in (
            ("form", ("math", "choice")),
            ("unmarked", ("math", "choice")),
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
        raise ValueError(f"the pattern {excerpt(pattern, 80)} is not a regular expression ({error})") from error
    if groups > 1:
        raise ValueError(
            f"the pattern {excerpt(pattern, 80)} has {groups} groups. Keep one, and write the others as (?:...)"
        )


class AnswerKind(NamedTuple):
    """How answers of one kind are compared, if the kind needs extra code: a file in answer_kinds/."""

    score: Callable[[Rollout, CorrectOptions], Score]
    why_unreadable: Callable[[str, CorrectOptions], str | None]
    """Return the reason why a prompt's answer cannot be read; None if it can."""


KINDS: Final[Listing[AnswerKind]] = Listing("posttrain.rewards.answer_kinds", "KINDS")
"""The kinds of answers. A run depends only on the files of the kinds that it uses."""


def gold_text(prompt: Prompt, options: CorrectOptions) -> str:
    """Return the prompt's answer, or the part after its last mark."""
    return (prompt.answer if options.after is None else prompt.answer.rpartition(options.after)[2]).strip()


def question_of(prompt: Prompt) -> str:
    """Return the text of the prompt's user turns."""
    return "\n".join(str(message.get("content") or "") for message in prompt.messages if message["role"] == "user")


def unparseable(why: str) -> Score:
    """Return the score of a completion without a readable answer."""
    return Score(0.0, "unparseable", why)


def _cannot_score(prompt: Prompt, options: CorrectOptions) -> str | None:
    if options.answer == "numeric":  # the text may be a whole solution, so it is read from its end
        return KINDS[options.answer].why_unreadable(prompt.answer, options)
    if not (gold := gold_text(prompt, options)):
        return "empty"
    return KINDS[options.answer].why_unreadable(gold, options) if options.answer in KINDS else None


def _exact(rollout: Rollout, options: CorrectOptions) -> Score:
    text = rollout.text
    if options.after is not None:
        _, mark, text = text.rpartition(options.after)
        if not mark:
            return unparseable(f"it does not have `{options.after} ANSWER`")
    if not text.strip():
        return unparseable("it is empty")
    return Score(float(text.strip() == rollout.prompt.answer.strip()), answer=text.strip())


def _regex(rollout: Rollout, options: CorrectOptions) -> Score:
    assert options.pattern is not None
    matches = deque(re.finditer(options.pattern, rollout.text), maxlen=1)
    match = matches[0] if matches else None
    if match is None or match[match.re.groups] is None:
        return unparseable(f"nothing in it matches {excerpt(options.pattern)}")
    answer = match[match.re.groups].strip()
    return Score(float(answer == gold_text(rollout.prompt, options)), answer=answer)


PLAIN: dict[Answer, Callable[[Rollout, CorrectOptions], Score]] = {"exact": _exact, "regex": _regex}
"""The kinds that need no parser."""


def _examples(prompt: Prompt, options: CorrectOptions) -> Examples:
    """Return examples. Right: the gold answer's text. Wrong: it with a changed digit or without a part, and echoes.

    They are made from the text only. They do not use the code that finds and reads answers, so they test it.
    """
    if _cannot_score(prompt, options) is not None or options.answer == "regex":
        return Examples()
    gold = gold_text(prompt, options)
    if options.answer == "choice":
        wrong = [letter for letter in options.choices if letter not in gold.upper()]
    elif options.answer == "exact":
        wrong = [gold + "x"]
    else:
        wrong = [re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), gold, count=1)]
    if options.answer != "math":
        return Examples([_written(gold, options)], [_written(answer, options) for answer in wrong if answer != gold])
    if MARKED.search(gold):
        right, wrong = [gold] if options.form == "auto" and options.after is None else [], [OTHER_NUMBER]
    else:
        right = [_written(gold, options)]
        wrong += [OTHER_NUMBER, f"{gold} or {OTHER_NUMBER}", *_parts(gold), *_echoes(prompt, gold)]
    return Examples(right, [_written(answer, options) for answer in dict.fromkeys(wrong) if answer != gold])


def _parts(gold: str) -> list[str]:
    """Return the gold answer without its last part, if it has several parts."""
    several = re.match(r"(.*\S)\s*(?:[,;](?!\d{3})|\\cup\b|\b(?:or|and)\b)(.+)", gold)
    return [several[1].rstrip(" ,;")] if several and several[2].strip() not in several[1] else []


def _echoes(prompt: Prompt, gold: str) -> list[str]:
    """Return the question, if it is short, and its formulas, except those with the gold answer's digits."""
    question = question_of(prompt)
    if len(question) > LONGEST_ECHO or "\n" in question:
        return []
    formulas = [formula for formula in re.findall(r"\$([^$]+)\$", question) if re.search(r"[\^!+/\\]", formula)]
    digits = re.findall(r"\d+", gold)
    return [text for text in (question, *formulas) if text.strip() and re.findall(r"\d+", text) != digits]


def _written(answer: str, options: CorrectOptions) -> str:
    """Return a completion with only an answer, in the form that the options require."""
    if options.form == "auto" and options.after is not None:
        return f"{options.after} {answer}"
    if options.answer in ("numeric", "exact") or options.form == "whole":
        return answer
    forms = {"hashes": "#### {}", "answer_is": "The answer is {}.", "tags": "<answer>{}</answer>"}
    return forms.get(options.form, r"\boxed{{{}}}").format(answer)


@rule(CorrectOptions, _cannot_score, examples=_examples, isolated=lambda options: options.answer in MAY_TAKE_LONG)
def correct(rollout: Rollout, options: CorrectOptions) -> Score:
    """Return 1 if the final answer is the expected answer."""
    score = PLAIN.get(options.answer) or KINDS[options.answer].score
    try:
        return score(rollout, options)
    except Exception as error:  # whatever a completion causes in a parser of ours: it is no right answer
        if options.answer == "regex":
            raise
        return unparseable(f"reading it raised {type(error).__name__}")


REWARDS = {"correct": correct}
