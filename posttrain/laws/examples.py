"""A concrete example of a failed law: a token or a pair, its inputs, the loss's result and the expected result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from posttrain.formulas.ragged import Ragged
from posttrain.laws.cases import Outcome

SHOWN = (
    "logp", "old_logp", "sampler_logp", "ref_logp", "teacher_logp", "advantage", "weight",
    "value", "old_value", "returns", "return", "score", "reward", "side", "label", "rank",
)  # fmt: skip
"""The inputs of a token or its row that an example shows, if the loss has them."""

TOLD: Final = 1e-3
"""If a gradient's error is at least this share of the largest one, the example is a token."""


@dataclass(frozen=True)
class Example:
    """The loss's result at one place, and the law's expected result."""

    place: str
    inputs: Mapping[str, float]
    quantity: str
    found: float
    expected: float | str

    def line(self) -> str:
        """Return the example as text."""
        given = ", ".join(f"{name} {value:.4g}" for name, value in self.inputs.items())
        expected = self.expected if isinstance(self.expected, str) else f"{self.expected:.6g}"
        place = f"{self.place} ({given})" if given else self.place
        return f"e.g. {place}: {self.quantity} {self.found:.6g}, expected {expected}"

    def plain(self) -> dict[str, Any]:
        """Return the example as JSON data, which has no nan and no infinity."""
        found, expected = (str(one) if _is_unwritable(one) else one for one in (self.found, self.expected))
        inputs = {name: str(one) if _is_unwritable(one) else one for name, one in self.inputs.items()}
        return {**vars(self), "inputs": inputs, "found": found, "expected": expected}


def _is_unwritable(value: float | str) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


class Miss(float):
    """The size of a law's error, with an example that is created on request."""

    example: Callable[[], Example]

    def __new__(cls, error: float, example: Callable[[], Example]) -> Miss:
        """Return the number. It behaves like any other float."""
        made = super().__new__(cls, error)
        made.example = example
        return made


def worst_of(errors: Sequence[float]) -> float:
    """Return the largest error. nan counts as infinite."""
    return max(_measured(error) for error in errors)


def _measured(error: float) -> float:
    if not math.isnan(error):
        return error
    return Miss(math.inf, error.example) if isinstance(error, Miss) else math.inf


def number(quantity: str, actual: float, expected: float, error: float) -> Miss:
    """Return the error of a number for the whole step."""
    return Miss(error, lambda: Example("the whole step", {}, quantity, actual, expected))


def by_token(outcome: Outcome, name: str, actual: Tensor, expected: Tensor, error: float) -> Miss:
    """Return the error of the gradient with respect to a column. The example is the worst token or row."""

    def example() -> Example:
        at = furthest(actual - expected)
        case, prepared = outcome.case, outcome.prepared
        if name == "score":
            inputs = _of({"score": case.leaves[name], **case.step.rows}, at)
            return Example(f"row {at}", inputs, f"gradient by {name}", float(actual[at]), float(expected[at]))
        row, place = where(case.step, at)
        shown = _of({**case.step.rows}, row) | _of({**case.step.tokens, **case.leaves}, at, case.step)
        here = (prepared.tokens["token"] == at).nonzero().flatten()
        shown |= _of(prepared.tokens, int(here[0]), prepared) if here.numel() else {}
        return Example(place, _ordered(shown), f"gradient by {name}", float(actual[at]), float(expected[at]))

    return Miss(error, example)


def worst_difference(by_column: Sequence[Miss], of_step: Sequence[Miss]) -> float:
    """Return the largest error of gradients and of step numbers. The example is a token if any token is wrong."""
    worst, gradient = worst_of([*by_column, *of_step]), worst_of([0.0, *by_column])
    if isinstance(gradient, Miss) and gradient > TOLD * worst:
        return Miss(worst, gradient.example)
    return worst


def where(rows: Ragged, token: int) -> tuple[int, str]:
    """Return the row of a token, and both as text. Numbers count from 0."""
    ends_B = rows.lengths_B.cumsum(0)
    row = int((ends_B <= token).sum())
    return row, f"row {row}, token {token - int(ends_B[row] - rows.lengths_B[row])}"


def furthest(gap: Tensor) -> int:
    """Return the place of the largest difference. nan is larger than everything."""
    return int(gap.detach().abs().nan_to_num(nan=math.inf, posinf=math.inf).argmax())


def values(columns: Mapping[str, Tensor], at: int) -> dict[str, float]:
    """Return a token's numbers in the order of `SHOWN`. Every token of a step counts, so its mask is 1."""
    return _ordered(_of(columns, at) | {"mask": 1.0})


def _of(columns: Mapping[str, Tensor], at: int, tokens: Ragged | None = None) -> dict[str, float]:
    count = None if tokens is None else int(tokens.lengths_B.sum())
    fitting = {name: part for name, part in columns.items() if count is None or part.numel() == count}
    numbers = {name: float(fitting[name][at]) for name in SHOWN if name in fitting}
    if tokens is not None:
        numbers["mask"] = float(not ("dropped" in fitting and bool(fitting["dropped"][at])))
    return numbers


def _ordered(inputs: Mapping[str, float]) -> dict[str, float]:
    return {name: inputs[name] for name in (*SHOWN, "mask") if name in inputs}
