"""What Weights & Biases is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.plugins.trackers.wandb import Wandb
from tests.plugins.trackers.stand_in import RUN, Kept, install, plain


@pytest.mark.parametrize(("mode", "first"), [("offline", 0), ("online", 6)])
def test_an_offline_run_begins_again(mode: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, given = Kept(), dict[str, Any]()
    run.step, run.summary = 6, {}

    def init(**more: Any) -> Kept:
        given.update(more)
        return run

    table = {"Table": lambda columns, data: (columns, data), "Settings": plain, "init": init}
    install(monkeypatch, tmp_path, wandb=table)
    old = tmp_path / f".track/wandb/offline-run-1-{RUN.id}"
    old.mkdir(parents=True)
    monkeypatch.setenv("WANDB_MODE", mode)
    tracker = Wandb()
    assert tracker.start("project", RUN) == first and not old.exists()
    assert (given["id"], given["name"], given["mode"]) == (RUN.id, RUN.label, mode)
    assert given["resume"] == ("allow" if mode == "online" else None)
    tracker.log([(6, {"loss": 0.5})])
    tracker.figures({"score": 0.5})
    tracker.table("rows", [{"a": 1}])
    tracker.finish()
    assert run.given("log") == [({"loss": 0.5}, 6, True)] and run.given("finish") == [()]
    assert run.summary == {"results/score": 0.5, "rows": (["a"], [[1]])}
