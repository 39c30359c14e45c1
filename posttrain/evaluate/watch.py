"""Evaluate a model on held-out rows during training, keep the best weights, and possibly end the run early."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from posttrain.evaluate.intervals import failures_note
from posttrain.evaluate.watch_rules import Evaluation, History, Measured, Verdict, mean_with_interval
from posttrain.files import rounded
from posttrain.models.master_weights import master_of, round_masters
from posttrain.models.sharding import as_divided, own_part
from posttrain.settings.params import Params


class WatchRule(Params):
    """Settings: when a model is evaluated during training, and the consequences."""

    every: int = Field(
        10,
        ge=1,
        description="optimizer steps between evaluations; the start and the end are always evaluated. Without "
        "`watch`, nothing is evaluated",
    )
    keep: Literal["last", "best"] = Field(
        "last", description="weights to save: the last weights, or the weights of the best evaluation"
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="end the run after this many consecutive evaluations clearly worse than the best; null: never",
    )
    over_optimisation: Literal["warn", "stop"] = Field(
        "warn",
        description="what to do about over-optimisation: in two consecutive evaluations, compared with the best, the "
        "training quantity has clearly risen and a deciding reward has clearly fallen",
    )


class Quantity(NamedTuple):
    """A quantity measured on each held-out row. Stored values are signed so that larger is better."""

    metric: str
    """The metric's name after `heldout_`."""
    label: str
    sign: float = 1.0
    """-1: shown with the opposite sign, e.g. a loss."""


Measure = Callable[[], Measured]
METRIC: Final = "heldout_reward_"
"""The prefix of metrics of samples."""
ENDS: Final = ("_low", "_high")
REWARDS: Final = (Quantity("true", "true reward"), Quantity("proxy", "reward that is trained on"))
LOSS: Final[tuple[Quantity, ...]] = (Quantity("loss", "loss", -1),)


@dataclass(eq=False)
class HeldoutWatch:
    """Evaluates a model before some steps, keeps the best weights, and decides when to stop: a `Watch` of a run."""

    params: WatchRule
    measure: Measure
    policy: Any
    steps: int
    where: str
    quantities: tuple[Quantity, ...] = REWARDS
    """The deciding quantity, and the trained quantity if it is different."""

    def __post_init__(self) -> None:
        self.history, self.ended = History(), False
        self._best = self._weights() if self.params.keep == "best" else {}

    def look(self, step: int) -> dict[str, float]:
        """Return the metrics of the weights before this step, if an evaluation is due."""
        if step % self.params.every and step != self.steps:
            return {}
        newest = Evaluation(step, *self.measure())
        verdict = self.history.add(newest)
        if self._best and self.history.best is newest:
            self._best = self._weights()
        metrics = self._metrics(newest)
        shown = (
            f"{label} {metrics[key]:.3f} [{metrics[f'{key}_low']:.3f}, {metrics[f'{key}_high']:.3f}]"
            for key, label in ((f"heldout_{quantity.metric}", quantity.label) for quantity in self.quantities)
        )
        print(f"{self.where}: step {step}, held-out {', '.join([*shown, *_shown(newest.figures)])}", file=sys.stderr)
        if verdict is not None:
            self._judge(step, verdict)
        return {**metrics, **newest.figures}

    def finish(self) -> dict[str, float]:
        """Restore the policy to save. Return its step and its measurements as metrics."""
        best, last = self.history.best, self.history.evaluations[-1]
        chosen = best if self._best else last
        with torch.no_grad():
            for name, parameter in self.policy.named_parameters():
                if name in self._best:
                    own_part(master_of(parameter)).copy_(own_part(self._best[name]))
        round_masters(self.policy.parameters())
        at = self.history.over_optimised_at
        decides = self.quantities[0].label
        line = f"best held-out {decides} at step {best.step} of {last.step}; the saved model is from step {chosen.step}"
        print(f"{self.where}: {line}" + ("" if at is None else f". Over-optimised at step {at}"), file=sys.stderr)
        metrics = {name: value for name, value in chosen.figures.items() if name.startswith(METRIC)}
        figures = (pair for pair in {**self._metrics(chosen), **metrics}.items() if not pair[0].endswith(ENDS))
        measured = {"best_step": best.step, "kept_step": chosen.step, **rounded(dict(figures))}
        return measured if at is None else {**measured, "over_optimised_step": at}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the evaluations and the best weights, for a checkpoint."""
        return {**self.history.state_dict(), **{f"best.{name}": part for name, part in self._best.items()}}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        self.history.load_state_dict(tensors)
        self._best = {name: as_divided(tensors[f"best.{name}"], part) for name, part in self._best.items()}

    def _weights(self) -> dict[str, Tensor]:
        """Return a copy of the trained weights."""
        named = self.policy.named_parameters()
        return {name: master_of(part).detach().to("cpu", copy=True) for name, part in named if part.requires_grad}

    def _metrics(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the mean of each quantity with its 95 % interval over rows."""
        metrics: dict[str, float] = {}
        for quantity, values_P in zip(self.quantities, (evaluation.true_P, evaluation.proxy_P), strict=False):
            name, (mean, low, high) = f"heldout_{quantity.metric}", mean_with_interval(values_P, quantity.sign)
            metrics |= {name: mean, f"{name}_low": low, f"{name}_high": high}
        return metrics

    def _judge(self, step: int, verdict: Verdict) -> None:
        """Warn about over-optimisation, and end the run if the settings require it."""
        true, proxy = self.quantities[0], self.quantities[-1]
        changed = verdict.true.shown(true.sign)
        since = f"since step {verdict.best.step} the {true.label} of held-out rows changed by {changed}"
        if self.history.over_optimised_at == step:  # said once
            what = f"OVER-OPTIMISATION at step {step}: {since}, while the {proxy.label} changed by "
            fix = (
                "Set watch.keep: best, train for fewer steps, or use a better reward or better data "
                "(docs/reports/over-optimisation.md)"
            )
            print(f"{self.where}: {what}{verdict.proxy.shown(proxy.sign)}. {fix}", file=sys.stderr)
            self.ended = self.params.over_optimisation == "stop"
        patience = self.params.patience
        if patience is not None and self.history.worse_in_a_row >= patience:
            print(f"{self.where}: the run ends at step {step}: {since} (watch.patience = {patience})", file=sys.stderr)
            self.ended = True


def _shown(figures: Mapping[str, float]) -> Iterator[str]:
    """Yield each metric with its interval as text."""
    for key in figures:
        if f"{key}_low" in figures:
            name, note = key.removeprefix(METRIC), failures_note(figures, key)
            yield f"{name} {figures[key]:.3f} [{figures[f'{key}_low']:.3f}, {figures[f'{key}_high']:.3f}]{note}"
