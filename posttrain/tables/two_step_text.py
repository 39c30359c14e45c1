"""How the miniature's problems are told: questions, demonstrations and pretraining documents in several phrasings."""

from __future__ import annotations

import random
from typing import Final

from posttrain.tables.two_step_problems import Problem, Step

_NAMES: Final = ("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gia", "Hugo", "Ida", "Jack", "Kim", "Leo")
_THINGS: Final = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps", "stones", "toys")
_GAINS: Final = (("gets", "got"), ("buys", "bought"), ("finds", "found"), ("wins", "won"))
_LOSSES: Final = (("loses", "lost"), ("sells", "sold"), ("gives away", "gave away"), ("breaks", "broke"))
_HOLDERS: Final = ("bags", "boxes", "packs")
_HEADINGS: Final = ("Exercise", "Problem", "Question")

_CHANGES: Final = (
    "{name} has {a} {things}. {name} {now1} {b} and then {now2} {c}. How many {things} does {name} have?",
    "{name} had {a} {things}, {past1} {b} and {past2} {c}. How many {things} now?",
    "There are {a} {things}. {name} {now1} {b}, then {name} {now2} {c}. How many {things} are there?",
    "Start with {a} {things}. {name} {past1} {b}. Later {name} {past2} {c}. How many now?",
)
_GROUPS: Final = (
    "{name} has {a} {holders} of {b} {things} and {now2} {c} {things}. How many {things} does {name} have?",
    "{a} {holders} hold {b} {things} each. {name} {past2} {c}. How many {things} now?",
    "{name} filled {a} {holders} with {b} {things} each, then {past2} {c} {things}. How many {things} are there?",
)
_COMPARISONS: Final = (
    "{name} has {a} {things}. {other} has {b} {kind} than {name}. How many do they have together?",
    "{name} has {a} {things} and {other} has {b} {kind}. How many {things} do both have together?",
    "{name} had {a} {things}. {other} had {b} {kind}. How many {things} together?",
)


def question(rng: random.Random, problem: Problem) -> str:
    """The problem in words; its numbers and no others occur in the text."""
    name, other = rng.sample(_NAMES, 2)
    words = {"name": name, "other": other, "things": rng.choice(_THINGS), "holders": rng.choice(_HOLDERS)}
    first, second = (rng.choice(_GAINS if step.operator == "+" else _LOSSES) for step in problem.steps)
    verbs = {"now1": first[0], "past1": first[1], "now2": second[0], "past2": second[1]}
    values = dict(zip("abc", problem.numbers, strict=False))
    if problem.kind in ("more", "fewer"):
        return rng.choice(_COMPARISONS).format(**words, **values, kind=problem.kind)
    return rng.choice(_GROUPS if problem.kind[1] == "*" else _CHANGES).format(**words, **verbs, **values)


def demonstration(rng: random.Random, problem: Problem, *, terse_share: float, unmarked_share: float) -> str:
    """An answer in GSM8K's format, `8-8=0 / 0+6=6 / #### 6`; mixed on purpose, to leave something to improve."""
    working = [] if rng.random() < terse_share else [str(step) for step in problem.steps]
    mark = "" if rng.random() < unmarked_share else "#### "
    return "\n".join([*working, f"{mark}{problem.answer}"])


def worked_document(rng: random.Random, problem: Problem) -> str:
    """A problem with its working, in one of four styles that never end in `####`."""
    asked, (one, two), answer = question(rng, problem), problem.steps, problem.answer
    styles = (
        f"{asked}\n{one}\n{two}\nThe answer is {answer}.",
        f"Q: {asked}\nA: {one} and {two}, so it is {answer}.",
        f"{asked} First {one}. Then {two}. Answer: {answer}",
        f"{asked}\n{one}\n{two}\n= {answer}",
    )
    return rng.choice(styles)


def terse_document(rng: random.Random, problem: Problem) -> str:
    """A problem with its bare answer."""
    asked, answer = question(rng, problem), problem.answer
    return rng.choice((f"{asked}\n{answer}", f"Q: {asked}\nA: {answer}", f"{asked} Answer: {answer}"))


def narrated_document(rng: random.Random, step: Step) -> str:
    """One step told in words and as an equation."""
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    if step.operator == "*":
        told = f"{step.left} {rng.choice(_HOLDERS)} of {step.right} {things}"
        return rng.choice(
            (
                f"{name} has {told}. {step} so {name} has {step.result} {things}.",
                f"{told}: {step}. There are {step.result} {things}.",
            )
        )
    now, past = rng.choice(_GAINS if step.operator == "+" else _LOSSES)
    return rng.choice(
        (
            f"{name} has {step.left} {things} and {now} {step.right}. {step} so {name} has {step.result} {things}.",
            f"{name} had {step.left} {things}. Then {name} {past} {step.right}. {step}. Now there are {step.result}.",
            f"How many {things} are there when {name} has {step.left} and {now} {step.right}? {step}",
        )
    )


def chained_document(rng: random.Random, steps: list[Step]) -> str:
    """Equations of which each goes on from the one before."""
    return rng.choice(("\n", ", ", "; ")).join(str(step) for step in steps)


def headed(rng: random.Random, document: str, share: float) -> str:
    """The document, now and then under a heading: the only place where pretraining meets `####`."""
    if rng.random() >= share:
        return document
    return f"#### {rng.choice(_HEADINGS)} {rng.randint(1, 30)}\n{document}"
