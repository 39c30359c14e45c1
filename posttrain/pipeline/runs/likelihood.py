"""Save a run that trained on the likelihood of texts: the model and its metrics."""

from __future__ import annotations

from typing import Any

from posttrain.files import rounded
from posttrain.pipeline.runs.training import TrainingRows, TrainingStage
from posttrain.pipeline.workspace import model_path
from posttrain.train.examples import Examples
from posttrain.train.heldout import mean_loss
from posttrain.train.trained import Trained


def save_likelihood(stage: TrainingStage[Any], trained: Trained, rows: TrainingRows) -> None:
    """Write the model and its metrics, including the loss on held-out rows."""
    models = trained.gather()
    losses = {"train_loss": trained.tail("loss", 20), "heldout_loss": mean_loss(models, rows.heldout)}
    counts = {"steps": trained.steps, "rows": len(rows.examples)}
    if isinstance(rows.examples, Examples):
        counts["tokens"] = rows.examples.trained_tokens
        if len(rows.examples.places) > len(rows.examples):
            counts["training_rows"] = len(rows.examples.places)  # conversations of several rows
    stage.save(trained, {**counts, **trained.kept, **rounded(losses)})
    print(f"{stage.name}: held-out loss {losses['heldout_loss']:.3f}, saved in {model_path(stage.name)}")
