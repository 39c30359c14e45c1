"""Run the training loop in Python: metrics in memory, and with a folder also checkpoints, metrics and the model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from posttrain.api.arguments import digest, plain_arguments
from posttrain.measure.provenance import library_maker
from posttrain.train import randomness
from posttrain.train.checkpoint import FolderCheckpoints, NoCheckpoints, plain_key
from posttrain.train.loop import TrainingRun, checkpoint_settings, train

MODEL: Final = "model"
"""The folder of an output that `load_model` reads."""


def run_loop(run: TrainingRun, output: str | Path | None, given: Sequence[Any]) -> list[dict[str, float]]:
    """Return the metrics of each step; `given`: arguments of the call that name its checkpoints, with the settings."""
    was_training, device = run.models.policy.training, run.models.runtime.device
    before = randomness.states(device)
    randomness.seed(run.params.seed)  # of dropout
    try:
        if output is None:
            return train(run, NoCheckpoints(), None).rows
        folder = Path(output)
        checkpoints = _checkpoints(run, folder, given)
        if run.step_log is not None:
            run.step_log.open(checkpoints.folder)
        return train(run, checkpoints, folder / "metrics.csv").rows
    finally:
        randomness.restore(before, device)
        run.models.policy.train(was_training)


def save(model: Any, tokenizer: Any, output: str | Path | None) -> None:
    """Save a trained model in transformers' format (of peft: its adapter), where there is an output."""
    if output is not None:
        model.save_pretrained(Path(output, MODEL))
        tokenizer.save_pretrained(Path(output, MODEL))


def _checkpoints(run: TrainingRun, folder: Path, given: Sequence[Any]) -> FolderCheckpoints:
    """Return checkpoints in a folder of the user's: a call with the same arguments resumes a killed one."""
    weights = {name: digest(part) for name, part in run.models.policy.state_dict().items()}
    arguments = hashlib.sha256(plain_arguments(given).encode()).hexdigest()
    settings = {**checkpoint_settings(run.params), "arguments": arguments, "weights": weights}
    return FolderCheckpoints(folder / "checkpoints", plain_key(run.name, settings, {}), library_maker(), run.name)
