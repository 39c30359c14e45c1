"""`posttrain params RUN`: what each setting of a run is."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.pipeline.commands.params import named_run
from posttrain.pipeline.commands.params.describe import effective


@pytest.mark.parametrize("name", ["online.runs.grpo", "online/grpo", "online@grpo"])
def test_a_run_is_named_as_users_name_it(finished: Path, name: str) -> None:
    assert (finished / "params.yaml").is_file() and named_run(name) == ("online.runs", "grpo")


def test_what_is_given_has_a_star(finished: Path) -> None:
    assert (finished / "params.yaml").is_file()
    assert named_run("online") is None and named_run("grpo") is None, "a section, an algorithm"
    lines = effective("sft.runs", "main").splitlines()
    assert lines[0].startswith("sft.runs.main ")
    assert "* start: base/tiny" in lines and "  optimizer.clip: 1.0" in lines


def test_without_a_project_nothing_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert named_run("online/grpo") is None
