"""What one optimizer step is made of: rows of ids with the columns known about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from posttrain.formulas.ragged import Ragged
from posttrain.rollout import TokenRow


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and their columns; `columns.rows['row']` numbers them."""

    rows: Sequence[TokenRow]
    columns: Ragged

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, rows: Sequence[int]) -> Batch:
        """Some rows, in the order given, renumbered."""
        columns = self.columns.select(torch.tensor(rows, dtype=torch.long))
        columns = columns.with_rows(row=torch.arange(len(rows)))
        return Batch([self.rows[i] for i in rows], columns)

    def with_prepared(self, step: Ragged) -> Batch:
        """The rows that `prepare` has left, in its order, with the columns that it made."""
        kept = step.rows["row"].tolist()
        return Batch([self.rows[i] for i in kept], step.with_rows(row=torch.arange(len(kept))))

    def with_columns(self, columns: Ragged) -> Batch:
        """The same rows with other columns."""
        return replace(self, columns=columns)

    def tensors(self) -> dict[str, Tensor]:
        """The whole batch as named tensors, for a checkpoint."""
        columns = self.columns
        saved = {"lengths": columns.lengths_B, "items": columns.items}
        saved |= {f"row.{name}": part for name, part in columns.rows.items()}
        saved |= {f"token.{name}": part for name, part in columns.tokens.items()}
        for name in ("prompt", "rest"):
            side = [getattr(row, name) for row in self.rows]
            saved[f"{name}.ids"] = torch.tensor([i for ids in side for i in ids], dtype=torch.long)
            saved[f"{name}.lengths"] = torch.tensor([len(ids) for ids in side], dtype=torch.long)
        saved["masked"] = torch.tensor([row.mask is not None for row in self.rows])
        saved["mask"] = torch.tensor([one for row in self.rows for one in row.mask or ()], dtype=torch.bool)
        return saved

    @staticmethod
    def from_tensors(saved: dict[str, Tensor]) -> Batch:
        """The batch that `tensors` saved."""
        prompts, rests = (
            [part.tolist() for part in torch.split(saved[f"{name}.ids"], saved[f"{name}.lengths"].tolist())]
            for name in ("prompt", "rest")
        )
        masked, mask = saved["masked"], saved["mask"]
        sizes = (saved["rest.lengths"] * masked).tolist()
        parts = zip(torch.split(mask, sizes), masked.tolist(), strict=True)
        masks = [part.tolist() if has else None for part, has in parts]
        columns = Ragged(
            lengths_B=saved["lengths"],
            rows={name[4:]: part for name, part in saved.items() if name.startswith("row.")},
            tokens={name[6:]: part for name, part in saved.items() if name.startswith("token.")},
            item_B=saved["items"],
        )
        return Batch([TokenRow(*one) for one in zip(prompts, rests, masks, strict=True)], columns)


def make_batch(
    rows: Sequence[TokenRow],
    row_columns: dict[str, Tensor] | None = None,
    token_columns: dict[str, Tensor] | None = None,
    items: Tensor | None = None,
) -> Batch:
    """A batch from rows and known columns."""
    lengths = torch.tensor([len(row.trained) for row in rows], dtype=torch.long)
    numbered = {**(row_columns or {}), "row": torch.arange(len(rows))}
    return Batch(rows, Ragged(lengths, numbered, token_columns or {}, items))


def joined(parts: Sequence[Batch]) -> Batch:
    """Batches of the same columns as one; rows that belong together must lie in one part."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0].columns
    return make_batch(
        [row for part in parts for row in part.rows],
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

    def metrics(self) -> dict[str, float]:
        """Numbers about the last batch that are worth a column."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """What must be kept to resume from here; nothing where the step alone decides the batch."""
        return {}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Resume from what `state_dict` gave."""
        if tensors:
            raise ValueError(f"this source keeps nothing, so {sorted(tensors)} are of another one")


class WrappedSource(Source):
    """A source around another one, which keeps all there is to keep."""

    def __init__(self, inner: Source) -> None:
        self._inner = inner

    @property
    def steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self._inner.steps

    def batch(self, step: int) -> Batch:
        """The rows of the inner source."""
        return self._inner.batch(step)

    def metrics(self) -> dict[str, float]:
        """What the inner source has seen."""
        return self._inner.metrics()

    def state_dict(self) -> dict[str, Tensor]:
        """What the inner source keeps."""
        return self._inner.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Resume from what `state_dict` gave."""
        self._inner.load_state_dict(tensors)
