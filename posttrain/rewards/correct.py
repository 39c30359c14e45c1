"""The reward `correct`: whether the final answer of a completion is the prompt's answer (docs/rewards.md)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Literal

from pydantic import Field, model_validator

from posttrain.answers.nodes import Unreadable
from posttrain.errors import excerpt
from posttrain.rewards.numeric import NumericOptions, expected_number, final_number, missing_number, why_no_number
from posttrain.rewards.reward import Examples, rule
from posttrain.rollout import Prompt, Rollout, Score

Answer = Literal["numeric", "math", "choice", "exact", "regex"]
Form = Literal["auto", "boxed", "hashes", "answer_is", "tags", "whole"]
MAY_TAKE_LONG: tuple[Answer, ...] = ("math", "choice", "regex")
"""What runs in worker processes: the user's own patterns, and texts of a model under many patterns."""
OTHER_NUMBER = "987654321"
"""In wrong examples."""
LONGEST_ECHO = 300
MARKED = re.compile(r"\\(?:boxed|fbox)\b|####")
"""What a gold answer has that is a whole solution."""


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
    unmarked: bool = Field(
        False,
        description="math, choice: true: with form auto, the last sentence of a completion without a mark is read",
    )
    choices: str = Field("ABCD", pattern="^[A-Z]{2,26}$", description="choice: the letters, two or more")
    pairs: Literal["unsure", "points", "intervals"] = Field(
        "unsure",
        description="math: what (1, 2) is in the prompts' answers; points: `x = 1, y = 2` is right as well; "
        "intervals: `1 < x < 2` is; unsure: both are",
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
    if options.answer == "choice" and _letters(gold, options.choices) is None:
        return f"none of the choices {options.choices}"
    return _why_unreadable(gold) if options.answer == "math" else None


def _letters(gold: str, choices: str) -> str | None:
    """Return the letters of a gold answer, `B` or `A, C`; None: it has others."""
    found = re.sub(r"[\W_]", "", gold).upper()
    return "".join(sorted(found)) if found and set(found) <= set(choices) else None


def _why_unreadable(gold: str) -> str | None:
    from posttrain.answers.equal import why_unreadable  # the parser is for the runs that name it
    from posttrain.answers.extract import gold_answer

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
    return Score(float(found == expected), answer=str(found.normalize()))


def _math(rollout: Rollout, options: CorrectOptions) -> Score:
    from posttrain.answers.echo import why_refused
    from posttrain.answers.equal import same_answer
    from posttrain.answers.extract import after_mark, final_answer, gold_answer

    if options.form == "auto" and options.after is not None:
        found = after_mark(rollout.text, options.after)
    else:
        found = final_answer(rollout.text, options.form, truncated=rollout.truncated, unmarked=options.unmarked)
    gold = gold_answer(_marked(rollout.prompt, options))
    right = same_answer(gold, found, options.pairs)
    if right and (reason := why_refused(_question(rollout.prompt), found, gold)):
        return Score(0.0, reason=reason)
    return Score(float(right), answer=found)


def _question(prompt: Prompt) -> str:
    """Return what the prompt's user turns say."""
    return "\n".join(str(message.get("content") or "") for message in prompt.messages if message["role"] == "user")


def _choice(rollout: Rollout, options: CorrectOptions) -> Score:
    from posttrain.answers.choice import chosen, chosen_after

    if options.form == "auto" and options.after is not None:
        letter = chosen_after(rollout.text, options.after, options.choices)
    else:
        given = {"truncated": rollout.truncated, "unmarked": options.unmarked}
        letter = chosen(rollout.text, options.choices, options.form, **given)
    return Score(float(letter == _letters(_marked(rollout.prompt, options), options.choices)), answer=letter)


def _exact(rollout: Rollout, options: CorrectOptions) -> Score:
    text = rollout.text
    if options.after is not None:
        _, found, text = text.rpartition(options.after)
        if not found:
            raise Unreadable(f"it does not have `{options.after} ANSWER`")
    if not text.strip():
        raise Unreadable("it is empty")
    return Score(float(text.strip() == rollout.prompt.answer.strip()), answer=text.strip())


def _regex(rollout: Rollout, options: CorrectOptions) -> Score:
    assert options.pattern is not None
    matches = deque(re.finditer(options.pattern, rollout.text), maxlen=1)
    found = matches[0] if matches else None
    if found is None or found[found.re.groups] is None:
        raise Unreadable(f"nothing in it matches {excerpt(options.pattern)}")
    answer = found[found.re.groups].strip()
    return Score(float(answer == _marked(rollout.prompt, options)), answer=answer)


SCORE_FNS: dict[Answer, Callable[[Rollout, CorrectOptions], Score]] = {
    "numeric": _numeric,
    "math": _math,
    "choice": _choice,
    "exact": _exact,
    "regex": _regex,
}


def _examples(prompt: Prompt, options: CorrectOptions) -> Examples:
    """Return the gold answer's own text as a completion; and it with one digit changed or a part missing, and echoes.

    They are made of the text alone, not by the code that finds and reads answers, so they check it.
    """
    if _cannot_score(prompt, options) is not None or options.answer == "regex":
        return Examples()
    gold = _marked(prompt, options)
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
    """Return the gold answer without its last part, if it has several."""
    several = re.match(r"(.*\S)\s*(?:[,;](?!\d{3})|\\cup\b|\b(?:or|and)\b)(.+)", gold)
    return [several[1].rstrip(" ,;")] if several and several[2].strip() not in several[1] else []


def _echoes(prompt: Prompt, gold: str) -> list[str]:
    """Return the question, if it is short, and its formulas; not those with the gold answer's digits."""
    question = _question(prompt)
    if len(question) > LONGEST_ECHO or "\n" in question:
        return []
    formulas = [formula for formula in re.findall(r"\$([^$]+)\$", question) if re.search(r"[\^!+/\\]", formula)]
    digits = re.findall(r"\d+", gold)
    return [text for text in (question, *formulas) if text.strip() and re.findall(r"\d+", text) != digits]


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
    except Exception as error:  # whatever a completion causes in a parser of ours: it is no right answer
        if options.answer == "regex":
            raise
        return Score(0.0, "unparseable", f"reading it raised {type(error).__name__}")


REWARDS = {"correct": correct}
