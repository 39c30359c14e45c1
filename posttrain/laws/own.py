"""`posttrain laws MODULE`: check the surrogates and losses in the user's module."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from posttrain.algorithms.objective import Objective
from posttrain.algorithms.padded import PaddedLoss
from posttrain.algorithms.policy_config import PolicyConfig
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.preference_config import PreferenceConfig
from posttrain.algorithms.preference_loss import PairLoss, UnaryLoss
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.surrogate import Surrogate
from posttrain.errors import ParamsError, shortened
from posttrain.laws.cases import LONGEST, Shape
from posttrain.laws.examples import Example, Miss
from posttrain.laws.laws import LAWS, Law
from posttrain.laws.padded import PADDED_LAWS
from posttrain.laws.padded_moved import forgets_old_policy
from posttrain.settings.params import check
from posttrain.settings.user_code import load_module, place_in_own_code

Subject = Objective | PaddedLoss
SHAPES = [Shape(seed, 1 + seed % 4, 2 + seed % 3, 1 + seed % 7, bool(seed % 2)) for seed in range(6)]
"""The shapes on which every law is checked."""


class Verdict(NamedTuple):
    """The result of one law on one surrogate or loss."""

    subject: str
    law: str
    holds: bool | None
    """None: the law does not apply."""
    error: float | None
    """The largest error; None if the law has no measure, e.g. for a token that is pushed the wrong way."""
    text: str
    example: Example | None = None
    """If the law fails: one token or pair, the loss's result for it, and the expected result."""

    def plain(self) -> dict[str, Any]:
        """Return the verdict as JSON data."""
        fields = {key: value for key, value in self._asdict().items() if key != "example"}
        return fields if self.example is None else {**fields, "example": self.example.plain()}

    def line(self) -> str:
        """Return the table's line, with the example below it."""
        fails = "FAILS" if self.error is None else f"FAILS by {self.error:.1e}"
        said = "does not apply" if self.holds is None else "holds" if self.holds else fails
        shown = "" if self.example is None else f"\n    {self.example.line()}"
        return f"  {self.law:17} {said:16} {self.text}{shown}"


def check_module(module: str, *, as_json: bool = False, every: bool = False) -> str:
    """Check each surrogate and loss of a module, and show the laws that fail. Raise if one fails.

    `every`: also show the laws that hold.
    """
    checked = [_checked(path, make) for path, make in subjects(module).items()]
    wrong = [one for one in checked if one.is_wrong]
    lines = [line for one in checked for line in one.lines(every=every)]
    document = {
        "failed": sum(one.failed for one in checked),
        "losses": [one.plain() for one in checked],
        "laws": [verdict.plain() for one in checked for verdict in one.verdicts],
        "notes": [f"{one.path}: {note}" for one in checked for note in one.notes],
    }
    if not wrong:
        return json.dumps(document, indent=2) if as_json else "\n".join(lines)
    print("\n".join(lines))
    fix = "docs/algorithms.md explains each law"
    names = ", ".join(one.name for one in wrong)
    what = f"laws fail for {len(wrong)} of {len(checked)} surrogates and losses: {names}"
    error = ParamsError(what=what, where=f"{module}.py", fix=fix)
    if len(checked) == 1 and wrong[0].error is not None:
        error = wrong[0].error
    error.document = document
    raise error


class Checked(NamedTuple):
    """One surrogate or loss under all laws."""

    path: str
    verdicts: list[Verdict]
    notes: list[str]
    error: ParamsError | None = None
    """The reason why it cannot be computed."""

    @property
    def name(self) -> str:
        """Its name in the module."""
        return self.path.rpartition(":")[2]

    @property
    def failed(self) -> int:
        """The number of laws that fail."""
        return sum(verdict.holds is False for verdict in self.verdicts)

    @property
    def is_wrong(self) -> bool:
        """True if a law fails or cannot be computed."""
        return self.failed > 0 or self.error is not None

    def result(self) -> str:
        """The result in a few words, e.g. 'right: 9 laws hold, 5 do not apply'."""
        if self.error is not None:
            return self.error.what
        applied = sum(verdict.holds is not None for verdict in self.verdicts)
        left = len(self.verdicts) - applied
        said = f"WRONG, fails {self.failed} of" if self.failed else "right by"
        return f"{said} {applied} laws" + (f" ({left} do not apply)" if left else "")

    def lines(self, *, every: bool) -> list[str]:
        """The lines to show: the result, the laws that fail or all, and the notes."""
        shown = [verdict.line() for verdict in self.verdicts if every or verdict.holds is False]
        return [f"{self.path}: {self.result()}", *shown, *(f"  note: {note}" for note in self.notes)]

    def plain(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {"subject": self.path, "is_wrong": self.is_wrong, "failed": self.failed, "result": self.result()}


def _checked(path: str, make: Callable[[], Subject]) -> Checked:
    try:
        verdicts = [_verdict(path, name, law, make) for name, law in laws_of(make()).items()]
        return Checked(path, verdicts, _notes(make()))
    except ParamsError as error:
        return Checked(path, [], [], error)


def _verdict(path: str, name: str, law: Law, make: Callable[[], Subject]) -> Verdict:
    error = worst(law, make, path)
    holds = None if error is None else error <= law.tolerance
    measured = None if error is None or not math.isfinite(error) else error
    example = error.example() if holds is False and isinstance(error, Miss) else None
    return Verdict(path, name, holds, measured, law.text, example)


def _notes(subject: Subject) -> list[str]:
    """Return notes about properties that are not failures."""
    if isinstance(subject, PaddedLoss) and all(forgets_old_policy(subject, shape) for shape in SHAPES):
        return ["it never reads old_logp, so it is only right if each batch of samples is used for one update"]
    return []


def laws_of(subject: Subject) -> dict[str, Law]:
    """Return the laws that apply to a surrogate or loss."""
    return PADDED_LAWS if isinstance(subject, PaddedLoss) else LAWS


def worst(law: Law, make: Callable[[], Subject], path: str) -> float | None:
    """Return the largest error over the shapes; None if the law does not apply."""
    try:
        errors = [law.check(make(), shape) for shape in SHAPES]
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        what = f"it cannot be computed ({type(error).__name__}: {shortened(str(error), 300)}){place_in_own_code(error)}"
        raise ParamsError(what=what, where=path, fix="Fix it; POSTTRAIN_TRACEBACK=1 shows where") from error
    return max((error for error in errors if error is not None), default=None)


def subjects(module: str) -> dict[str, Callable[[], Subject]]:
    """Return the surrogates and losses of a module by import path."""
    defined = vars(load_module(module, "laws"))
    kinds: dict[type, Callable[[str], Callable[[], Subject]]] = {
        Surrogate: _surrogate,
        PairLoss: _loss,
        UnaryLoss: _loss,
        PaddedLoss: lambda path: lambda: defined[path.rpartition(":")[2]],
    }
    named = {name: value for name, value in defined.items() if type(value) in kinds}
    if not named:
        fix = f"Define one: {', '.join(kind.__name__ for kind in kinds)} (docs/algorithms.md)"
        raise ParamsError(what="it defines no surrogate and no loss", where=f"{module}.py", fix=fix)
    return {f"{module}:{name}": kinds[type(value)](f"{module}:{name}") for name, value in named.items()}


def _surrogate(path: str) -> Callable[[], Objective]:
    settings: Any = check(PolicyConfig, {"surrogate": path}, where=path)
    return lambda: PolicyObjective(settings, LONGEST)


def _loss(path: str) -> Callable[[], Objective]:
    settings: Any = check(PreferenceConfig, {"loss": path}, where=path)
    return lambda: PreferenceObjective(settings)
