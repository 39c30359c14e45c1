"""What MLflow is given."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from posttrain.plugins.trackers import mlflow as module
from posttrain.plugins.trackers.mlflow import Mlflow
from tests.plugins.trackers.stand_in import RUN, Kept, install, plain


def client(step: int | None) -> Kept:
    metrics = {} if step is None else {"step": step, "results/score": 0.5}
    run = plain(info=plain(run_id="r"), data=plain(metrics=metrics))
    return Kept(
        get_experiment_by_name=plain(experiment_id="e"),
        search_runs=[] if step is None else [run],
        create_run=run,
        get_run=run,
    )


@pytest.mark.parametrize(("known", "first"), [(None, 0), (4, 5)])
def test_a_run_is_continued_after_its_last_step(
    known: int | None, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, made = client(known), list[str]()

    def open_client(uri: str) -> Kept:
        made.append(uri)
        return kept

    entities = {"Param": lambda *given: given, "Metric": lambda *given: given}
    install(monkeypatch, tmp_path, mlflow={"MlflowClient": open_client}, mlflow__entities=entities)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host")
    tracker = Mlflow()
    assert tracker.start("project", RUN) == first and made == ["http://host"]
    assert kept.given("log_batch")[0][1] == [("lr", "0.1"), ("kl.beta", "0.2")]
    tracker.log([(7, {"loss": 0.5})])
    assert [(name, value, step) for name, value, _, step in kept.given("log_batch")[-1][1]] == [
        ("loss", 0.5, 7),
        ("step", 7.0, 7),
    ]
    tracker.figures({"score": 0.5, "length": 3.0})
    new = [name for name, *_ in kept.given("log_batch")[-1][1]]
    assert new == (["results/score", "results/length"] if known is None else ["results/length"])
    tracker.table("rows", [{"a": 1, "b": 2}])
    assert kept.given("log_dict")[-1] == ("r", {"columns": ["a", "b"], "data": [[1, 2]]}, "rows.json")
    tracker.finish()
    assert kept.given("set_terminated") == [("r",)]


def test_a_database_appears_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_client(uri: str) -> Any:
        opened.append(uri)
        Path(uri.removeprefix("sqlite:///")).write_text("tables")
        return Kept()

    install(monkeypatch, tmp_path, mlflow={"MlflowClient": open_client})
    file = tmp_path / "mlflow.db"
    assert module._database(file) == module._database(file) == f"sqlite:///{file}"
    assert file.read_text() == "tables" and len(opened) == 1 and opened[0] != f"sqlite:///{file}"
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    before = time.time()
    assert before - 1 <= module._now() / 1000 <= time.time() + 1
