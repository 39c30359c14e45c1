"""A stage that trains: read its inputs, and write the results to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import polars as pl

from posttrain.files import write_json
from posttrain.measure.phases import phase
from posttrain.pipeline.params.named_runs import load_run
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import needed_model
from posttrain.pipeline.params.stage_table import STAGES
from posttrain.pipeline.processes.launch import start
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.pipeline.tables.store import check_table
from posttrain.pipeline.workspace import metrics_path, model_path, plot_path, rollouts_path, table_path
from posttrain.settings.plain import NONE
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import Example
from posttrain.train.loop import RUNS_ON, TrainingParams, checkpoint_settings, note_processes, section_of
from posttrain.train.metrics import CsvRecorder
from posttrain.train.model_set import ModelSet
from posttrain.train.run_config import Algorithms
from posttrain.train.trained import Trained

P = TypeVar("P", bound=TrainingParams)


@dataclass
class RunInputs(Generic[P]):
    """The settings of a run, and the files and folders that it reads."""

    name: str
    params: P
    inputs: list[Path] = field(default_factory=list)
    """The inputs that were read. With the settings, they identify the checkpoints."""

    @property
    def section(self) -> str:
        """The key path of its settings: `online@grpo` -> online.runs.grpo."""
        return section_of(self.name)

    def reads(self, path: Path) -> Path:
        """Record that the run reads a file or a folder, and return the path."""
        self.inputs.append(path)
        return path

    def start(self, name: str) -> Path:
        """Return the folder of the start model."""
        return self.reads(needed_model(name, f"{self.section}.start"))

    def table(self, name: str) -> Path:
        """Return the file of a table."""
        return self.reads(table_path(name))

    def optional_table(self, name: str) -> Path | None:
        """Return the file of a table; None if the slot is not used."""
        return None if name == NONE else self.table(name)

    def checkpoint_settings(self, models: ModelSet) -> dict[str, Any]:
        """Return the settings that identify its checkpoints."""
        return {**checkpoint_settings(self.params), RUNS_ON: models.runtime.device.type}


@dataclass
class TrainingStage(RunInputs[P]):
    """One run of a training stage. Each of its processes has this object.

    Example: `TrainingStage("sft@main", load(SftRun, "sft.runs.main"))`
    """

    def __post_init__(self) -> None:
        """Start the run's other processes, if it has any, and connect to them."""
        with phase("load"):
            start(self.name, self.params.processes, self.params.device.device)
        if self.params.processes > 1:
            note_processes(str(self.params.processes))
            print(f"{self.name}: {self.params.processes} processes share the run", flush=True)

    def checkpoints(self, models: ModelSet) -> Checkpoints:
        """Return its checkpoints. Call it after all inputs are recorded."""
        return Checkpoints(self.name, self.checkpoint_settings(models), self.inputs)

    @property
    def recorder(self) -> CsvRecorder:
        """The recorder that writes the metrics of each step into plots/."""
        return CsvRecorder(plot_path(self.name))

    @property
    def saved(self) -> Path:
        """The folder for the trained model."""
        return model_path(self.name)

    def save(self, trained: Trained, metrics: Mapping[str, Any]) -> None:
        """Write the model, the metrics and, if there are any, the rollouts. Only the first process continues."""
        trained.gather()
        trained.rollouts.finish(
            rollouts_path(self.name),
            trained[: trained.steps],
            lambda rows, file: check_table(rows, "training_rollouts", file),
        )
        trained.save(self.saved)
        write_json(metrics_path(self.name), metrics)

    def save_sampled(self, trained: Trained) -> None:
        """Save a training on the policy's own samples, with the means of its last steps."""
        figures = trained.means(self.params.summary) | trained.figures  # type: ignore[attr-defined]
        self.save(
            trained, {"algorithm": self.params.algorithm, "steps": trained.steps, **figures, **trained.kept}  # type: ignore[attr-defined]
        )  # fmt: skip


@dataclass(frozen=True)
class TrainingRows:
    """The loaded inputs of a training on table rows."""

    models: ModelSet
    text: ChatText
    examples: Sequence[Example]
    heldout: Sequence[Example]
    """Rows for the evaluation of the trained model."""
    watched: Sequence[Example] = ()
    """Held-out rows for the evaluations of `watch` during training."""
    table: pl.DataFrame | None = None
    """The table rows behind `watched`."""


def training_stage(stage: str, run: str) -> TrainingStage[Any]:
    """Return a run of a training stage with its settings from params.yaml.

    Example: `training_stage("sft", "main")`
    """
    kind = next(one for one in STAGES if one.name == stage)
    section = f"{kind.group}.{run}"
    typed = kind.settings()
    params = load_run(section, typed) if isinstance(typed, Algorithms) else load(typed, section)
    return TrainingStage(f"{kind.group.partition('.')[0]}@{run}", params)
