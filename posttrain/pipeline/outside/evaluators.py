"""Evaluators: other tools that evaluate a policy, for runs of `evaluate.lm_eval`. All are plugins."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import Field

from posttrain.data.columns import COLUMNS, with_ids
from posttrain.models.files.adapter_files import is_adapter
from posttrain.models.files.store import load_model, save_model
from posttrain.pipeline.params.slots import model_slot
from posttrain.settings.listing import Listing, instance, looked_up
from posttrain.settings.params import Params

GROUP: Final = "evaluate.lm_eval"
"""The group in params.yaml whose runs use an evaluator."""


class EvaluatorRun(Params):
    """A run of `evaluate.lm_eval`: the model and the evaluator. Each evaluator adds its own settings."""

    policy: str = model_slot("the model to evaluate")
    evaluator: str = Field("lm_eval", description="the evaluator: lm_eval, or a plugin's")


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a policy."""

    runs: type[EvaluatorRun]
    """The settings class of a run."""
    measure: Callable[[Any, Path, str], tuple[dict[str, float], pl.DataFrame]]
    """(settings, folder of the model, section of params.yaml) -> `TASK.METRIC` -> value, and a row for each document
    (`documents_table`)."""


EVALUATORS: Final[Listing[Evaluator]] = Listing("", "", group="evaluators", adopt=instance(Evaluator))
"""Name -> evaluator."""


def evaluator_of(run: Any, where: str) -> Evaluator:
    """Return the evaluator that a run uses; lm_eval by default."""
    name = run.get("evaluator") if isinstance(run, Mapping) else None
    if name is None and "lm_eval" in EVALUATORS:
        return EVALUATORS["lm_eval"]
    return looked_up(EVALUATORS, "lm_eval" if name is None else str(name), f"{where}.evaluator")


@contextmanager
def whole(model: Path) -> Iterator[Path]:
    """Yield a complete model folder for transformers. For an adapter, it is temporary."""
    if not is_adapter(model):
        yield model
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        save_model(load_model(model), folder, model, "float32")  # as evaluate has it in memory
        yield folder


def documents_table(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return the documents as a table."""
    scores = [[{"name": name, "value": value, "status": "ok"} for name, value in row["scores"].items()] for row in rows]
    schema = {name: dtype for name, dtype in COLUMNS["documents"].items() if name != "id"}
    return with_ids(
        pl.DataFrame(
            [{**row, "scores": row_scores} for row, row_scores in zip(rows, scores, strict=True)], schema=schema
        ),
        "documents",
    )
