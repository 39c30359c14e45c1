"""A run of `external.rollouts`: turn another library's rollouts into a table."""

from __future__ import annotations

from typing import Final

from posttrain.files import rounded, write_json
from posttrain.models.files.text import load_text
from posttrain.pipeline.outside.rollouts.training_rollouts import Rollouts
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import model_of, table_of
from posttrain.pipeline.processes.own_command import written_by
from posttrain.pipeline.runs.external import RolloutsRun
from posttrain.pipeline.runs.readers import READERS
from posttrain.pipeline.tables.curve import write_curve
from posttrain.pipeline.workspace import metrics_path, plot_path, rollouts_path

LAST: Final = 10
"""The number of rounds that the final metrics average over."""


def read_rollouts(run: str) -> None:
    """Run your own command, and read its rollouts into a table, metrics and a curve."""
    name, section = f"external@{run}", f"external.rollouts.{run}"
    params = load(RolloutsRun, section)
    start, data = model_of(params.start, f"{section}.start"), table_of(params.data)
    with written_by(params, section, rollouts_path(name), start, data) as written:
        rollouts = Rollouts(list(READERS[params.format](written / "out")), params.rewards, f"external/{run}", section)
    rollouts.write(rollouts_path(name), data, load_text(start).vocabulary if start else "")
    curve = [rounded(row) for row in rollouts.curve()]
    write_curve(plot_path(name), curve)
    means = {key: [row[key] for row in curve[-LAST:] if key in row] for key in curve[-1] if key != "step"}
    write_json(metrics_path(name), rounded({key: sum(some) / len(some) for key, some in means.items()}))
