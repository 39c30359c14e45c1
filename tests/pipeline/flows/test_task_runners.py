"""The same flow as tasks of Ray and of Dask; `make engines` installs both and runs this."""

from __future__ import annotations

import signal
import time
from importlib.util import find_spec

import psutil
import pytest

from flows import task_runners
from flows.graph import Needs, Stage
from posttrain.errors import PipelineError
from tests.pipeline.flows.project import Project

ANY = ("ray", "dask")
pytestmark = pytest.mark.slow


@pytest.fixture(params=ANY)
def engine(request: pytest.FixtureRequest) -> str:
    if find_spec(f"prefect_{request.param}") is None:
        pytest.skip(f"prefect-{request.param} is not installed: make engines")
    return str(request.param)


def test_branches_overlap_and_dvc_knows_what_is_done(project: Project, engine: str) -> None:
    project.trouble(left={"seconds": 5}, right={"seconds": 5})
    ended = project.run(f"--{engine}")
    assert ended.code == 0, ended.err
    assert set(ended.states.values()) == {"Completed"}
    assert project.span("prepare")[1] <= min(project.span(name)[0] for name in ("left", "right"))
    (begin_1, end_1), (begin_2, end_2) = project.span("left"), project.span("right")
    assert max(begin_1, begin_2) < min(end_1, end_2), "the branches did not run at the same time"
    assert "up to date" in project.dvc("status")
    runs = project.task_runs(ended)
    assert runs["branch@left"]["state_type"] == "COMPLETED" and len(runs) == len(ended.states)
    project.runs({"timeout": 999}, {})
    again = project.run(f"--{engine}")
    assert again.states["prepare"] == "Cached" and again.states["branch@left"] == "Completed", again.err
    assert project.left_running() == []


def test_a_failure_is_tried_again_and_then_named(project: Project, engine: str) -> None:
    project.runs({"retries": 1}, {})
    project.trouble(left={"fails": 1}, right={"fails": 1})
    ended = project.run(f"--{engine}")
    assert ended.code == 1
    wanted = {"prepare": "Completed", "branch@left": "Completed", "branch@right": "Failed", "join": "NotRun"}
    assert {name: ended.states[name] for name in wanted} == wanted, ended.err
    assert "cannot add apples to pears" in ended.err


def stages_left(project: Project) -> list[str]:
    """What works in the project, but for Ray's own agents: after a SIGKILL they take a minute to notice."""
    return [command for command in project.processes() if not command.startswith("ray::")]


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL", "pages"])
def test_however_it_is_ended_nothing_stays_behind(project: Project, engine: str, how: str) -> None:
    project.trouble(left={"seconds": 300, "deaf": 1}, right={"seconds": 300, "child": 1})
    process = project.start(f"--{engine}")
    project.wait_begun("left", "right")
    if how == "pages":
        runs = project.api("flow_runs/filter", sort="START_TIME_DESC", limit=1)
        project.api(f"flow_runs/{runs[0]['id']}/set_state", state={"type": "CANCELLING"})
    else:
        process.send_signal(signal.Signals[how])
    began = time.monotonic()
    ended = project.finish(process)
    assert ended.code != 0
    while stages_left(project) and time.monotonic() - began < 20:
        time.sleep(0.2)
    assert stages_left(project) == []
    if how != "SIGKILL":
        assert ended.states.get("branch@left") == "Cancelled", ended.out + ended.err
    project.trouble()
    after = project.run("branch")
    assert after.code == 0 and after.states["prepare"] == "Cached", after.err


def test_a_local_cluster_of_dask_listens_on_the_loopback_only(project: Project) -> None:
    if find_spec("prefect_dask") is None:
        pytest.skip("prefect-dask is not installed: make engines")
    project.trouble(left={"seconds": 8}, right={"seconds": 8})
    process = project.start("--dask")
    project.wait_begun("left")
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    listening = {
        one.laddr.ip for member in family for one in member.net_connections("inet") if one.status == psutil.CONN_LISTEN
    }
    process.send_signal(signal.SIGINT)
    project.finish(process)
    assert listening and listening <= {"127.0.0.1", "::1"}, listening


@pytest.mark.parametrize("engine", ANY)
def test_an_engine_that_is_not_installed_is_an_error_that_says_how(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runners, "find_spec", lambda _: None)
    with pytest.raises(PipelineError, match=rf"prefect-{engine} is not installed.*pip install .*\[{engine}\]"):
        task_runners.task_runner(engine)  # type: ignore[arg-type]


def test_gpus_are_asked_of_the_engine(engine: str) -> None:
    stage = Stage("one", (), Needs(gpus=2), ())
    with task_runners.gpu_resources(engine, stage):  # type: ignore[arg-type]
        if engine == "ray":
            from prefect_ray.context import RemoteOptionsContext

            assert RemoteOptionsContext.get().current_remote_options == {"num_gpus": 2}
        else:
            import dask

            assert dask.get_annotations() == {"resources": {"GPU": 2}}
