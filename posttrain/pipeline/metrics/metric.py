"""A metric of the catalogue, with its healthy range."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Final, Literal

END: Final = 0.1
"""The fraction of a run's steps that counts as its start, and as its end."""
MOVED: Final = 0.1
"""How far the end must be from the start, relative to the larger one, before a metric counts as moved."""
Better = Literal["higher", "lower", "neither"]
LIKELIHOOD: Final = ("base", "sft")
PREFERENCE: Final = ("preference",)
REWARD: Final = ("reward",)
ONLINE: Final = ("online",)
DISTILL: Final = ("distill",)
TRAINED: Final = (*LIKELIHOOD, *REWARD, *PREFERENCE, *ONLINE, *DISTILL)
EVALUATED: Final = ("evaluate",)
REGRADED: Final = ("regrade",)
RATED: Final = ("ratings",)


@dataclass(frozen=True)
class Metric:
    """The meaning of a number, in Markdown. If a run ends with a value outside `low` to `high`, it needs attention."""

    names: tuple[str, ...]
    """NAME stands for any name, K for a number, e.g. `reward_NAME_std` and `pass_at_K`."""
    stages: tuple[str, ...]
    meaning: str
    better: Better = "neither"
    healthy: str = ""
    fix: str = ""
    """What to do if it is not healthy."""
    low: float = -inf
    high: float = inf
    judged: tuple[str, ...] = ()
    """The names that the limits apply to; empty: all."""
    must_not: Literal["", "rise", "fall"] = ""
    """The direction in which the end of a healthy run does not move away from its start."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """A regular expression that matches the metric's names, including the ends of its interval."""
        names = "|".join(re.escape(name).replace("NAME", ".+").replace("_K", r"_\d+") for name in self.names)
        return re.compile(f"(?:{names})(?:_low|_high)?")

    @property
    def has_limits(self) -> bool:
        """True if the end of a run can be outside the healthy range."""
        return (self.low, self.high) != (-inf, inf) or bool(self.must_not)

    def limits(self) -> str:
        """Return when the page warns about the end of a run, e.g. 'below 0.1, or if it rises'; empty: never."""
        bounds = [f"below {self.low:g}"] if self.low != -inf else []
        bounds += [f"above {self.high:g}"] if self.high != inf else []
        bounds += [f"if it {self.must_not}s"] if self.must_not else []
        only = f" ({', '.join(f'`{name}`' for name in self.judged)})" if self.judged and bounds else ""
        return ", or ".join(bounds) + only

    def text(self) -> str:
        """Return the entry as plain text."""
        parts = [self.meaning, {"neither": ""}.get(self.better, f"{self.better.capitalize()} is better")]
        parts += [f"Healthy: {self.healthy}" if self.healthy else "", f"If not: {self.fix}" if self.fix else ""]
        return " ".join(f"{plain(part)}." for part in parts if part)

    def worry(self, name: str, values: Sequence[float]) -> str:
        """Return the problem at the end of a run and its remedy; empty if there is none."""
        if not self.has_limits or not values or (self.judged and name not in self.judged):
            return ""
        count = max(1, round(len(values) * END))
        start, end = (sum(part) / count for part in (values[:count], values[-count:]))
        if not self.low <= end <= self.high:
            bound = f"below {self.low:g}" if end < self.low else f"above {self.high:g}"
            return f"{name} {end:.3g} is {bound}: {plain(self.fix)}"
        gone = {"rise": end - start, "fall": start - end}.get(self.must_not, 0.0)
        if count < len(values) and gone > MOVED * max(abs(start), abs(end)):
            moved = "rose" if self.must_not == "rise" else "fell"
            return f"{name} {moved} from {start:.3g} to {end:.3g}: {plain(self.fix)}"
        return ""


def plain(markdown: str) -> str:
    """Return a text without links and code marks."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", markdown).replace("`", "")
