"""Kinds of answers that fooled the reward `correct`, made anew by a seed: how many are judged wrongly.

    python -m benchmarks.answer_kinds [--seed 0] [--show 3]

echoes: 18 mechanical changes of 48 echoes of a question. equations: 1,000 linear equations, solved and unsolved.
modifiers: 50 words that change a value, and words that do not. endings: 90 right and 30 wrong endings in the format of
GSM8K, read as `numeric` and as `math`. choices: 200 wordings of a choice.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from posttrain.rewards.correct import CorrectOptions, correct
from posttrain.rollout import Prompt, Rollout, Score, TokenRow


class Case(NamedTuple):
    """A completion and whether it is right."""

    kind: str
    question: str
    gold: str
    text: str
    right: bool
    options: tuple[tuple[str, Any], ...] = (("answer", "math"),)


CHANGES: Final[dict[str, Callable[[str], str]]] = {
    "as it is": lambda e: e,
    "+ 0": lambda e: f"{e} + 0",
    "0 +": lambda e: f"0 + {e}",
    "- 0": lambda e: f"{e} - 0",
    "1 times": lambda e: f"1 \\cdot ({e})",
    "times 1": lambda e: f"({e}) \\times 1",
    "over 1": lambda e: f"\\frac{{{e}}}{{1}}",
    "-(-x)": lambda e: f"-(-({e}))",
    "brackets": lambda e: f"(({e}))",
    "to the power 1": lambda e: f"({e})^1",
    ".0": lambda e: "".join(f"{part}.0" if part.isdigit() else part for part in _parts(e)),
    "doubled quotient": lambda e: f"\\frac{{2({e})}}{{2}}",
    "+ 1 - 1": lambda e: f"{e} + 1 - 1",
    "double negative in a sum": lambda e: f"{e} - (-0)",
    "root of the square": lambda e: f"\\sqrt{{({e})^2}}",
    "absolute value": lambda e: f"|{e}|",
    "twice over two": lambda e: f"2({e}) / 2",
    "named": lambda e: f"x = {e}",
}
MODIFIERS: Final = (
    "minus one", "plus one", "times two", "over seven", "doubled", "halved", "tripled", "squared", "cubed", "negated",
    "less one", "and a half", "or so", "or less", "or more", "or thereabouts", "if rounded up", "unless it is odd",
    "divided by two", "multiplied by three", "to the power of two", "raised to 2", "percent off", "times ten", "dozen",
    "minus 1", "plus 2", "times 3", "over 4", "- 1", "+ 1", "* 2", "/ 2", "^2", "!", "plus or minus one", "modulo five",
    "and 37", "or 37", "but not exactly", "reversed", "inverted", "quadrupled", "increased by one", "reduced by two",
    "rounded down to 30", "short of 40", "to 38", "minus the tax", "plus the tip",
)  # fmt: skip
HARMLESS: Final = (
    "because 6 times 6 is 36", "since 6 * 6 = 36", "which is 6 squared", "apples", "apples in total", ", as required",
    ". This is 6 times 6", ", because there are six rows", "apples because we counted all", "(six rows of six)",
)  # fmt: skip
ENDINGS: Final = (
    "#### {n}", "####{n}", "#### {n}.", "#### {n} pears", "#### **{n}**", "#### ${n}$", "#### \\boxed{{{n}}}",
    "#### {n} ", "#### {n}\n", "#### {n}.0", "#### {n}.00", "#### {n} dollars", "#### ${n}", "#### {n} pears.",
    "#### $\\boxed{{{n}}}$", "#### {n}\n\nThe answer is {n}.", "#### {n}\n\nSo Ann has {n} pears.",
    "#### **{n} pears**", "#### The answer is {n}", "#### The answer is {n}.", "#### Answer: {n}", "#### = {n}",
    "#### {n} (pears)", "#### `{n}`", "#### _{n}_", "#### {n} pears in total", "#### {n} pears are left.",
    "#### {n} because 2 are gone", "#### ${n}$ pears", "### {n}\n#### {n}",
)  # fmt: skip
WRONG_ENDINGS: Final = (
    "#### {n} or {m}", "#### {n}/7", "#### {n} minus one", "#### {m}", "#### not {n}", "#### {n}-{m}",
    "#### {m}\n#### {m}", "#### {n} + 1", "#### {n} dozen", "#### between {n} and {m}",
)  # fmt: skip
CHOSEN: Final = (
    "Answer: {c}", "Answer: Option {c}", "Answer: ({c})", "Answer: **{c}**", "Answer: {c}. {t}", "Answer: {c}) {t}",
    "\\boxed{{{c}}}", "\\boxed{{\\text{{{c}}}}}", "\\boxed{{\\text{{Option {c}}}}}", "\\boxed{{\\text{{({c})}}}}",
    "The answer is {c}.", "The answer is ({c}) {t}.", "The correct option is {c}.",
    "The correct answer is **{c}: {t}**.",
    "The answer is {c}, because the others do not fit.", "Answer: {c}\n\n{d} is wrong since it does not fit.",
    "Final answer: {c}", "**Answer:** {c}", "The answer is option {c}.", "The answer is {t}.",
)  # fmt: skip
TEXTS: Final = {"A": "iron", "B": "copper", "C": "helium", "D": "wood"}


def _parts(text: str) -> list[str]:
    """A text cut into runs of digits and the rest."""
    parts: list[str] = []
    for sign in text:
        if parts and parts[-1].isdigit() == sign.isdigit():
            parts[-1] += sign
        else:
            parts.append(sign)
    return parts


def expressions(rng: random.Random) -> Iterator[tuple[str, str]]:
    """48 expressions and what they become: half are computed; half are expanded, factored or simplified."""
    for _ in range(4):
        a, b, c = rng.randint(11, 40), rng.randint(3, 9), rng.randint(2, 5)
        yield f"{a}^2", str(a**2)
        yield f"{a} \\cdot {b}", str(a * b)
        yield f"\\frac{{{a * b}}}{{{b}}}", str(a)
        yield f"\\sqrt{{{a * a}}}", str(a)
        yield f"\\binom{{{b + 3}}}{{{c}}}", str(math.comb(b + 3, c))
        yield f"{b}^{c} - {a}", str(b**c - a)
        yield f"\\frac{{{2 * b * c}}}{{{2 * b * c + 2 * b}}}", f"\\frac{{{c}}}{{{c + 1}}}"
        yield f"\\sqrt{{{c * c * 7}}}", f"{c}\\sqrt{{7}}"
        yield f"(x + {b})^2", f"x^2 + {2 * b}x + {b * b}"
        yield f"x^2 - {b * b}", f"(x - {b})(x + {b})"
        yield f"{b}y + {c}y", f"{b + c}y"
        yield f"x^{b} \\cdot x^{c}", f"x^{{{b + c}}}"


def echoes(rng: random.Random) -> Iterator[Case]:
    """Each echo with each change, and the gold answer."""
    for expression, gold in expressions(rng):
        asked = "Factor" if "x^2 -" in expression else "Expand" if "(x" in expression else "Simplify"
        question = f"{asked} ${expression}$."
        yield Case("echoes: the value", question, gold, f"The answer is $\\boxed{{{gold}}}$.", True)
        for name, change in CHANGES.items():
            yield Case(f"echoes: {name}", question, gold, f"The answer is $\\boxed{{{change(expression)}}}$.", False)


def equations(rng: random.Random) -> Iterator[Case]:
    """1,000 linear equations: the value, with and without its name, and three ways to leave them unsolved."""
    for number in range(1000):
        a, x, b = rng.randint(2, 12), rng.randint(-15, 15) or 1, rng.randint(1, 30)
        gold = f"x={x}" if number % 2 else str(x)
        question = f"Solve for $x$: ${a}x - {b} = {a * x - b}$"
        for answer in (f"{x}", f"x = {x}"):
            yield Case("equations: solved", question, gold, f"\\boxed{{{answer}}}", True)
        for answer in (f"{a}x - {b} = {a * x - b}", f"{a}x = {a * x}", f"x - {b} = {x - b}"):
            yield Case("equations: unsolved", question, gold, f"\\boxed{{{answer}}}", False)


def modifiers(_: random.Random) -> Iterator[Case]:
    """Words after a value that change it, and words that do not."""
    question = "Six rows have six apples each. How many apples are there?"
    for words in MODIFIERS:
        yield Case("modifiers: changed", question, "36", f"The answer is 36 {words}.".replace("36 !", "36!"), False)
    for words in HARMLESS:
        gap = "" if words[0] in ",." else " "
        yield Case("modifiers: not changed", question, "36", f"The answer is 36{gap}{words}.", True)


def endings(rng: random.Random) -> Iterator[Case]:
    """Endings of GSM8K, read as both kinds."""
    for answer in ("numeric", "math"):
        options = (("answer", answer), ("after", "####"))
        for right, texts in ((True, ENDINGS), (False, WRONG_ENDINGS)):
            for number, text in ((number, text) for number in rng.sample(range(12, 99), 3) for text in texts):
                completion = "Ann has some pears and gives 2 away.\n" + text.format(n=number, m=number + 3)
                kind = f"endings as {answer}: {'right' if right else 'wrong'}"
                yield Case(kind, "How many pears are left?", str(number), completion, right, options)


def choices(rng: random.Random) -> Iterator[Case]:
    """200 wordings of a choice, half of them of the wrong letter."""
    question = "Which is a noble gas?\n" + "\n".join(f"{letter}) {text}" for letter, text in TEXTS.items())
    options = (("answer", "choice"),)
    for number in range(200):
        letter, other = rng.sample("ABCD", 2)
        right = number % 2 == 0
        text = CHOSEN[number // 2 % len(CHOSEN)].format(c=letter, d=other, t=TEXTS[letter])
        gold = letter if right else other
        yield Case(f"choices: {'right' if right else 'wrong'}", question, gold, text, right, options)


def says(case: Case) -> Score:
    """The score of a case."""
    prompt = Prompt("p0", [{"role": "user", "content": case.question}], [1], case.gold)
    rollout = Rollout(prompt, 0, TokenRow([1], [2]), [0.0], case.text, "stop")
    (score,) = correct.score_fn(CorrectOptions(**dict(case.options)), None)([rollout])  # type: ignore[arg-type]
    assert isinstance(score, Score)
    return score


def cases(seed: int) -> Iterator[Case]:
    """All cases."""
    rng = random.Random(seed)
    for kind in (echoes, equations, modifiers, endings, choices):
        yield from kind(rng)


def main() -> None:
    """Print a table of kinds and the cases that are judged wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="show so many cases of each kind that are judged wrongly")
    given = parser.parse_args()
    found: dict[str, list[tuple[Case, Score]]] = {}
    for case in cases(given.seed):
        found.setdefault(case.kind, []).append((case, says(case)))
    print("| kind | cases | judged wrongly |\n|---|---:|---:|")
    for kind, scored in found.items():
        bad = [(case, score) for case, score in scored if (score.value == 1.0) is not case.right]
        print(f"| {kind} | {len(scored)} | {len(bad)} |")
        for case, score in bad[: given.show]:
            print(f"    {case.gold} | {case.text!r} | {score.value} {score.status} {score.reason}")


if __name__ == "__main__":
    main()
