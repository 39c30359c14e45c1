"""What one optimizer step is made of: rows of ids with the columns known about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from posttrain.formulas.ragged import Ragged
from posttrain.text.layout import Ids


@dataclass(frozen=True)
class Batch:
    """Rows of (prompt, completion) and their columns; `columns.rows['row']` numbers them."""

    prompts: Sequence[Ids]
    completions: Sequence[Ids]
    columns: Ragged

    def __len__(self) -> int:
        return len(self.prompts)

    def part(self, rows: Sequence[int]) -> Batch:
        """Some rows, in the order given, numbered anew."""
        columns = self.columns.select(torch.tensor(rows, dtype=torch.long))
        columns = columns.with_rows(row=torch.arange(len(rows)))
        return Batch([self.prompts[i] for i in rows], [self.completions[i] for i in rows], columns)

    def with_columns(self, columns: Ragged) -> Batch:
        """The same rows with other columns."""
        return replace(self, columns=columns)

    def tensors(self) -> dict[str, Tensor]:
        """The whole batch as named tensors, for a checkpoint."""
        columns = self.columns
        saved = {"lengths": columns.lengths_B, "items": columns.items}
        saved |= {f"row.{name}": part for name, part in columns.rows.items()}
        saved |= {f"token.{name}": part for name, part in columns.tokens.items()}
        for name, side in (("prompt", self.prompts), ("completion", self.completions)):
            saved[f"{name}.ids"] = torch.tensor([i for ids in side for i in ids], dtype=torch.long)
            saved[f"{name}.lengths"] = torch.tensor([len(ids) for ids in side], dtype=torch.long)
        return saved

    @staticmethod
    def from_tensors(saved: dict[str, Tensor]) -> Batch:
        """The batch that `tensors` saved."""
        sides = []
        for name in ("prompt", "completion"):
            parts = torch.split(saved[f"{name}.ids"], saved[f"{name}.lengths"].tolist())
            sides.append([part.tolist() for part in parts])
        columns = Ragged(
            lengths_B=saved["lengths"],
            rows={name[4:]: part for name, part in saved.items() if name.startswith("row.")},
            tokens={name[6:]: part for name, part in saved.items() if name.startswith("token.")},
            item_B=saved["items"],
        )
        return Batch(sides[0], sides[1], columns)


def scored_lengths(prompts: Sequence[Ids], completions: Sequence[Ids]) -> Tensor:
    """How many tokens of each row are scored: a row without a prompt begins with a token that nothing predicts."""
    pairs = zip(prompts, completions, strict=True)
    return torch.tensor([len(ids) if prompt else max(len(ids) - 1, 0) for prompt, ids in pairs], dtype=torch.long)


def make_batch(
    prompts: Sequence[Ids],
    completions: Sequence[Ids],
    rows: dict[str, Tensor] | None = None,
    tokens: dict[str, Tensor] | None = None,
    items: Tensor | None = None,
) -> Batch:
    """A batch from ids and known columns."""
    numbered = {**(rows or {}), "row": torch.arange(len(prompts))}
    return Batch(prompts, completions, Ragged(scored_lengths(prompts, completions), numbered, tokens or {}, items))


def joined(parts: Sequence[Batch]) -> Batch:
    """Batches of the same columns as one; rows that belong together must lie in one part."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0].columns
    return make_batch(
        [ids for part in parts for ids in part.prompts],
        [ids for part in parts for ids in part.completions],
        {name: torch.cat([part.columns.rows[name] for part in parts]) for name in first.rows if name != "row"},
        {name: torch.cat([part.columns.tokens[name] for part in parts]) for name in first.tokens},
    )


class Source(Protocol):
    """Where the batches of a run come from."""

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        ...

    def batch(self, step: int) -> Batch:
        """The rows of one optimizer step."""
        ...

    def seen(self) -> dict[str, float]:
        """Numbers about the last batch that are worth a column."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """What must be kept to go on from here."""
        ...

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` kept."""
        ...
