"""What TensorBoard is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.plugins.trackers import tensorboard as module
from posttrain.plugins.trackers.tensorboard import TensorBoard
from tests.plugins.trackers.stand_in import RUN, Kept, install, plain


def test_a_run_is_written_again_from_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, folders = Kept(), list[str]()

    def open_writer(folder: str) -> Kept:
        folders.append(folder)
        return writer

    class Summary:
        """As TensorBoard's: a list of values."""

        Value = dict

        def __init__(self, value: list[Any]) -> None:
            self.value = value

    install(
        monkeypatch, tmp_path,
        tensorboard__summary__writer__event_file_writer={"EventFileWriter": open_writer},
        tensorboard__plugins__text__metadata={"create_summary_metadata": lambda *given: given},
        tensorboard__util__tensor_util={"make_tensor_proto": lambda texts: texts},
        tensorboard__compat__proto__event_pb2={"Event": plain},
        tensorboard__compat__proto__summary_pb2={"Summary": Summary},
    )  # fmt: skip
    tracker = TensorBoard()
    old = tmp_path / ".track/tensorboard" / RUN.label
    (old / "events").mkdir(parents=True)
    assert tracker.start("project", RUN) == 0 and not old.exists() and folders == [f".track/tensorboard/{RUN.label}"]
    tracker.log([(3, {"loss": 0.5})])
    tracker.figures({"score": 0.25})
    tracker.table("rows", [{"a": "x|y"}])
    events = [(event.step, event.summary.value[0]) for (event,) in writer.given("add_event")]
    assert [value["tag"] for _, value in events] == ["settings", "lineage", "loss", "results/score", "rows"]
    assert [(step, value["simple_value"]) for step, value in events[2:4]] == [(3, 0.5), (0, 0.25)]
    assert events[4][1]["tensor"] == [b"| a |\n| --- |\n| x\\|y |"]


def test_tables_are_markdown() -> None:
    assert module._markdown([]) == ""
    assert module._markdown([{"a": 1, "b": "x"}]) == "| a | b |\n| --- | --- |\n| 1 | x |"
    assert module._cell("a|b\nc") == "a\\|b ⏎ c"
