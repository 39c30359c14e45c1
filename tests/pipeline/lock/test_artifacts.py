"""The artifacts of dvc.yaml: an entry is added without a change of other lines, and `upgrade` keeps entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.lock.artifacts import joined, require_artifact, split_artifacts, with_artifact
from tests.workspace import ROOT

GRAPH = "# the graph\nstages:\n  report:  # the last\n    cmd: true\n"


def test_the_first_and_the_second_entry_leave_all_other_lines() -> None:
    one = with_artifact(GRAPH, "grpo", "models/online/grpo")
    assert one is not None and one.startswith(GRAPH) and "  grpo:\n    path: models/online/grpo\n" in one
    two = with_artifact(one, "123", "models/sft/a")
    assert two is not None
    added = '  "123":\n    path: models/sft/a\n    type: model\n    desc: the evaluated policy 123\n'
    assert two.replace(added, "") == one


def test_entries_keep_the_indent_of_others_and_text_that_follows() -> None:
    text = "artifacts:\n    # mine\n    a:\n        path: models/a\nstages: {}\n"
    found = with_artifact(text, "b", "models/b")
    assert found is not None and found.endswith("stages: {}\n") and "\n    b:\n        path: models/b\n" in found


@pytest.mark.parametrize("text", ["artifacts: {a: {path: b}}\nstages: {}\n", "stages: {\n", "artifacts: []\n"])
def test_an_unusual_form_is_left_alone(text: str) -> None:
    assert with_artifact(text, "grpo", "models/online/grpo") is None


def test_splitting_takes_back_what_was_added() -> None:
    graph = (ROOT / "dvc.yaml").read_text(encoding="utf-8")
    found = with_artifact(graph, "grpo", "models/online/grpo")
    assert found is not None and split_artifacts(found)[0] == graph and joined(*split_artifacts(found)) == found
    assert split_artifacts(graph) == (graph, "")


def test_a_missing_entry_is_written_and_one_of_another_model_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text(GRAPH)
    with pytest.raises(PipelineError, match="posttrain added this entry"):
        require_artifact("grpo", "models/online/grpo")
    require_artifact("grpo", "models/online/grpo")
    text = Path("dvc.yaml").read_text()
    with pytest.raises(PipelineError, match="would get another model"):
        require_artifact("grpo", "models/online/other")
    assert Path("dvc.yaml").read_text() == text
