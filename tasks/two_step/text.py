"""The miniature's problems as text: questions, demonstrations and pretraining documents in several phrasings."""

from __future__ import annotations

import random
from typing import Final

from .problems import Problem, Step

# Few words on purpose: with twice the names, things and verbs, past tenses and longer questions, a base model that was
# trained for the same steps got .24 of its worked answers right instead of .60: capacity went into the wording.
_NAMES: Final = ("Ann", "Ben", "Dan", "Eva", "Kim", "Tom")
_THINGS: Final = ("apples", "books", "cards", "coins", "pens", "toys")
_GAINS: Final = ("gets", "buys", "finds")
_LOSSES: Final = ("loses", "sells", "drops")
_HOLDERS: Final = ("bags", "boxes")
_HEADINGS: Final = ("Exercise", "Problem", "Question")

_CHANGES: Final = (
    "{name} has {a} {things}, {first} {b} and {second} {c}. How many now?",
    "{name} has {a} {things}. {name} {first} {b}, then {second} {c}. How many {things}?",
    "There are {a} {things}. {name} {first} {b} and {second} {c}. How many are there?",
)
_GROUPS: Final = (
    "{name} has {a} {holders} of {b} {things} and {second} {c}. How many {things}?",
    "{a} {holders} hold {b} {things} each. {name} {second} {c}. How many now?",
)
_COMPARISONS: Final = (
    "{name} has {a} {things}. {other} has {b} {kind}. How many together?",
    "{name} has {a} {things}, {other} has {b} {kind} than {name}. How many together?",
)


def question(rng: random.Random, problem: Problem) -> str:
    """Return the problem in words. The text contains exactly these numbers, in order."""
    name, other = rng.sample(_NAMES, 2)
    words = {"name": name, "other": other, "things": rng.choice(_THINGS), "holders": rng.choice(_HOLDERS)}
    first, second = (_verb(rng, step) for step in problem.steps)
    values = dict(zip("abc", problem.numbers, strict=False))
    if problem.kind in ("more", "fewer"):
        return rng.choice(_COMPARISONS).format(**words, **values, kind=problem.kind)
    phrasings = _GROUPS if problem.kind[1] == "*" else _CHANGES
    return rng.choice(phrasings).format(**words, **values, first=first, second=second)


def demonstration(rng: random.Random, problem: Problem, *, terse_share: float, unmarked_share: float) -> str:
    """Return an answer in GSM8K's format, `8-8=0 / 0+6=6 / #### 6`.

    The forms vary on purpose: training can improve them.
    """
    working = [] if rng.random() < terse_share else [str(step) for step in problem.steps]
    mark = "" if rng.random() < unmarked_share else "#### "
    return "\n".join([*working, f"{mark}{problem.answer}"])


def worked_document(rng: random.Random, problem: Problem) -> str:
    """Return a problem with its working, in one of four styles that never end in `####`."""
    asked, (first, second), answer = question(rng, problem), problem.steps, problem.answer
    styles = (
        f"{asked}\n{first}\n{second}\nThe answer is {answer}.",
        f"{asked}\n{first}\n{second}\nSo {answer}.",
        f"Q: {asked}\nA: {first}\n{second}\n= {answer}",
        f"{asked} {first}, {second}. Answer: {answer}",
    )
    return rng.choice(styles)


def terse_document(rng: random.Random, problem: Problem) -> str:
    """Return a problem with only its answer."""
    asked, answer = question(rng, problem), problem.answer
    return rng.choice((f"{asked}\n{answer}", f"Q: {asked}\nA: {answer}", f"{asked} Answer: {answer}"))


def narrated_document(rng: random.Random, step: Step) -> str:
    """Return one step in words and as an equation."""
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    if step.operator == "*":
        holders = rng.choice(_HOLDERS)
        phrasings = (
            f"{name} has {step.left} {holders} of {step.right} {things}. {step}",
            f"{step.left} {holders} hold {step.right} {things} each. {step}",
        )
        return rng.choice(phrasings)
    verb = _verb(rng, step)
    phrasings = (
        f"{name} has {step.left} {things} and {verb} {step.right}. {step}",
        f"There are {step.left} {things}. {name} {verb} {step.right}. {step}",
    )
    return rng.choice(phrasings)


def chained_document(steps: list[Step]) -> str:
    """Return equations, each of which continues from the result of the one before."""
    return "\n".join(str(step) for step in steps)


def headed(rng: random.Random, document: str, share: float) -> str:
    """Return the document, sometimes under a heading, which is the only use of `####` in pretraining."""
    if rng.random() >= share:
        return document
    return f"#### {rng.choice(_HEADINGS)} {rng.randint(1, 30)}\n{document}"


def _verb(rng: random.Random, step: Step) -> str:
    return rng.choice(_GAINS if step.operator == "+" else _LOSSES)
