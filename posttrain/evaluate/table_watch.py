"""`watch` of runs that train on a table: evaluate the model on held-out rows during training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import polars as pl
import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.objective import STEP_COLUMNS, HeldoutItems, Objective
from posttrain.errors import DataError
from posttrain.evaluate.watch import LOSS, HeldoutWatch, Measure, Quantity, WatchRule
from posttrain.evaluate.watch_rules import Measured
from posttrain.formulas.ragged import Ragged
from posttrain.measure.phases import phase
from posttrain.settings.listing import Listing
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example, collate
from posttrain.train.by_all import by_all, first_of_items
from posttrain.train.heldout import first_by_id
from posttrain.train.loop import TrainingRun
from posttrain.train.model_set import ModelSet
from posttrain.train.step import Batch

FELL = 0.5
"""The share of held-out pairs with two less likely answers above which a line is printed."""


SAMPLED: Final[Listing[tuple[Callable[..., tuple[dict[str, Any], dict[str, Any]]], Callable[..., Measure]]]] = Listing(
    "posttrain.online.heldout", "SAMPLED"
)
"""The modules that read a reward and sample prompts. Other runs do not depend on the code for sampling."""


class TableWatch(WatchRule):
    """Evaluation during training on rows of the split `heldout` of the run's table."""

    rows: int = Field(256, ge=2, description="maximum number of held-out rows; always the same rows, chosen by id")


class DemonstrationWatch(TableWatch):
    """Evaluation on demonstrations. If their prompts are sampled, the reward of the samples decides."""

    reward: dict[str, Any] | None = Field(
        None,
        description="reward for samples of the rows' prompts, where the demonstration is the right answer; null: no "
        "samples are drawn and the loss decides",
    )
    metrics: Any = Field(
        None,
        description="rewards of the samples that are measured but not counted: [NAME, ...] or {NAME: {its options}}",
    )
    samples: int = Field(1, ge=1, description="samples per prompt, if there is a reward")
    max_tokens: int = Field(64, ge=1, description="maximum tokens of a sample, including its stop token")

    @model_validator(mode="after")
    def _comparable(self) -> DemonstrationWatch:
        if self.reward is None:
            if self.metrics is not None:
                raise ValueError("metrics need samples, which are only drawn if `reward` is set. Set reward too")
            return self
        ((terms, _),) = SAMPLED.values()
        self.__dict__["reward"], self.__dict__["metrics"] = terms(self.reward, self.metrics)
        return self


WATCH: Any = Field(None, description="evaluation during training (docs/watching.md); null: none")
"""The setting `watch`."""


class MeasuredObjective(Objective, Protocol):
    """An objective that can measure held-out items."""

    def heldout(self, micro: Ragged) -> HeldoutItems:
        """Return the measured values of each item, from the columns that the objective needs."""
        ...


def table_watch(
    run: TrainingRun, objective: MeasuredObjective, params: TableWatch | None, examples: Sequence[Example],
    rows: pl.DataFrame | None = None, text: ChatText | None = None,
) -> HeldoutWatch | None:  # fmt: skip
    """Return the evaluation on held-out examples; None if there is none.

    `rows`: the rows of demonstrations, whose prompts are sampled if there is a reward.
    """
    if params is None:
        return None
    where = f"{run.name.replace('@', '.runs.')}.watch"
    measure: Measure = HeldoutLoss(run.models, objective, examples, where)
    quantities = LOSS
    if rows is not None and isinstance(params, DemonstrationWatch) and params.reward is not None:
        [(_, sampled)] = SAMPLED.values()
        measure = sampled(run, params, measure, rows, text, where)
        quantities = (Quantity("score", "score"), *LOSS)
    return HeldoutWatch(params, measure, run.models.policy, run.source.steps, where, quantities)


def heldout_rows(frame: pl.DataFrame, params: TableWatch | None, table: Path) -> pl.DataFrame:
    """Return the held-out rows for `watch`; empty if there is no watch."""
    rows = frame.filter(split="heldout")
    if params is None:
        return rows.clear()
    if rows.height < 2:
        what = f"it has {rows.height} held-out rows, and watch needs at least 2"
        fix = "Give rows a column `split`, or raise heldout_share of the run that makes the table; or remove watch"
        raise DataError(what=what, where=str(table), fix=fix)
    return first_by_id(rows, params.rows)


class HeldoutLoss:
    """Measures the loss of held-out items. It is created before the first step, with the start model's weights."""

    def __init__(self, models: ModelSet, objective: MeasuredObjective, examples: Sequence[Example], where: str) -> None:
        self._models, self._objective, self._where = models, objective, where
        self._batch = models.add_scored_columns(collate(examples), objective.needs - STEP_COLUMNS)
        self._start_IK = self._measured().logps_IK
        self._said = False

    def __call__(self) -> Measured:
        """Return minus the loss of each item, shifted so that the plain mean equals the weighted mean.

        Each value is that mean plus the item's own influence on it, so resampled means spread like the weighted mean.
        """
        items = self._measured()
        share_I = items.weight_I / items.weight_I.sum()
        mean = (items.loss_I * share_I).sum()
        values_I = -(mean + (items.loss_I - mean) * share_I * len(share_I))
        figures = {f"heldout_{name}": float(value_I.mean()) for name, value_I in items.figures.items()}
        if items.logps_IK is not None and self._start_IK is not None:
            fell = float((items.logps_IK < self._start_IK).all(dim=1).double().mean())
            figures["heldout_both_fell"] = fell
            if fell > FELL and not self._said:
                what = f"of {fell:.0%} of the held-out pairs both answers became less likely than at the start"
                fix = "Lower optimizer.lr, raise the loss's beta, or add nll: the probability goes to other answers"
                print(f"{self._where}: {what}. {fix}", file=sys.stderr)
                self._said = True
        return Measured(values_I.numpy(), values_I.numpy(), figures)

    def _compared(self) -> Batch:
        """Return the items. If pairs are compared with each other, add the other side, from the present weights."""
        if not {"side", "step_start_logp"} <= self._objective.needs:
            return self._batch
        batch = self._models.add_scored_columns(self._batch, self._objective.needs)
        return batch.with_prepared(self._objective.prepare(batch.columns, {}).step)

    @phase("reference")
    @torch.no_grad()
    def _measured(self) -> HeldoutItems:
        for model in self._models.trained.values():
            model.eval()  # without dropout
        batch, names = self._compared(), list[str]()

        def measured(micro: Batch) -> list[Tensor]:
            items = self._objective.heldout(self._models.forward(micro, self._objective.needs))
            names[:] = items.figures
            likely = [] if items.logps_IK is None else [items.logps_IK]
            return [items.loss_I, items.weight_I, *items.figures.values(), *likely]

        columns = [part.double() for part in by_all(self._models, batch, measured, first_of_items(batch))]
        loss_I, weight_I, *rest = columns
        figures, likely = dict(zip(names, rest, strict=False)), rest[len(names) :]
        return HeldoutItems(loss_I, weight_I, figures, likely[0] if likely else None)
