"""What a gain on the miniature consists of: showing the working more often, or being right more often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Gain:
    """What the share of right answers gained over the reference, split into exact parts."""

    total: float
    by_working: float
    """From showing working more often."""
    by_accuracy: float
    """From being right more often, with working and without."""

    @property
    def share(self) -> float:
        """The part of the total that comes from showing working more often."""
        return self.by_working / self.total


def gain(before: Figures, after: Figures) -> Gain:
    """`p = w a + (1 - w) b`, hence `dp = dw mean(a - b) + mean(w) da + mean(1 - w) db`, exactly."""
    (w0, a0, b0), (w1, a1, b1) = _parts(before), _parts(after)
    total = after["score"] - before["score"]
    by_working = (w1 - w0) * ((a0 - b0) + (a1 - b1)) / 2
    return Gain(total, by_working, total - by_working)


def explain_gain(name: str, before: Figures, after: Figures) -> str:
    """Return how much of a policy's gain comes from more working, and how much from better answers."""
    found = gain(before, after)
    return (
        f"{name} gained {found.total:.2f}, of which {found.by_working:+.2f} ({100 * found.share:.0f} %) by showing its "
        f"working more often (in {before['working']:.2f} → {after['working']:.2f} of the completions) and "
        f"{found.by_accuracy:+.2f} by being right more often (accuracy given working "
        f"{before['right_given_working']:.2f} → {after['right_given_working']:.2f})"
    )


def _parts(figures: Figures) -> tuple[float, float, float]:
    """Return the share with working, the accuracy with it, and the accuracy without it."""
    share, accuracy = figures["working"], figures["right_given_working"]
    rest = (figures["score"] - share * accuracy) / (1 - share) if share < 1 else accuracy
    return share, accuracy, max(rest, 0.0)
