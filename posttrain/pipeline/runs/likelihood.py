"""What a run on the likelihood of texts leaves: the model and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from posttrain.files import rounded, write_json
from posttrain.models.files.store import save_model
from posttrain.pipeline.workspace import metrics_path, model_path
from posttrain.train.examples import Examples
from posttrain.train.heldout import mean_loss
from posttrain.train.loop import TrainingRun
from posttrain.train.metrics import MetricsLog


def save_likelihood(
    run: TrainingRun, log: MetricsLog, examples: Examples, heldout: Examples, tokenizer: Path,
    watched: Mapping[str, float] | None = None,
) -> None:  # fmt: skip
    """Write the model, with the tokenizer of a folder, and its metrics; `watched`: what `watch` found."""
    models = run.models.gather_on_rank_zero()

    save_model(models.policy, model_path(run.name), tokenizer, run.params.save_dtype)
    losses = {"train_loss": log.tail("loss", 20), "heldout_loss": mean_loss(models, heldout)}
    counts = {"steps": len(log.rows), "rows": len(examples), "tokens": examples.trained_tokens}
    if len(examples.places) > len(examples):
        counts["training_rows"] = len(examples.places)  # conversations of several rows
    write_json(metrics_path(run.name), {**counts, **(watched or {}), **rounded(losses)})
    print(f"{run.name}: held-out loss {losses['heldout_loss']:.3f}, saved in {model_path(run.name)}")
