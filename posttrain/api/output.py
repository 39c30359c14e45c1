"""Where a call writes: to the caller's folder, to the given store and recorder, or nowhere."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from posttrain.api.arguments import digest, plain_arguments
from posttrain.api.own_model import own_model
from posttrain.distributed import world
from posttrain.errors import ParamsError
from posttrain.files import atomic_path, file_digest
from posttrain.measure.provenance import library_maker
from posttrain.models.peft_layers import has_peft_layers, merged_copy
from posttrain.models.sharding import own_part
from posttrain.train.checkpoint import CheckpointStore, FolderCheckpoints, NoCheckpoints, plain_key
from posttrain.train.loop import TrainingParams, checkpoint_settings
from posttrain.train.metrics import CsvRecorder, NoRecorder, Recorder
from posttrain.train.model_set import ModelSet
from posttrain.train.trained import Trained

MODEL: Final = "model"
"""The folder of an output that `load_model` reads."""
ADAPTER: Final = "adapter"
"""The folder of an output for the adapter of a model that the caller wrapped with PEFT, in PEFT's own format."""


def places(
    name: str, params: TrainingParams, models: ModelSet, output: str | Path | None, given: Sequence[Any],
    checkpoints: CheckpointStore | None, recorder: Recorder | None,
) -> tuple[CheckpointStore, Recorder]:  # fmt: skip
    """Return the checkpoint store and the metric recorder of a run.

    `given`: arguments that, with the settings and weights, identify the checkpoints of the call's output.
    """
    if output is None:
        return checkpoints or NoCheckpoints(), recorder or NoRecorder()
    if checkpoints is not None or recorder is not None:
        fix = "Give `output` alone, or `checkpoints` and `recorder`"
        raise ParamsError(what="output already has its own checkpoints and metrics", where="output", fix=fix)
    if has_peft_layers(models.policy):
        merged_copy(models.policy)  # an adapter that cannot be merged fails now, not after the training
    folder = Path(output)
    weights = world.gathered(_weights(models))
    taught = [teacher.model for teacher in models.teachers]
    arguments = hashlib.sha256(plain_arguments([*given, *taught]).encode()).hexdigest()
    settings = {**checkpoint_settings(params), "arguments": arguments, "weights": weights}
    store = FolderCheckpoints(folder / "checkpoints", plain_key(name, settings, {}), library_maker(), name)
    if (folder / MODEL).exists() and not store.begun and world.is_rank_zero():
        print(f"{name}: {folder} contains the model of another call, which this call replaces", file=sys.stderr)
    return store, CsvRecorder(folder / "metrics.csv")


def known_by(model: Any) -> Any:
    """Return the value that identifies a model as an argument: a folder's file digests, or the model itself."""
    if not isinstance(model, str | Path):
        return model
    folder = Path(model)
    return {str(file.relative_to(folder)): file_digest(file) for file in sorted(folder.rglob("*")) if file.is_file()}


def save(trained: Trained, model: Any, tokenizer: Any, output: str | Path | None) -> None:
    """Save the trained model if the call has an output.

    `load_model` reads the folder model/. If the caller wrapped the model with PEFT, model/ gets the whole model with
    the adapter merged, and adapter/ gets the adapter.
    """
    if output is None:
        return
    if isinstance(model, ModelSet):
        trained.gather()  # only the first of several processes goes on
    trained.rollouts.finish(Path(output, "rollouts"), trained[: trained.steps])
    if isinstance(model, ModelSet):
        trained.save(Path(output, MODEL))
        return
    wrapped = has_peft_layers(model)
    with atomic_path(Path(output, MODEL)) as folder:  # files of an earlier model there would be read with the new ones
        (merged_copy(own_model(model)) if wrapped else model).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    if wrapped and hasattr(model, "peft_config"):
        with atomic_path(Path(output, ADAPTER)) as folder:
            model.save_pretrained(folder)


def _weights(models: ModelSet) -> dict[str, str]:
    """Return digests of the policy's current weights; with sharded models, of this process's rows."""
    return {name: digest(own_part(part.data)) for name, part in models.policy.named_parameters()}
