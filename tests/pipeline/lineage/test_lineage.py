"""The stages of dvc.lock as a graph, back to the sources."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from posttrain.pipeline.lineage.lineage import Lineage, training_rollouts
from posttrain.pipeline.lock.digests import read_lock
from tests.pipeline.lock.project import DVC_YAML, RECORD, make, md5, put, put_lock


@pytest.fixture
def lineage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lineage:
    monkeypatch.chdir(tmp_path)
    make(tmp_path)
    put(Path("my/a.txt"), "a")
    stages = read_lock(tmp_path)
    stages["raw"]["deps"] = [{"path": "my/a.txt", "md5": md5("a")}]
    put_lock(tmp_path, stages)
    put(Path("dvc.yaml"), DVC_YAML.replace("cmd: make raw", "cmd: make raw\n    deps: [my/a.txt]"))
    return Lineage()


def test_the_graph(lineage: Lineage) -> None:
    assert lineage.maker("models/mine/main/a.txt") == "mine@main" and lineage.maker("my/a.txt") is None
    assert lineage.above("last") == ["last", "mine@main", "raw"]
    assert lineage.sources("last") == ["my/a.txt"] and lineage.sources("none") == []
    assert list(lineage.inputs("mine@main")) == ["data/raw.txt"]
    assert list(lineage.inputs("last")) == ["models/mine/main"], "the outputs in the folder"
    assert lineage.commit == "dvc.lock is not committed"


def test_an_output_is_traced_to_its_source(lineage: Lineage) -> None:
    node = lineage.output("last.txt")
    assert [one.title for one in node.walk()] == [
        "last.txt", "made by last", "models/mine/main", "made by mine@main", "data/raw.txt", "made by raw",
        "my/a.txt (a source: no stage makes it)",
    ]  # fmt: skip
    assert node.facts == {"digest": md5("last")}
    mine = lineage.stage("mine@main")
    assert mine.facts["command"] == "make mine main" and mine.facts["mine.runs.main"] == '{"lr": 0.1, "name": "a"}'
    assert mine.facts["code"].startswith("code/mine/main.json, 0 files, digest ")
    assert lineage._stage("raw", {"raw"}).title == "made by raw (above)"


def test_what_changed_since_is_said(lineage: Lineage) -> None:
    put(Path("params.yaml"), "mine: {runs: {main: {lr: 0.2, name: a}}}\n")
    put(Path("last.txt"), "edited")
    found = Lineage()
    assert found.stage("mine@main").facts["stale"] == "params.yaml has other settings now: mine.runs.main"
    assert "params mine.runs.main.lr 0.1 -> 0.2" in found.stage("mine@main").facts["not current"]
    assert found.output("last.txt").facts["stale"] == "last.txt was edited since"
    assert found._changes("last.txt", md5("edited")) == {}
    assert found._changes("none.txt", "1") == {"missing": "none.txt is not in the workspace"}
    assert found._recorded_digest("last.txt") == md5("last") and found._recorded_digest("my/a.txt") == md5("a")


def test_runs_that_are_not_verified_or_not_recorded(lineage: Lineage) -> None:
    stages = read_lock(Path())
    del stages["last"]
    stages["mine@main"]["deps"][1]["md5"] = md5("other")
    put_lock(Path(), stages)
    found = Lineage()
    assert found._unrecorded("last.txt") == "last" and found._unrecorded("none") is None
    assert "dvc.lock has no entry of last" in found.output("last.txt").facts["not current"]
    wrong = found._verdict("mine@main", found.lock["mine@main"])
    assert wrong["NOT WHAT RAN"].startswith("data/raw.txt (the run read another version). Run `posttrain repair`")
    stages["mine@main"]["outs"][1]["md5"] = md5("lost")
    put_lock(Path(), stages)
    found = Lineage()
    assert found._verdict("mine@main", found.lock["mine@main"]) == {
        "not verified": f"its record is missing: `dvc pull {RECORD}`"
    }
    assert found._code("raw") == {"record": "not stored"}


def test_training_rollouts(lineage: Lineage, tmp_path: Path) -> None:
    assert training_rollouts(tmp_path / "none") == {"rows": "not stored"}
    folder = Path("rollouts/online/a")
    folder.mkdir(parents=True)
    rows = {"id": ["a", "b", "c"], "prompt_id": ["p", "p", "q"], "round": [0, 0, 1], "reward": [1.0, 0.0, None]}
    pl.DataFrame(rows).write_parquet(folder / "part-00000.parquet")
    found = training_rollouts(folder)
    assert found == {
        "folder": "rollouts/online/a", "rows": 3, "prompts": 2, "rounds": 2, "worst": ["b", "a", "c"],
        "best": ["b", "a"],
    }  # fmt: skip
    node = lineage._training_rollouts("online/a", {"outs": [{"path": "rollouts/online/a", "md5": "1"}]})
    assert node.facts["digest"] == "1" and node.facts["rows"] == 3 and "stale" in node.facts
