"""The graph that a flow runs is the one that DVC shows."""

from __future__ import annotations

import re
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from flows.graph import GraphReader, Needs, Stage, find_root, stale
from flows.orphan_guard import OrphanGuard
from flows.run import StageRunner
from posttrain.errors import PipelineError
from tests.workspace import ROOT, make_workspace, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pipeline.flows.project import Project

ALL = ["prepare", "branch@left", "branch@right", "join", "sub/dvc.yaml:extra"]


@pytest.mark.slow
def test_agrees_with_dvc_dag(bare: Project) -> None:
    stages = GraphReader(bare.root).stages
    edges = {(above, stage.name) for stage in stages for above in stage.upstream}
    dot = bare.dvc("dag", "--dot")
    assert edges == set(re.findall(r'"([^"]+)" -> "([^"]+)"', dot))
    assert sorted(ALL) == sorted(stage.name for stage in stages)


@pytest.mark.slow
def test_upstream_comes_first(bare: Project) -> None:
    seen: set[str] = set()
    stages = GraphReader(bare.root).stages
    for stage in stages:
        assert seen.issuperset(stage.upstream)
        seen.add(stage.name)
    assert any(stage.upstream for stage in stages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "names"),
    [
        (["branch@left"], {"prepare", "branch@left"}),
        (["branch"], {"prepare", "branch@left", "branch@right"}),
        (["join.txt"], {"prepare", "branch@left", "branch@right", "join"}),
        (["sub/dvc.yaml:extra"], set(ALL)),
    ],
)
def test_targets_bring_their_upstream(bare: Project, targets: list[str], names: set[str]) -> None:
    assert {stage.name for stage in GraphReader(bare.root, targets).stages} == names


@pytest.mark.slow
def test_why_a_stage_is_stale_names_a_few_files(bare: Project) -> None:
    graph = bare.root / "dvc.yaml"
    graph.write_text(f"{graph.read_text()}\n  many:\n    cmd: 'true'\n    deps: [__a__.py, b, c, d, e, f]\n")
    reasons = {stage.name: stage.reasons for stage in GraphReader(bare.root).stages}
    assert reasons["many"] == ("changed deps: `__a__.py`, `b`, `c`, `d` and 2 more",)
    assert reasons["join"] == ("changed deps: `left.txt`, `right.txt`", "changed outs: `join.txt`")
    bare.dvc("repro", "branch@left")
    bare.runs({"gpus": 1}, {})
    (left,) = [stage for stage in GraphReader(bare.root).stages if stage.name == "branch@left"]
    assert left.reasons == ("changed deps: `params.yaml:runs.left`",)


@pytest.mark.slow
def test_a_slip_in_a_target_is_named(bare: Project) -> None:
    with pytest.raises(PipelineError, match="Did you mean 'join'"):
        GraphReader(bare.root, ["jion"]).stages  # noqa: B018


@pytest.mark.slow
def test_meta_is_typed(bare: Project) -> None:
    bare.runs({"gpus": 2, "timeout": 9}, {})
    needs = {stage.name: stage.needs for stage in GraphReader(bare.root).stages}
    assert needs["branch@left"] == Needs(gpus=2, timeout=9.0, retry_delay=0.5)
    assert needs["prepare"] == Needs()
    file = bare.root / "dvc.yaml"
    file.write_text(file.read_text().replace("retries:", "retrys:"))
    with pytest.raises(PipelineError, match=r"branch@left.*retrys.*Did you mean 'retries'"):
        GraphReader(bare.root).stages  # noqa: B018


@pytest.mark.slow
def test_broken_yaml_is_one_error(bare: Project) -> None:
    (bare.root / "dvc.yaml").write_text("stages:\n  a: {cmd: x, deps: [a.txt], outs: [a.txt]}\n")
    with pytest.raises(PipelineError, match=r"dvc\.yaml"):
        GraphReader(bare.root).stages  # noqa: B018


@pytest.mark.slow
def test_frozen_stages_wait_for_nobody(bare: Project) -> None:
    bare.dvc("freeze", "join")
    assert {stage.name: stage.upstream for stage in GraphReader(bare.root).stages}["join"] == ()


def test_stale_goes_downstream() -> None:
    def stage(name: str, *upstream: str, why: str = "") -> Stage:
        return Stage(name, upstream, Needs(), (why,) if why else ())

    stages = [stage("a"), stage("b", "a", why="changed"), stage("c", "a"), stage("d", "b", "c"), stage("e", "c")]
    assert stale(stages) == {"b", "d"}


def test_the_root_is_found_upwards(bare: Project, tmp_path: Path) -> None:
    assert find_root(bare.root / "sub") == bare.root
    with pytest.raises(PipelineError, match="no DVC project"):
        find_root(tmp_path)


@pytest.mark.slow
def test_reading_waits_for_the_lock(bare: Project) -> None:
    from dvc.repo import Repo

    with Repo(str(bare.root)).lock:
        reader = GraphReader(bare.root)
        time.sleep(5)  # DVC gives up after 3 where it is not told to wait
    assert reader.stages


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        (
            "start: base/tiny",
            "start: base/tniy",
            "sft.runs.main.start = 'base/tniy': no run makes this model. Did you mean",
        ),
        pytest.param("start: base/tiny", "strat: base/tiny", "sft.runs.main.start is missing", marks=pytest.mark.slow),
    ],
)
def test_a_flow_checks_the_parameters_before_anything_else(tmp_path: Path, right: str, wrong: str, words: str) -> None:
    workspace = make_workspace(tmp_path / "w", ROOT / "recipes/smoke.yaml")
    params = workspace / "params.yaml"
    params.write_text(params.read_text().replace(right, wrong))
    ended = run(workspace, sys.executable, "-m", "flows.pipeline", "sft")
    assert ended.returncode == 1 and words in ended.stdout
    assert ended.stdout.count("error: ") == 1 and "dvc" not in ended.stdout, ended.stdout
    assert not (workspace / ".prefect").exists(), "no server was started"


@pytest.mark.slow
def test_a_flow_shows_the_notes_of_the_check_once(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w", ROOT / "recipes/smoke.yaml")
    params = workspace / "params.yaml"
    params.write_text(params.read_text().replace("    base: base/tiny\n", ""))
    ended = run(workspace, sys.executable, "-m", "flows.graph", "sft")
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("note: not evaluated: base/tiny. ") == 1


def test_what_fails_around_a_stage_is_its_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Prefect calls the task crashed, and the flow's summary has no line for it."""
    monkeypatch.setattr("flows.run.task_run", SimpleNamespace(run_count=1))  # outside a flow there is none
    with OrphanGuard() as guard:
        runner = StageRunner(tmp_path / "removed", [Stage("sft@main", (), Needs(), ("new",))], "all", guard, "local")
        state = runner.run("sft@main")
    assert state.is_failed() and "sft@main: FileNotFoundError" in (state.message or "")
    assert runner.outcomes["sft@main"].state == "Failed"
