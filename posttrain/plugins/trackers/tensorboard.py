"""TensorBoard: an event file for each run. Pushing a run again replaces its file."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from typing import Any, Final

from posttrain.pipeline.track.runs import TrackedRun
from posttrain.pipeline.track.tracker import FOLDER, Steps, Table
from posttrain.settings.plain import flattened


class TensorBoard:
    """Per-step scalars, final metrics as scalars of step 0, tables and settings as texts."""

    package: Final = "tensorboard"

    def start(self, project: str, run: TrackedRun) -> int:  # noqa: ARG002  a log folder is one project
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = FOLDER / "tensorboard" / run.label
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = EventFileWriter(str(folder))
        self._text("settings", _markdown([{"setting": k, "value": v} for k, v in flattened(run.settings).items()]))
        self._text("metrics", run.notes)
        self._text("lineage", f"```json\n{json.dumps(run.lineage, indent=1)}\n```")
        return 0

    def log(self, steps: Steps) -> None:
        for step, metrics in steps:
            self._scalars(step, metrics)
        self._writer.flush()

    def figures(self, values: Mapping[str, float]) -> None:
        self._scalars(0, {f"results/{name}": value for name, value in values.items()})

    def table(self, name: str, rows: Table) -> None:
        self._text(name, _markdown(rows))

    def finish(self) -> None:
        self._writer.close()

    def _scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._add(step, [{"tag": name, "simple_value": value} for name, value in values.items()])

    def _text(self, name: str, text: str) -> None:
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        tensor = make_tensor_proto([text.encode()])
        self._add(0, [{"tag": name, "tensor": tensor, "metadata": create_summary_metadata(name, "")}])

    def _add(self, step: int, values: list[dict[str, Any]]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(**value) for value in values])
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def _markdown(rows: Table) -> str:
    """Return rows as a Markdown table for the page of texts."""
    if not rows:
        return ""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(cell) for cell in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ⏎ ")
