"""The rollouts of a run as a table: a file per round next to its checkpoints, and checked parts when it has ended.

DVC removes a stage's outputs before it runs, so a killed run finds its rounds with its checkpoints. A checkpoint says
which rounds it has and what was trained on them; files of later rounds are written again, with the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
import torch
from torch import Tensor

from posttrain.errors import CheckpointError
from posttrain.formulas.ragged import Ragged
from posttrain.measure.phases import phase
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Rollout
from posttrain.tables.columns import COLUMNS, ID_LENGTH, SCORE, TRAINING_TEXT, canonical, digest, with_ids
from posttrain.tables.store import DECODE_ERRORS, check_table, decode, write_parquet
from posttrain.workspace import atomic_path, format_size, write_json

Stored = Literal["full", "sampled", "none"]
SAMPLED_SHARE: Final = 20
"""With `sampled` the text of one prompt in so many is stored: those with the lowest ids, which are hashes."""
FIGURE_BYTES: Final = 160
TOKEN_BYTES: Final = 12
"""The most that a row without text takes in a compressed table, and each token of its prompt and completion."""
PART_BYTES: Final = 100_000_000
"""Rounds are put together to a part until their files have this size."""
FORMAT: Final = 1
SUMMARY: Final = "run.json"
_COLUMNS: Final = {name: dtype for name, dtype in COLUMNS["training_rollouts"].items() if name != "id"}


@dataclass(frozen=True)
class Sampling:
    """What is the same for all rollouts of a run."""

    run: str
    """The run's model, e.g. online/grpo."""
    seed: int
    settings: str
    """The sampling settings as JSON."""
    vocabulary: str
    """A digest of the tokenizer's vocabulary."""
    group_size: int
    most: int
    """The most rollouts that the run can sample."""
    longest: int
    """The most tokens of a row."""


@dataclass
class RolloutLog:
    """Stores a run's rollouts."""

    sampling: Sampling
    stored: Stored = "full"
    limit: float = 1e9
    """The most bytes of the whole table; later rounds are stored without their text."""
    _folder: Path = Path()
    _attempts: list[pl.DataFrame] = field(default_factory=list)
    _sizes: dict[int, int] = field(default_factory=dict)
    """Round -> the size of its file."""
    _rows: int = 0
    _text_ends: int | None = None
    """The first round whose text was left out to stay below the limit."""
    _trained: list[Tensor] = field(default_factory=list)
    """For the rows of each optimizer step: the rollout's number, the step, and the bits of the mean advantage."""

    def open(self, folder: Path) -> None:
        """Use this folder for the files of rounds; says so where the limit may be too low."""
        self._folder = folder
        share = {"full": 1.0, "sampled": 1 / SAMPLED_SHARE, "none": 0.0}[self.stored]
        size = self.sampling.most * (FIGURE_BYTES + share * TOKEN_BYTES * self.sampling.longest)
        if size > self.limit:
            most = f"{format_size(size)}, and no text is stored beyond {format_size(self.limit)} (rollouts_gb)"
            print(f"{self.sampling.run}: its rollouts may take up to {most}")

    @phase("write")
    def add(
        self, number: int, attempt: int, first: int, rollouts: Sequence[Rollout],
        reward: RewardSum, totals: dict[int, float],
    ) -> None:  # fmt: skip
        """Add an attempt's scored rollouts; `first`: the number of draws before them, `totals`: rewards by place."""
        size, sampling = self.sampling.group_size, self.sampling
        columns: dict[str, Any] = {
            "prompt_id": [one.prompt.id for one in rollouts],
            "problem": [one.prompt.problem for one in rollouts],
            "task": [one.prompt.task for one in rollouts],
            "draw": [first + place // size for place in range(len(rollouts))],
            "sample": [one.sample for one in rollouts],
            "version": [one.version for one in rollouts],
            "prompt_ids": [one.prompt.ids for one in rollouts],
            "completion": [_text(one) for one in rollouts],
            "completion_ids": [one.row.rest for one in rollouts],
            "mask": [_mask(one) for one in rollouts],
            "logps": [one.logps for one in rollouts],
            "length": [len(one.logps) for one in rollouts],
            "logp": [sum(one.logps) for one in rollouts],
            "finish": [one.finish for one in rollouts],
            "reward": [totals.get(place) for place in range(len(rollouts))],
            "outcome": [reward.outcome(one) if place in totals else None for place, one in enumerate(rollouts)],
            "turn_rewards": [list(one.turn_rewards) for one in rollouts],
            "info": [canonical(dict(one.info)) for one in rollouts],
        }
        frame = pl.DataFrame([pl.Series(name, part, dtype=_COLUMNS[name]) for name, part in columns.items()])
        scores = [
            [{"name": name, "value": one.value, "status": one.status} for name, one in rollout.scores.items()]
            for rollout in rollouts
        ]
        constants = {
            "round": number, "attempt": attempt, "seed": sampling.seed, "sampling": sampling.settings,
            "step": None, "advantage": None,
        }  # fmt: skip
        frame = frame.with_columns(
            pl.Series("scores", scores, dtype=pl.List(SCORE)),
            *(pl.lit(value, dtype=_COLUMNS[name]).alias(name) for name, value in constants.items()),
        )
        self._attempts.append(select_text(frame.select(*_COLUMNS), self.stored))

    @phase("write")
    def close_round(self, number: int) -> None:
        """Write the round's file; without text from the round on with which the table would pass its limit."""
        frame, file = pl.concat(self._attempts), self._file(number)
        self._attempts = []
        if self._text_ends is None:
            write_parquet(frame, file)
            left = max(self.sampling.most - self._rows - frame.height, 0)
            if sum(self._sizes.values()) + file.stat().st_size + left * FIGURE_BYTES > self.limit:
                self._text_ends = number
                what = f"the rollouts reach rollouts_gb ({format_size(self.limit)}) in round {number}"
                print(f"{self.sampling.run}: {what}: no text is stored from here on", file=sys.stderr)
        if self._text_ends is not None:
            write_parquet(frame.with_columns(_no_text()), file)
        self._sizes[number] = file.stat().st_size
        self._rows += frame.height

    def trained(self, step: int, prepared: Ragged) -> None:
        """Note which rollouts an optimizer step has, and the mean advantage of each."""
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
        """The rounds and what was trained on them, for a checkpoint."""
        sizes = torch.tensor(list(self._sizes.items()), dtype=torch.long).view(-1, 2)
        ends = -1 if self._text_ends is None else self._text_ends
        return {"sizes": sizes, "rows": torch.tensor([self._rows, ends]), "trained": self._trained_columns()}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self._sizes = dict(tensors["sizes"].tolist())
        self._rows, ends = tensors["rows"].tolist()
        self._text_ends = None if ends < 0 else ends
        self._trained = [tensors["trained"]]
        for number, size in self._sizes.items():
            file = self._file(number)
            if not file.is_file() or file.stat().st_size != size:
                raise ValueError(f"{file} is missing or damaged")

    @phase("write")
    def finish(self, target: Path, steps: Sequence[dict[str, float]]) -> None:
        """Write the table's parts and the summary of the run, whole or not at all; `steps`: the metrics of each."""
        used = self._used()
        with atomic_path(target) as folder:
            for nth, numbers in enumerate(self._parts()):
                frame = pl.concat([self._read(number) for number in numbers])
                frame = frame.drop("step", "advantage").join(
                    used, on=["draw", "sample"], how="left", maintain_order="left"
                )
                frame = with_ids(frame, "training_rollouts")
                name = f"part-{nth:05d}.parquet"
                write_parquet(check_table(frame, "training_rollouts", target / name), folder / name)
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

    def _file(self, number: int) -> Path:
        return self._folder / "rollouts" / f"round-{number:08d}.parquet"

    def _read(self, number: int) -> pl.DataFrame:
        try:
            return decode(self._file(number))
        except DECODE_ERRORS as error:
            fix = "Run `python -m posttrain checkpoints restart` for this run, and run it again"
            raise CheckpointError(what=f"cannot be read ({error})", where=str(self._file(number)), fix=fix) from error

    def _parts(self) -> Iterator[list[int]]:
        """The rounds of each part."""
        part: list[int] = []
        size = 0
        for number in sorted(self._sizes):
            if part and size + self._sizes[number] > PART_BYTES:
                yield part
                part, size = [], 0
            part.append(number)
            size += self._sizes[number]
        if part:
            yield part

    def _trained_columns(self) -> Tensor:
        return torch.cat(self._trained, dim=1) if self._trained else torch.empty(3, 0, dtype=torch.long)

    def _used(self) -> pl.DataFrame:
        """The first step of each rollout, and its advantage there."""
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
    """The rows with only the text that is stored; a problem, which may be the user's own text, becomes its hash."""
    if stored == "full":
        return frame
    last = f"{16**ID_LENGTH // SAMPLED_SHARE:0{ID_LENGTH}x}"
    kept = pl.col("prompt_id") < last if stored == "sampled" else pl.lit(value=False)
    hashed = pl.col("problem").map_elements(digest, return_dtype=pl.String())
    return frame.with_columns(
        pl.when(kept).then("problem").otherwise(hashed).alias("problem"),
        *(pl.when(kept).then(name).alias(name) for name in TRAINING_TEXT),
    )


def _no_text() -> Iterator[pl.Expr]:
    return (pl.lit(None, dtype=_COLUMNS[name]).alias(name) for name in TRAINING_TEXT)


def _text(rollout: Rollout) -> str:
    """The completion; for an episode of several turns all turns with their roles."""
    if len(rollout.turns) < 2:
        return rollout.text
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in rollout.turns)


def _mask(rollout: Rollout) -> Sequence[bool]:
    return [True] * len(rollout.row.rest) if rollout.row.mask is None else rollout.row.mask
