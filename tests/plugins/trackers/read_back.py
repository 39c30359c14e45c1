"""Print as JSON what a tracker has, read by its own library: label -> metric -> step -> value.

    .venv-track/bin/python -m tests.plugins.trackers.read_back tensorboard .track PROJECT

It runs in the environment with the trackers, so it imports nothing else.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Points = dict[str, dict[str, list[tuple[int, float]]]]


def tensorboard(folder: Path, _: str) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: Points = {}
    for file in sorted((folder / "tensorboard").rglob("events.*")):
        label = file.parent.relative_to(folder / "tensorboard").as_posix()
        events = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        scalars = {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        texts = {f"text/{tag}": [(0, 1.0)] for tag in events.Tags()["tensors"]}
        assert label not in found, f"{label} has two files"
        found[label] = scalars | texts
    return found


def mlflow(folder: Path, project: str) -> Points:
    from mlflow import MlflowClient

    if not os.environ.get("MLFLOW_TRACKING_URI"):
        assert (folder / "mlflow/mlflow.db").exists(), "nothing has been pushed"  # to open it would make it
    client: Any = MlflowClient(
        os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.resolve()}/mlflow/mlflow.db"
    )
    found: Points = {}
    for run in client.search_runs([client.get_experiment_by_name(project).experiment_id]):
        metrics = {
            name: [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
            if name != "step"
        }
        tables = [table["path"] for table in json.loads(run.data.tags.get("mlflow.loggedArtifacts", "[]"))]
        assert all(client.download_artifacts(run.info.run_id, table) for table in tables)
        assert run.info.run_name not in found, f"two runs are called {run.info.run_name}"
        found[run.info.run_name] = metrics | {
            f"text/{name.removesuffix('.json')}": [(0, 1.0)] for name in (*tables, *run.data.params, "lineage")
        }
    return found


def trackio(folder: Path, project: str) -> Points:
    os.environ.setdefault("TRACKIO_DIR", str(folder.resolve() / "trackio"))
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    found: Points = {}
    for run in Api().runs(project):
        assert run.name not in found, f"two runs are called {run.name}"
        rows = SQLiteStorage.get_logs(project, run.name, run_id=run.id)
        found[run.name] = _by_metric([(int(row["step"]), row) for row in rows])
        found[run.name] |= {f"text/{key}": [(0, 1.0)] for key in run.config or {}}
    return found


def wandb(folder: Path, _: str) -> Points:
    from wandb.proto import wandb_internal_pb2

    found: Points = {}
    for file in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        rows, label, keys = list[tuple[int, dict[str, Any]]](), "", set[str]()
        for data in _leveldb(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                label = record.run.display_name
                keys |= {one.key for one in record.run.config.update}
            if record.HasField("history"):
                row = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}
                rows.append((int(row["_step"]), row))
            keys |= {one.key or "/".join(one.nested_key) for one in record.summary.update}
        assert label not in found, f"two runs are called {label}"
        found[label] = _by_metric(rows) | {f"text/{key}": [(0, 1.0)] for key in keys}
    return found


def _leveldb(log: bytes) -> Iterator[bytes]:
    """Yield the records of a file in the format of LevelDB's logs, after W&B's header of 7 bytes."""
    block, header, full, last = 32768, 7, 1, 4
    place, record = header, b""
    while place + header <= len(log):
        left = block - place % block
        size, kind = int.from_bytes(log[place + 4 : place + 6], "little"), log[place + 6]
        if left < header:
            place += left
            continue
        record += log[place + header : place + header + size]
        place += header + size
        if kind in (full, last):
            yield record
            record = b""


def _by_metric(rows: list[tuple[int, dict[str, Any]]]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for step, row in rows:
        for name, value in row.items():
            if isinstance(value, dict):
                found[f"text/{name}"] = [(0, 1.0)]
            elif isinstance(value, int | float) and name != "step" and not name.startswith("_"):
                found[name].append((step, float(value)))
    return dict(found)


if __name__ == "__main__":
    reader = {"tensorboard": tensorboard, "mlflow": mlflow, "trackio": trackio, "wandb": wandb}[sys.argv[1]]
    print(json.dumps(reader(Path(sys.argv[2]), sys.argv[3])))
