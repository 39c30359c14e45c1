"""The task `mixture`: the tables of several tasks, mixed by weight; some may be in the test prompts only."""

from __future__ import annotations

import random
from collections.abc import Mapping

import polars as pl
from pydantic import ConfigDict, Field, field_validator

from posttrain.errors import ParamsError
from posttrain.measure.record import note
from posttrain.params import PARAMS_FILE, Params
from posttrain.tables.columns import Kind, Split
from posttrain.tasks.task import Generator, Task, generated, generator_of


class Part(Params):
    """One task of a mixture; all other keys are the task's own."""

    model_config = ConfigDict(extra="allow")

    task: str = Field(description="a task that generates tables")
    weight: float = Field(1.0, gt=0, description="its share of a split's rows is its weight among those of the split")
    splits: list[Split] = Field(
        ["train", "heldout", "test"], min_length=1, description="where its rows are; [test]: it is never trained on"
    )


class MixtureParams(Params):
    """What is mixed, and how many rows there are in all."""

    seed: int = Field(0, ge=0, description="decides the order of rows")
    parts: dict[str, Part] = Field(min_length=1, description="name -> {task, weight, splits, and the task's own keys}")
    demonstrations: int = Field(400, ge=1, description="training rows of `chat`")
    heldout_demonstrations: int = Field(40, ge=1, description="held-out rows of `chat`")
    prompts: int = Field(800, ge=1, description="training prompts")
    heldout_prompts: int = Field(100, ge=1, description="held-out prompts")
    test_prompts: int = Field(200, ge=1, description="test prompts")

    @field_validator("parts")
    @classmethod
    def _generate(cls, parts: dict[str, Part]) -> dict[str, Part]:
        for name, part in parts.items():
            _generator(name, part)
        return parts

    def sizes(self) -> dict[Kind, dict[Split, int]]:
        """The rows of each table and split."""
        return {
            "chat": {"train": self.demonstrations, "heldout": self.heldout_demonstrations},
            "prompts": {"train": self.prompts, "heldout": self.heldout_prompts, "test": self.test_prompts},
        }


def _generator(name: str, part: Part) -> tuple[Generator, Params]:
    """A part's generator with its parameters, which are the keys that are no key of every part."""
    return generator_of(part.task, part.model_extra or {}, f"parts.{name}")


def _tables(params: MixtureParams) -> dict[Kind, pl.DataFrame]:
    """The parts' first rows, as many as their weights say, in an order by the seed."""
    note(seed=params.seed)
    tables = {name: generated(part.task, *_generator(name, part)) for name, part in params.parts.items()}
    return {
        kind: pl.concat([_mixed(params, kind, split, size, tables) for split, size in sizes.items()])
        for kind, sizes in params.sizes().items()
    }


def _mixed(
    params: MixtureParams, kind: Kind, split: Split, size: int, tables: Mapping[str, Mapping[Kind, pl.DataFrame]]
) -> pl.DataFrame:
    chosen = {name: part.weight for name, part in params.parts.items() if split in part.splits and kind in tables[name]}
    if not chosen:
        what = f"no part has rows of `{kind}` in the split {split}"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Add {split} to the splits of a part")
    frames = []
    for name, rows in _shares(chosen, size).items():
        frame = tables[name][kind].filter(split=split).head(rows)
        if frame.height < rows:
            what = f"parts.{name} has {frame.height} rows of `{kind}` in the split {split}, and its share is {rows}"
            raise ParamsError(what=what, where=PARAMS_FILE, fix="Have it generate more, or ask for fewer in all")
        frames.append(frame)
    found = pl.concat(frames).unique("id", keep="first", maintain_order=True)
    order = list(range(found.height))
    random.Random(f"{params.seed}:{kind}:{split}").shuffle(order)
    return found[order]


def _shares(weights: Mapping[str, float], size: int) -> dict[str, int]:
    """Whole numbers that add up to `size`, as close to the weights as can be."""
    total, before, given = sum(weights.values()), 0.0, 0
    found: dict[str, int] = {}
    for name, weight in weights.items():
        before += weight
        found[name] = round(size * before / total) - given
        given += found[name]
    return found


TASKS = {"mixture": Task(Generator(MixtureParams, ("chat", "prompts"), _tables))}
