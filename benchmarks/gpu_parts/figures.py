"""The figures of one part: each is measured once, written to the file at once, and printed next to what decides."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Result = dict[str, Any]
Judge = Callable[[Result], str]
Measure = Callable[[], Result]
PARTLY = ("failed", "skipped")
"""Keys of figures without a value. The next run tries them again."""


class MissingError(Exception):
    """A figure or part needs something that is not here. The text says what."""


class Figures:
    """The figures of a part in a file of all parts."""

    def __init__(self, file: Path, part: str, seconds: float, *, again: bool = False) -> None:
        """`seconds`: no figure begins later. `again`: forget what the file has of this part."""
        self._file, self._part, self._end = file, part, time.monotonic() + seconds
        self.left: list[str] = []
        """Figures for which there was no time."""
        if again:
            self._write({})

    @property
    def seconds_left(self) -> float:
        """Seconds until the part has to end."""
        return self._end - time.monotonic()

    def found(self, name: str, part: str | None = None) -> Result | None:
        """Return a figure that has been measured, now or by an earlier run, of this part or another."""
        figure = read(self._file).get(part or self._part, {}).get(name)
        return None if figure is None or any(key in figure for key in PARTLY) else figure

    def take(self, name: str, measure: Measure, judge: Judge | None = None) -> Result | None:
        """Measure a figure unless the file has it. Return it; None if it was not measured.

        A figure that fails does not stop the next ones.
        """
        if (known := self.found(name)) is not None:
            return known
        if self.seconds_left <= 0:
            self.left.append(name)
            return None
        start = time.monotonic()
        self._keep(name, {"failed": "the process ended while it measured this figure"})
        try:
            figure = measure()
            said = judge(figure) if judge else shown(figure)
            figure = {**figure, "verdict": said}
        except (MissingError, SystemExit) as error:
            said = f"skipped: {error}"
            figure = {"skipped": str(error)}
        except Exception as error:  # noqa: BLE001  whatever a kernel raises: the other figures are still worth taking
            said = f"failed: {type(error).__name__}: {str(error)[:300]}"
            figure = {"failed": said, "trace": traceback.format_exc()[-2000:]}
        figure["taken_s"] = round(time.monotonic() - start, 2)
        self._keep(name, figure)
        print(f"{self._part} {name}: {said}", flush=True)
        return self.found(name)

    def _keep(self, name: str, figure: Result) -> None:
        self._write({**read(self._file).get(self._part, {}), name: figure})

    def _write(self, figures: dict[str, Result]) -> None:
        everything = {**read(self._file), self._part: figures}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")  # a part that is killed while it writes must not lose the others
        new.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
        new.replace(self._file)


def read(file: Path) -> dict[str, dict[str, Result]]:
    """Return part -> figure -> values."""
    if not file.is_file():
        return {}
    found: dict[str, dict[str, Result]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def limit(key: str, most: float, above: str, below: str, *, unit: str = "ms", note: str = "") -> Judge:
    """Return a judge that decides between two explanations by whether a value is above a limit."""

    def judge(figure: Result) -> str:
        value = figure[key]
        known = f"limit {most:.3g}{'; ' if note else ''}{note}"
        return f"{value:.3g} {unit} ({known}): {above if value > most else below}"

    return judge


def predicted(key: str, expected: float, holds: str, fails: str, *, unit: str = "", within: float = 0.2) -> Judge:
    """Return a judge that compares a value with a prediction. `within`: the share by which it may differ."""

    def judge(figure: Result) -> str:
        value = figure[key]
        said = holds if abs(value / expected - 1) <= within else fails
        return f"{value:.3g}{unit and ' '}{unit} (predicted {expected:g}, within {within:.0%}): {said}"

    return judge


def shown(figure: Result) -> str:
    """Return the plain values of a figure."""
    plain = {key: value for key, value in figure.items() if isinstance(value, int | float | str)}
    return ", ".join(
        f"{key} {value if isinstance(value, str) else format(value, '.4g')}" for key, value in plain.items()
    )
