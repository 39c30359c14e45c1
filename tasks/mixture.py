"""The task `mixture`: the tables of several tasks, mixed by weight. A task may be only in the test prompts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import polars as pl
from pydantic import ConfigDict, Field, field_validator

from posttrain.data.columns import Kind, Split
from posttrain.errors import ParamsError
from posttrain.measure.record import note
from posttrain.pipeline.runs.task_tables import errors_at, generated, generator_of
from posttrain.settings.host import HOST
from posttrain.settings.params import Params
from posttrain.tasks.task import Generator, Task

from .counts import COUNTED, Counts


class Part(Params):
    """One task of a mixture. All other keys are the task's settings."""

    model_config = ConfigDict(extra="allow")

    task: str = Field(description="a task that generates tables")
    weight: float = Field(
        1.0, gt=0, description="its share of a split's rows: its weight divided by the sum of the weights in the split"
    )
    splits: list[Split] = Field(
        ["train", "heldout", "test"], min_length=1, description="the splits of its rows; [test]: never trained on"
    )

    @property
    def task_settings(self) -> Mapping[str, Any]:
        """The task's settings."""
        return self.model_extra or {}


class MixtureParams(Counts):
    """The parts of the mixture, and the total number of rows."""

    seed: int = Field(0, ge=0, description="seed of the order of rows")
    parts: dict[str, Part] = Field(min_length=1, description="name -> {task, weight, splits, and the task's own keys}")

    @field_validator("parts")
    @classmethod
    def _generate(cls, parts: dict[str, Part]) -> dict[str, Part]:
        for name, part in parts.items():
            generator_of(part.task, part.task_settings, f"parts.{name}")
        return parts

    def shares(self, kind: Kind, split: Split) -> dict[str, int]:
        """Return each part's number of rows in a split, close to the weights and with the right sum."""
        weights = {name: part.weight for name, part in self.parts.items() if split in part.splits}
        size, total, before = self.sizes()[kind][split], sum(weights.values()), 0.0
        edges = [0]
        for weight in weights.values():
            before += weight
            edges.append(round(size * before / total))
        return {name: end - start for name, start, end in zip(weights, edges, edges[1:], strict=False)}


def _tables(params: MixtureParams) -> dict[Kind, pl.DataFrame]:
    """Return the first rows of each part, as many as its weight gives, in an order that the seed decides."""
    note(seed=params.seed)
    shares = {(kind, split): params.shares(kind, split) for kind, names in COUNTED.items() for split in names}
    tables = {name: _part(name, part, shares) for name, part in params.parts.items()}
    return {
        kind: pl.concat([_mixed(params.seed, kind, split, shares[kind, split], tables) for split in names])
        for kind, names in COUNTED.items()
    }


Shares = Mapping[tuple[Kind, Split], Mapping[str, int]]


def _part(name: str, part: Part, shares: Shares) -> Mapping[Kind, pl.DataFrame]:
    """Return the tables of one part, with only its share of rows if its generator has row counts."""
    generator, params = generator_of(part.task, part.task_settings, f"parts.{name}")
    if isinstance(params, Counts):
        counts = {COUNTED[kind][split]: of.get(name, 0) for (kind, split), of in shares.items()}
        params = params.model_copy(update=counts)
    with errors_at(f"parts.{name}", params):
        return generated(part.task, generator, params)


def _mixed(
    seed: int, kind: Kind, split: Split, shares: Mapping[str, int], tables: Mapping[str, Mapping[Kind, pl.DataFrame]]
) -> pl.DataFrame:
    if not shares:
        fix = f"Add {split} to the splits of a part"
        raise ParamsError(what=f"no part has rows in the split {split}", where=HOST.settings_file, fix=fix)
    frames = []
    for name, rows in shares.items():
        frame = tables[name][kind].filter(split=split).head(rows) if kind in tables[name] else None
        if frame is None or frame.height < rows:
            available = 0 if frame is None else frame.height
            what = f"parts.{name} has {available} rows of `{kind}` in the split {split}, but its share is {rows}"
            raise ParamsError(
                what=what, where=HOST.settings_file, fix="Generate more rows of this part, or lower the total"
            )
        frames.append(frame)
    table = pl.concat(frames).unique("id", keep="first", maintain_order=True)
    order = list(range(table.height))
    random.Random(f"{seed}:{kind}:{split}").shuffle(order)
    return table[order]


TASKS = {"mixture": Task(Generator(MixtureParams, ("chat", "prompts"), _tables))}
