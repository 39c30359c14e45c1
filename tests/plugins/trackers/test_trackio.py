"""What trackio is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.plugins.trackers.trackio import REMOTE, Trackio
from tests.plugins.trackers.stand_in import RUN, Kept, install, plain


def test_a_local_run_is_replaced_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACKIO_DIR", *REMOTE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    old, other, opened = Kept(), Kept(), Kept()
    old.name, other.name, opened._next_step = RUN.label, "other", 4
    given: dict[str, Any] = {}

    def init(project: str, **more: Any) -> Kept:
        given.update(more, project=project)
        return opened

    api = plain(runs=lambda _: [old, other])
    install(monkeypatch, tmp_path, trackio={"init": init, "Api": lambda: api, "Table": lambda data: data})
    tracker = Trackio()
    assert tracker.start("project", RUN) == 4
    assert (given["project"], given["name"], given["group"]) == ("project", RUN.label, "online/grpo")
    assert given["config"] == {**RUN.settings, "lineage": {"seed": 1}, "posttrain_id": RUN.id}
    assert old.given("delete") == [()] and other.calls == []
    tracker.figures({"score": 0.5})
    tracker.table("rows", [{"a": 1}])
    tracker.log([(4, {"loss": 0.5})])
    tracker.finish()
    assert opened.given("log") == [({"loss": 0.5}, 4), ({"results/score": 0.5, "rows": [{"a": 1}]},)]
