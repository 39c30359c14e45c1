"""A run of `evaluate.lm_eval`: a registered evaluator evaluates a model."""

from __future__ import annotations

from pathlib import Path

from posttrain.files import rounded, write_json
from posttrain.pipeline.outside.evaluators import evaluator_of
from posttrain.pipeline.params.params_file import at, load, read
from posttrain.pipeline.params.slots import needed_model
from posttrain.pipeline.tables.store import write_table


def measure_by_evaluator(name: str) -> None:
    """Evaluate a model with a registered evaluator, and write its metrics and documents."""
    where = f"evaluate.lm_eval.{name}"
    evaluator = evaluator_of(at(read(), where), where)
    run = load(evaluator.runs, where)
    figures, documents = evaluator.measure(run, needed_model(run.policy, f"{where}.policy"), where)
    folder = Path("results/lm_eval") / name
    write_table(documents, folder / "documents.parquet", "documents")
    write_json(folder / "metrics.json", figures := rounded(figures, 5))
    shown = ", ".join(f"{key} {value:.3f}" for key, value in figures.items() if "_stderr" not in key)
    print(f"lm_eval@{name}: {shown}")
