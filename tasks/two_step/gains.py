"""The two parts of a gain on the miniature: showing the working more often, and being right more often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Gain:
    """The gain in the share of right answers over the reference, split into exact parts."""

    total: float
    by_working: float
    """The part from showing working more often."""
    by_accuracy: float
    """The part from being right more often, with working and without."""

    @property
    def share(self) -> float:
        """The share of the total that comes from showing working more often."""
        return self.by_working / self.total


def gain(before: Figures, after: Figures) -> Gain:
    """Return the parts of a gain.

    `p = w a + (1 - w) b`, so `dp = dw mean(a - b) + mean(w) da + mean(1 - w) db`, exactly.
    """
    (w0, a0, b0), (w1, a1, b1) = _parts(before), _parts(after)
    total = after["score"] - before["score"]
    by_working = (w1 - w0) * ((a0 - b0) + (a1 - b1)) / 2
    return Gain(total, by_working, total - by_working)


def explain_gain(name: str, before: Sequence[Figures], after: Sequence[Figures]) -> str:
    """Return the parts of a policy's gain that come from more working and from better answers.

    With several trainings it is the mean over their pairs, because means of trainings alone do not make up the mean
    score.
    """
    pairs = [gain(one, other) for one in before for other in after]
    mean = Gain(*(fmean(values) for values in zip(*map(astuple, pairs), strict=True)))
    working = [fmean(one["working"] for one in side) for side in (before, after)]
    accuracy = [fmean(one["right_given_working"] for one in side) for side in (before, after)]
    return (
        f"{name} gained {mean.total:.2f}, of which {mean.by_working:+.2f} ({100 * mean.share:.0f} %) by showing its "
        f"working more often (in {working[0]:.2f} → {working[1]:.2f} of the completions) and "
        f"{mean.by_accuracy:+.2f} by being right more often (accuracy given working "
        f"{accuracy[0]:.2f} → {accuracy[1]:.2f})"
    )


def _parts(figures: Figures) -> tuple[float, float, float]:
    """Return the share with working, the accuracy with it, and the accuracy without it."""
    share, accuracy = figures["working"], figures["right_given_working"]
    rest = (figures["score"] - share * accuracy) / (1 - share) if share < 1 else accuracy
    return share, accuracy, max(rest, 0.0)
