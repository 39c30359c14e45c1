"""docs/reports/conformance.md: every row by every law, with the worst error seen over fixed cases.

python -m docs.make.conformance
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from posttrain.laws.cases import Shape
from tests.library.laws import test_expectations as enumerated
from tests.library.laws.oracle_laws import LAWS
from tests.library.laws.subjects import subjects

PAGE = Path("docs/reports/conformance.md")
SHAPES = [Shape(seed, 1 + seed % 4, 2 + seed % 3, 1 + seed % 7, bool(seed % 2)) for seed in range(24)]


def worst(law: str, subject: str) -> float | None:
    """The largest error over the fixed shapes; None where the law says nothing about the row."""
    objective = subjects()[subject]()
    errors = [LAWS[law].check(objective, shape) for shape in SHAPES]
    seen = [error for error in errors if error is not None]
    return max(seen) if seen else None


def shown(error: float | None, tolerance: float) -> str:
    """The power of ten that an error stays below: digits beyond it differ from machine to machine."""
    if error is None:
        return "–"
    if error > tolerance:
        return f"**{error:.1e}**"
    return "0" if error == 0 else f"<1e{math.floor(math.log10(error)) + 1}"


def enumerations() -> Iterator[tuple[str, float]]:
    """Expectations over every sample of a small vocabulary."""
    for name in ("k1", "k3"):
        yield f"E[{name}] = KL(policy, reference)", max(enumerated.kl_gap(seed, name) for seed in range(20))
    yield "E[gradient of rloo] = gradient of -E[R]", enumerated.gradient_gap(1, enumerated.quiet("rloo"), 2, 1.0)
    text = "E[gradient of p3o, samples of another policy, no clip] = gradient of -E[R]"
    yield text, enumerated.pairwise_gap(0, 2)
    half = enumerated.gradient_gap(2, enumerated.quiet("reinforce"), 2, 0.5)
    yield "E[gradient of reinforce, batch of 2] = 1 / 2 of it", half
    for group in (2, 3):
        text = f"E[gradient of maxrl, group of {group}] = gradient of -log p truncated at order {group - 1}"
        yield text, enumerated.truncated_likelihood_gap(5, group)
    quarter = enumerated.gradient_gap(2, enumerated.quiet("dr_grpo"), 2, 0.5 / enumerated.LENGTH)
    yield "E[gradient of dr_grpo, group of 2] = 1 / 2 of it, over L_max", quarter


def page() -> str:
    """The whole page; the same numbers on every run."""
    lines = [
        "# Conformance",
        "",
        "Made by `python -m docs.make.conformance`. Each [algorithm](../reference/algorithms.md) is checked against",
        f"each law on {len(SHAPES)} fixed cases (hypothesis draws others in `tests/library/laws`).",
        "A cell bounds the worst error, relative to the larger of 1 and the number. `–`: the law does not apply.",
        "Bold: a failure.",
        "",
        "| law | | largest error allowed |",
        "|---|---|---|",
        *(f"| {name} | {law.text} | {law.tolerance:g} |" for name, law in LAWS.items()),
        "",
        f"| row | {' | '.join(LAWS)} |",
        f"|---|{'---|' * len(LAWS)}",
    ]
    for subject in subjects():
        cells = (shown(worst(law, subject), LAWS[law].tolerance) for law in LAWS)
        lines.append(f"| {subject} | {' | '.join(cells)} |")
    lines += ["", "| expectation, enumerated over a small vocabulary | error |", "|---|---|"]
    lines += [f"| {text} | {shown(error, 1e-12)} |" for text, error in enumerations()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} renewed")
