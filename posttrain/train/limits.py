"""Limits on each step's metrics, and the error that ends a run beyond a limit, with its cause and a fix."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from pydantic import Field

from posttrain.errors import TrainingError
from posttrain.settings.host import HOST
from posttrain.settings.params import Params
from posttrain.train.metrics import StepMetrics

GRADIENT_WINDOW = 100
"""Earlier steps whose median gradient norm counts as usual. The limit applies once a fifth of them exist."""


class LimitParams(Params):
    """Limits that end a run that has gone wrong; null disables a limit.

    A loss that is not finite always ends the run.
    """

    gradient: float | None = Field(
        100.0, gt=1, description="largest gradient norm, as a multiple of the median of earlier steps"
    )
    entropy: float | None = Field(0.001, gt=0, description="smallest mean entropy per token, in nats")
    kl: float | None = Field(5.0, gt=0, description="largest mean KL to the reference (k3), in nats per token")
    sampler_gap: float | None = Field(
        0.1,
        gt=0,
        description="largest mean difference between the log-probs of sampler and trainer (metric sampler_gap), in "
        "nats",
    )
    steps: int = Field(5, ge=1, description="consecutive steps beyond a limit that end the run")
    memory: float | None = Field(
        1.0,
        gt=0,
        description="share of the free memory that gradients, moments and copies may take; a larger step causes a "
        "warning",
    )


class TextLimits(LimitParams):
    """Limits for a run that trains on given texts. It may become certain of every token."""

    entropy: float | None = Field(None, gt=0, description="smallest mean entropy per token, in nats")


def check_limits(limits: LimitParams, rows: Sequence[StepMetrics], name: str) -> bool:
    """Tell whether the newest step is within all limits. Raise after too many consecutive steps beyond one limit."""
    newest = rows[-1]
    bad = [key for key in ("loss", "grad_norm") if not math.isfinite(newest.get(key, 0.0))]
    if bad:
        raise TrainingError(
            what=f"{' and '.join(bad)} not finite at step {newest['step']}",
            where=name,
            fix="Lower the learning rate; the last checkpoint before it is kept",
        )
    beyond = list(_beyond(limits, rows, len(rows) - 1))
    if beyond and len(rows) >= limits.steps:
        earlier = [
            {key for key, _, _ in _beyond(limits, rows, at)} for at in range(len(rows) - limits.steps, len(rows))
        ]
        for key, what, fix in beyond:
            if all(key in keys for keys in earlier):
                reason = f"{what}, for {limits.steps} steps in a row; stopped at step {newest['step']}"
                note = f"limits.{key}: null ({HOST.settings_file}) continues regardless"
                note = f"The last checkpoint before it is kept; {note}"
                raise TrainingError(what=reason, where=name, fix=f"{fix}. {note}")
    return not beyond


def _beyond(limits: LimitParams, rows: Sequence[StepMetrics], at: int) -> Iterator[tuple[str, str, str]]:
    """Yield (limit, what happened, fix) for each limit that a step exceeds."""
    row = rows[at]
    norm, usual = row.get("grad_norm", 0.0), _usual_gradient(limits, rows, at)
    if limits.gradient is not None and usual and norm > limits.gradient * usual:
        what = f"the gradient exploded: its norm is {norm:.3g}, usually it was {usual:.3g}"
        yield "gradient", what, "Lower optimizer.lr or raise optimizer.warmup"
    entropy = row.get("entropy")
    if limits.entropy is not None and entropy is not None and not entropy >= limits.entropy:
        what = f"the entropy collapsed: {entropy:.3g} nats per token, the limit is {limits.entropy:.3g}"
        yield "entropy", what, "Raise the entropy bonus (entropy) or kl.beta, or lower optimizer.lr"
    kl = row.get("kl_k3")
    if limits.kl is not None and kl is not None and not kl <= limits.kl:
        what = f"the policy is too far from its reference: KL {kl:.3g} nats per token, the limit is {limits.kl:.3g}"
        yield "kl", what, "Raise kl.beta or lower optimizer.lr"
    gap = row.get("sampler_gap")
    if limits.sampler_gap is not None and gap is not None and not gap <= limits.sampler_gap:
        what = f"sampler and trainer disagree: their log-probs of the same tokens differ by {gap:.3g} nats on average, "
        what += f"the limit is {limits.sampler_gap:.3g}"
        yield "sampler_gap", what, "Give both the same weights, template and precision, or set correction"


def _usual_gradient(limits: LimitParams, rows: Sequence[StepMetrics], at: int) -> float | None:
    """Return the median gradient norm of earlier steps. Steps without a gradient do not count."""
    last = max(at - limits.steps, 0)
    norms = [row["grad_norm"] for row in rows[max(last - GRADIENT_WINDOW, 0) : last] if row.get("grad_norm")]
    return statistics.median(norms) if len(norms) >= GRADIENT_WINDOW // 5 else None
