"""Runs the training of a stage: its processes, its checkpoints, its plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from posttrain.evaluate.watch import HeldoutWatch
from posttrain.measure.record import note
from posttrain.models.memory import byte_count
from posttrain.pipeline.processes.launch import start
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.pipeline.workspace import plot_path
from posttrain.train import randomness
from posttrain.train.estimate import check_memory, checkpoint_bytes, explained_out_of_memory
from posttrain.train.loop import RUNS_ON, TrainingParams, TrainingRun, checkpoint_settings, note_processes, train
from posttrain.train.metrics import MetricsLog


def share_run(name: str, params: TrainingParams) -> None:
    """Start the other processes of the run, if it has any, and meet them."""
    start(name, params.processes, params.device.device)
    if params.processes > 1:
        note_processes(str(params.processes))
        print(f"{name}: {params.processes} processes share the run", flush=True)


def run_training(run: TrainingRun, inputs: Sequence[Path]) -> MetricsLog:
    """Train, or resume from the run's newest checkpoint; checkpoints stay until DVC has recorded the results.

    `inputs`: the files and folders that it reads: with the settings they name its checkpoints.
    """
    settings = {**checkpoint_settings(run.params), RUNS_ON: run.models.runtime.device.type}
    checkpoints, plot = Checkpoints(run.name, settings, inputs), plot_path(run.name)
    copies = run.params.optimizer.copies
    check_memory(run.models, run.step_tokens, run.params.activations, run.params.limits.memory, run.name, copies)
    checkpoints.check_space(checkpoint_bytes(run.models, copies) + byte_count(run.watch.state_dict().values()))
    if run.step_log is not None:
        run.step_log.open(checkpoints.folder)
    randomness.seed(run.params.seed)
    note(seed=run.params.seed)
    with explained_out_of_memory(run.models, run.step_tokens, run.params.activations, run.name):
        log = train(run, checkpoints, plot)
    checkpoints.finish(plot)
    return log


def run_watched(
    run: TrainingRun, inputs: Sequence[Path], watch: HeldoutWatch | None
) -> tuple[MetricsLog, dict[str, float]]:
    """Train, and make the policy the one that is kept; the metrics of each step, and what was measured of the kept."""
    if watch is None:
        return run_training(run, inputs), {}
    log = run_training(replace(run, watch=watch), inputs)
    log.rows.pop()  # the evaluation after the last step
    return log, watch.finish()
