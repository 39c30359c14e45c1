"""Store a run's rollouts as a table: files next to its checkpoints during training, checked parts at the end.

DVC removes a stage's outputs before it runs, so an interrupted run finds its rollouts next to its checkpoints. Rollouts
since the last checkpoint are in memory only, and an interrupted run samples them again. A checkpoint lists its files
and the rows that were trained.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from torch import Tensor

from posttrain.data.columns import (
    COLUMNS,
    DRAWN_FROM,
    DRAWN_FROM_TYPE,
    ID_LENGTH,
    SCORE,
    TRAINING_TEXT,
    canonical,
    digest,
    with_ids,
)
from posttrain.data.parquet import DECODE_ERRORS, decode, write_parquet
from posttrain.errors import CheckpointError
from posttrain.files import atomic_path, format_size, write_json
from posttrain.formulas.ragged import Ragged
from posttrain.measure.phases import phase
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Rollout
from posttrain.train.callback import Check, NoLog, StepLog
from posttrain.train.token_cache import list_array

Stored = Literal["full", "sampled", "none"]
SAMPLED_SHARE: Final = 20
"""With `sampled`, the text of one prompt in this many is stored: prompts with the lowest ids, which are hashes."""
FIGURE_BYTES: Final = 160
TOKEN_BYTES: Final = 12
"""Maximum bytes in a compressed table: of a row without text, and of each token of its prompt and completion."""
PENDING_TOKENS: Final = 1_000_000
"""Maximum number of tokens that are kept in memory before they are written."""
PART_BYTES: Final = 100_000_000
"""The size that merged files reach before a new part starts."""
FORMAT: Final = 1
SUMMARY: Final = "run.json"
_COLUMNS: Final = {name: dtype for name, dtype in COLUMNS["training_rollouts"].items() if name != "id"}
_SAMPLED: Final = tuple(name for name in _COLUMNS if name not in ("seed", "sampling", "step", "advantage"))
"""The columns that differ between rollouts."""
_NUMBERS: Final = {
    "prompt_ids": np.int64, "completion_ids": np.int64, "mask": np.uint8, "logps": np.float32,
    **dict.fromkeys(DRAWN_FROM, np.int32),
}  # fmt: skip
"""The columns that contain lists of numbers."""


@dataclass(frozen=True)
class Sampling:
    """Values that all rollouts of a run share."""

    run: str
    """The run's model, e.g. online/grpo."""
    seed: int
    settings: str
    """The sampling settings as JSON."""
    vocabulary: str
    """A digest of the tokenizer's vocabulary."""
    group_size: int
    most: int
    """Maximum number of rollouts that the run can sample."""
    longest: int
    """Maximum number of tokens of a row."""
    keeps: bool = False
    """True if rollouts contain the tokens that each token was drawn from."""


def unchecked(frame: pl.DataFrame, file: Path) -> pl.DataFrame:  # noqa: ARG001
    """Return the rows unchanged."""
    return frame


def most_bytes(stored: Stored, rollouts: int, longest: int) -> float:
    """Return the size of this number of rollouts if each has the maximum length."""
    share = {"full": 1.0, "sampled": 1 / SAMPLED_SHARE, "none": 0.0}[stored]
    return rollouts * (FIGURE_BYTES + share * TOKEN_BYTES * longest)


class SampleLog(StepLog, Protocol):
    """Stores the samples of a training run, and the samples that each step was trained on."""

    def add(
        self, number: int, attempt: int, first: int, rollouts: Sequence[Rollout],
        reward: RewardSum, totals: dict[int, float],
    ) -> None:  # fmt: skip
        """Add the scored samples of an attempt of a round.

        `first`: the number of draws before them; `totals`: their rewards by place.
        """


class NoRollouts(NoLog):
    """Stores no samples."""

    def add(
        self, number: int, attempt: int, first: int, rollouts: Sequence[Rollout],
        reward: RewardSum, totals: dict[int, float],
    ) -> None:  # fmt: skip
        """Store nothing."""


@dataclass
class RolloutLog:
    """Stores the rollouts of a run in a folder next to its checkpoints, and as a table when the run has ended."""

    sampling: Sampling
    stored: Stored = "full"
    limit: float = 1e9
    """Maximum number of bytes of the whole table. Beyond it, rounds are stored without text."""
    _folder: Path = Path()
    _pending: dict[str, list[Any]] = field(init=False)
    _tokens: int = 0
    """The number of tokens in the pending rollouts."""
    _sizes: dict[int, int] = field(default_factory=dict)
    """The first draw and the size of each file."""
    _rows: int = 0
    _text_ends: int | None = None
    """The first round that was stored without text to stay below the limit."""
    _trained: list[Tensor] = field(default_factory=list)
    """For each row of each optimizer step: the rollout's number, the step, and the bits of the mean advantage."""

    def __post_init__(self) -> None:
        self._set_columns = DRAWN_FROM if self.sampling.keeps else ()
        self._pending = self._empty()

    def _empty(self) -> dict[str, list[Any]]:
        return {name: [] for name in (*_SAMPLED, *self._set_columns)}

    def open(self, folder: Path) -> None:
        """Keep the files in this folder until the run ends. Print a line if the limit may be too low."""
        self._folder = folder
        size = most_bytes(self.stored, self.sampling.most, self.sampling.longest)
        if size > self.limit:
            most = f"{format_size(size)}, and no text is stored beyond {format_size(self.limit)} (rollouts_gb)"
            print(f"{self.sampling.run}: its rollouts may need up to {most}")

    def add(
        self, number: int, attempt: int, first: int, rollouts: Sequence[Rollout],
        reward: RewardSum, totals: dict[int, float],
    ) -> None:  # fmt: skip
        """Add the scored rollouts of an attempt. `first`: the number of earlier draws. `totals`: rewards by index."""
        if self._tokens > PENDING_TOKENS:
            self._write()
        for place, rollout in enumerate(rollouts):
            values = self._values(rollout) | {
                "round": number, "attempt": attempt, "draw": first + place // self.sampling.group_size,
                "reward": totals.get(place), "outcome": reward.outcome(rollout) if place in totals else None,
            }  # fmt: skip
            for column, value in values.items():
                self._pending[column].append(value)
            self._tokens += len(rollout.row) + (rollout.row.kept.ids.numel() if rollout.row.kept else 0)

    def _values(self, rollout: Rollout) -> dict[str, Any]:
        """The values of a rollout by column."""
        row, kept = rollout.row, rollout.row.kept
        values = {
            "prompt_id": rollout.prompt.id, "problem": rollout.prompt.problem, "task": rollout.prompt.task,
            "sample": rollout.sample, "version": rollout.version,
            "prompt_ids": rollout.prompt.ids, "completion": rollout.transcript, "completion_ids": row.rest,
            "mask": [True] * len(row.rest) if row.mask is None else row.mask,
            "logps": rollout.logps, "length": len(rollout.logps), "logp": sum(rollout.logps), "finish": rollout.finish,
            "scores": [(name, score.known, score.status) for name, score in rollout.scores.items()],
            "turn_rewards": list(rollout.turn_rewards), "info": canonical(dict(rollout.info)),
        }  # fmt: skip
        if self._set_columns and kept:
            values |= {"kept_ids": kept.ids.numpy(), "kept_counts": kept.counts.numpy()}
        return values

    @phase("write")
    def _write(self) -> None:
        """Write the pending rollouts; without text from the file that would exceed the table's limit."""
        if not self._pending["round"]:
            return
        first, number = self._pending["draw"][0], self._pending["round"][0]
        file = self._file(first)
        frame = select_text(self._frame(), self.stored)
        if self._text_ends is None:
            write_parquet(frame, file)
            left = max(self.sampling.most - self._rows - frame.height, 0)
            if sum(self._sizes.values()) + file.stat().st_size + left * FIGURE_BYTES > self.limit:
                self._text_ends = number
                what = f"the rollouts reach rollouts_gb ({format_size(self.limit)}) in round {number}"
                print(f"{self.sampling.run}: {what}: no text is stored from here on", file=sys.stderr)
        if self._text_ends is not None:
            write_parquet(
                frame.with_columns(pl.lit(None, dtype=frame.schema[name]).alias(name) for name in _text(frame)), file
            )
        self._sizes[first] = file.stat().st_size
        self._rows += frame.height

    def _frame(self) -> pl.DataFrame:
        """Return the pending rollouts as a table and clear them."""
        frame = pl.DataFrame([_series(name, part) for name, part in self._pending.items()])
        self._pending, self._tokens = self._empty(), 0
        same = {"seed": self.sampling.seed, "sampling": self.sampling.settings, "step": None, "advantage": None}
        constants = (pl.lit(value, dtype=_COLUMNS[name]).alias(name) for name, value in same.items())
        return frame.with_columns(constants).select(*_COLUMNS, *self._set_columns)

    def trained(self, step: int, prepared: Ragged) -> None:
        """Record which rollouts an optimizer step contains, and the mean advantage of each."""
        if "rollout" not in prepared.rows:  # given answers
            return
        advantage_B = torch.full((len(prepared),), torch.nan, dtype=torch.float64)
        if "advantage" in prepared.tokens:
            advantage_B = prepared.mean_rows(prepared.tokens["advantage"].double())
        columns = torch.stack(
            [prepared.rows["rollout"], torch.full((len(prepared),), step), advantage_B.view(torch.long)]
        )
        if "pretrain" in prepared.rows:
            columns = columns[:, ~prepared.rows["pretrain"].bool()]
        self._trained.append(columns)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the list of files and the trained rows for a checkpoint.

        Pending rollouts are first written to the disk.
        """
        self._write()
        sizes = torch.tensor(list(self._sizes.items()), dtype=torch.long).view(-1, 2)
        ends = -1 if self._text_ends is None else self._text_ends
        return {"sizes": sizes, "rows": torch.tensor([self._rows, ends]), "trained": self._trained_columns()}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        self._sizes = dict(tensors["sizes"].tolist())
        self._rows, ends = tensors["rows"].tolist()
        self._text_ends = None if ends < 0 else ends
        self._trained = [tensors["trained"]]
        for first, size in self._sizes.items():
            file = self._file(first)
            if not file.is_file() or file.stat().st_size != size:
                raise ValueError(f"{file} is missing or damaged")

    @phase("write")
    def finish(self, target: Path, steps: Sequence[dict[str, float]], check: Check = unchecked) -> None:
        """Write the table's parts and the run's summary, completely or not at all.

        `steps`: the metrics of each step. `check`: checks each part before it is written.
        """
        self._write()
        used = self._used()
        with atomic_path(target) as folder:
            for index, files in enumerate(self._parts()):
                frame = pl.concat([self._read(first) for first in files])
                frame = frame.drop("step", "advantage").join(
                    used, on=["draw", "sample"], how="left", maintain_order="left"
                )
                frame = with_ids(frame, "training_rollouts")
                name = f"part-{index:05d}.parquet"
                write_parquet(check(frame, target / name), folder / name)
            if not self._sizes:
                write_parquet(pl.DataFrame(schema=COLUMNS["training_rollouts"]), folder / "part-00000.parquet")
            exact = [{key: row[key] for key in ("loss", "grad_norm") if key in row} for row in steps]
            write_json(
                folder / SUMMARY,
                {
                    "format": FORMAT, "run": self.sampling.run, "rollouts": self.stored, "rows": self._rows,
                    "group_size": self.sampling.group_size, "text_ends_at_round": self._text_ends,
                    "vocabulary": self.sampling.vocabulary, "steps": exact,
                },
            )  # fmt: skip

    def _file(self, first: int) -> Path:
        return self._folder / "rollouts" / f"draw-{first:010d}.parquet"

    def _read(self, first: int) -> pl.DataFrame:
        try:
            return decode(self._file(first))
        except DECODE_ERRORS as error:
            fix = f"Remove {self._folder}, and run it again; the run then starts at its first step"
            raise CheckpointError(what=f"cannot be read ({error})", where=str(self._file(first)), fix=fix) from error

    def _parts(self) -> Iterator[list[int]]:
        """Yield the files that make up each part."""
        part: list[int] = []
        size = 0
        for first in sorted(self._sizes):
            if part and size + self._sizes[first] > PART_BYTES:
                yield part
                part, size = [], 0
            part.append(first)
            size += self._sizes[first]
        if part:
            yield part

    def _trained_columns(self) -> Tensor:
        return torch.cat(self._trained, dim=1) if self._trained else torch.empty(3, 0, dtype=torch.long)

    def _used(self) -> pl.DataFrame:
        """Return the first step of each rollout and its advantage in that step."""
        number, step, advantage = self._trained_columns()
        size = self.sampling.group_size
        frame = pl.DataFrame(
            {
                "draw": (number // size).tolist(),
                "sample": (number % size).tolist(),
                "step": step.tolist(),
                "advantage": advantage.contiguous().view(torch.float64).tolist(),
            },
            schema={name: _COLUMNS[name] for name in ("draw", "sample", "step", "advantage")},
        )
        return frame.with_columns(pl.col("advantage").fill_nan(None)).unique(
            ["draw", "sample"], keep="first", maintain_order=True
        )


def select_text(frame: pl.DataFrame, stored: Stored) -> pl.DataFrame:
    """Return the rows with only the stored text. The problem may be the user's text, so its hash replaces it."""
    if stored == "full":
        return frame
    last = f"{16**ID_LENGTH // SAMPLED_SHARE:0{ID_LENGTH}x}"
    is_stored = pl.col("prompt_id") < last if stored == "sampled" else pl.lit(value=False)
    hashed = pl.col("problem").map_elements(digest, return_dtype=pl.String())
    return frame.with_columns(
        pl.when(is_stored).then("problem").otherwise(hashed).alias("problem"),
        *(pl.when(is_stored).then(name).alias(name) for name in _text(frame)),
    )


def _series(name: str, values: list[Any]) -> pl.Series:
    """Return a column. Lists go through Arrow, because polars is slow with them."""
    if name in _NUMBERS:
        return pl.Series(name, pl.from_arrow(list_array(values, _NUMBERS[name]))).cast(
            _COLUMNS.get(name, DRAWN_FROM_TYPE)
        )
    if name != "scores":
        return pl.Series(name, values, dtype=_COLUMNS[name])
    flat = [score for row in values for score in row]
    columns = {field.name: [score[index] for score in flat] for index, field in enumerate(SCORE.fields)}
    scores = pl.DataFrame(columns, schema=SCORE.to_schema()).to_struct(name).to_arrow()
    offsets = pl.Series([0, *accumulate(map(len, values))], dtype=pl.Int64()).to_arrow()
    return pl.Series(name, pl.from_arrow(pa.LargeListArray.from_arrays(offsets, scores)))


def _text(frame: pl.DataFrame) -> list[str]:
    return [name for name in (*TRAINING_TEXT, *DRAWN_FROM) if name in frame.columns]
