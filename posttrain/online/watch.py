"""Evaluation while a policy is trained: the reward that it learns from against the true one, on held-out prompts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from posttrain.evaluate.intervals import Floats
from posttrain.models.master_weights import master_of, round_masters
from posttrain.models.sharding import as_divided, own_part
from posttrain.online.watch_rules import Evaluation, History, Verdict
from posttrain.params.params import Params
from posttrain.rewards.catalog import Rewards, need_a_weight
from posttrain.workspace import rounded

TRUE: Any = {"correct": 1.0}
"""The true reward where params.yaml says nothing."""


class WatchParams(Params):
    """Evaluation of the policy while it is trained, on prompts of the split `heldout` of the run's table."""

    every: int = Field(
        10, ge=1, description="optimizer steps between evaluations, with one at the start and the end; no watch: none"
    )
    prompts: int = Field(64, ge=2, description="prompts, from the top of the split heldout")
    samples: int = Field(1, ge=1, description="samples of each prompt, with rollout.sampling")
    reward: Annotated[Rewards, AfterValidator(need_a_weight)] = Field(
        TRUE, description="the true reward; the reward of the run is the proxy that it is compared with"
    )
    keep: Literal["last", "best"] = Field(
        "last", description="which weights become the model: the last, or those of the best evaluation"
    )
    patience: int | None = Field(
        None, ge=1, description="evaluations in a row clearly worse than the best that end the run; null: never"
    )
    over_optimisation: Literal["warn", "stop"] = Field(
        "warn",
        description="what happens where, twice in a row, the proxy has clearly risen and the true reward clearly "
        "fallen since the best evaluation",
    )


Measure = Callable[[], tuple[Floats, Floats]]
"""The mean true and proxy reward of each prompt with the present weights."""


class HeldoutWatch:
    """Evaluates a policy before some steps, keeps the best weights, and says when to stop: a `Watch` of a run."""

    def __init__(self, params: WatchParams, measure: Measure, policy: Any, steps: int, where: str) -> None:
        self._params, self._measure, self._policy, self._steps, self._where = params, measure, policy, steps, where
        self.history, self.ended = History(), False
        self._best = self._weights() if params.keep == "best" else {}

    def look(self, step: int) -> dict[str, float]:
        """Return the metrics of the weights before this step, where one is due."""
        if step % self._params.every and step != self._steps:
            return {}
        newest = Evaluation(step, *self._measure())
        verdict = self.history.add(newest)
        if self._best and self.history.best is newest:
            self._best = self._weights()
        metrics = newest.metrics()
        shown = (
            f"{name} {metrics[key]:.3f} [{metrics[f'{key}_low']:.3f}, {metrics[f'{key}_high']:.3f}]"
            for name, key in (("true", "heldout_true"), ("proxy", "heldout_proxy"))
        )
        print(f"{self._where}: step {step}, held-out reward: {', '.join(shown)}", file=sys.stderr)
        if verdict is not None:
            self._judge(step, verdict)
        return metrics

    def finish(self) -> dict[str, float]:
        """Make the policy the one that is kept; which step that is, and what was measured of it, for the metrics."""
        best, last = self.history.best, self.history.evaluations[-1]
        kept = best if self._best else last
        with torch.no_grad():
            for name, parameter in self._policy.named_parameters():
                if name in self._best:
                    own_part(master_of(parameter)).copy_(own_part(self._best[name]))
        round_masters(self._policy.parameters())
        at = self.history.over_optimised_at
        line = f"best held-out reward at step {best.step} of {last.step}; the model is that of step {kept.step}"
        print(f"{self._where}: {line}" + ("" if at is None else f". Over-optimised at step {at}"), file=sys.stderr)
        figures = {name: value for name, value in kept.metrics().items() if not name.endswith(("_low", "_high"))}
        found = {"best_step": best.step, "kept_step": kept.step, **rounded(figures)}
        return found if at is None else {**found, "over_optimised_step": at}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the evaluations and the best weights, for a checkpoint."""
        return {**self.history.state_dict(), **{f"best.{name}": part for name, part in self._best.items()}}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.history.load_state_dict(tensors)
        self._best = {name: as_divided(tensors[f"best.{name}"], part) for name, part in self._best.items()}

    def _weights(self) -> dict[str, Tensor]:
        """Return a copy of the trained weights."""
        named = self._policy.named_parameters()
        return {name: master_of(part).detach().to("cpu", copy=True) for name, part in named if part.requires_grad}

    def _judge(self, step: int, verdict: Verdict) -> None:
        """Warn of over-optimisation, and end the run where the settings say so."""
        since = f"since step {verdict.best.step} the true reward of held-out prompts changed by {verdict.true}"
        if self.history.over_optimised_at == step:  # said once
            what = f"OVER-OPTIMISATION at step {step}: {since}, while the reward that is learned from changed by "
            fix = (
                "Raise kl.beta, set watch.keep: best, or learn from a better reward (docs/reports/over-optimisation.md)"
            )
            print(f"{self._where}: {what}{verdict.proxy}. {fix}", file=sys.stderr)
            self.ended = self._params.over_optimisation == "stop"
        patience = self._params.patience
        if patience is not None and self.history.worse_in_a_row >= patience:
            print(f"{self._where}: the run ends at step {step}: {since} (watch.patience = {patience})", file=sys.stderr)
            self.ended = True
