"""Schedules, new data and failures, with a real server, a real worker and a real webhook on loopback."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows import notify
from flows.data_watcher import FolderWatcher, project_path, watch
from flows.deploy import main
from posttrain.errors import PipelineError
from tests.pipeline.flows.project import Project
from tests.pipeline.flows.webhook import Webhook


@contextmanager
def started(project: Project, log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {**project.env, "PREFECT_RUNNER_POLL_FREQUENCY": "1", "PREFECT_WORKER_QUERY_SECONDS": "1"}
    with log.open("wb") as sink:
        process = subprocess.Popen([sys.executable, *words], cwd=project.root, env=env, stdout=sink, stderr=sink)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()  # a worker waits for runs that it has begun meanwhile
            process.wait()


def runs_of(project: Project, deployment: str) -> list[dict[str, Any]]:
    found = project.api("flow_runs/filter", deployments={"name": {"any_": [deployment]}}, sort="START_TIME_ASC")
    return [run for run in found if run["start_time"]]


def wait_for(project: Project, deployment: str, log: Path, **wanted: Any) -> dict[str, Any]:
    """The first run of the deployment that has begun and has these values."""
    end = time.monotonic() + 240  # a busy machine is no failure
    while time.monotonic() < end:
        for run in runs_of(project, deployment):
            if all(run[key] == value for key, value in wanted.items()):
                return run
        time.sleep(0.3)
    seen = [(run["state_type"], run["auto_scheduled"]) for run in runs_of(project, deployment)]
    raise AssertionError(f"no run with {wanted}, but {seen}\n{log.read_text()[-5000:]}")


@pytest.mark.slow
def test_a_failure_is_told_wherever_the_flow_was_started(project: Project, webhook: Webhook) -> None:
    project.env[notify.VARIABLE] = webhook.url
    project.trouble(prepare={"fails": 1})
    assert project.run("prepare").code == 1
    assert [body["state"] for body in webhook.posted] == ["Failed"]
    assert "prepare: cannot add apples to pears" in webhook.posted[0]["text"]
    assert project.run("prepare").code == 0
    assert len(webhook.posted) == 1


@pytest.mark.slow
def test_a_schedule_fires_new_data_fires_and_a_failure_is_told(
    project: Project, webhook: Webhook, tmp_path: Path
) -> None:
    arriving, log, name = tmp_path / "arriving", tmp_path / "serve.log", tmp_path.name
    arriving.mkdir()
    project.env[notify.VARIABLE] = webhook.url
    words = ("-m", "flows.deploy", "serve", "prepare", "--name", name, "--every", "15")
    with started(project, log, *words, "--watch", str(arriving), "--look-every", "1"):
        fired = wait_for(project, name, log, auto_scheduled=True, state_type="COMPLETED")
        assert project.dvc("status", "prepare", "--json").strip() == "{}"
        assert fired["parameters"]["targets"] == ["prepare"]
        assert webhook.posted == []

        (project.root / "prepare.txt").unlink()
        project.trouble(prepare={"fails": 99})
        (arriving / "rows.jsonl").write_text("{}\n")
        failed = wait_for(project, name, log, auto_scheduled=False, state_type="FAILED")
        assert failed["created_by"]["type"] == "AUTOMATION"
        end = time.monotonic() + 20
        while not any(body["url"].endswith(failed["id"]) for body in webhook.posted):
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.2)
    told = next(body for body in webhook.posted if body["url"].endswith(failed["id"]))
    assert told["flow"] == "pipeline" and told["state"] == "Failed"
    assert "prepare: cannot add apples to pears" in told["text"]
    assert project.left_running() == []


@pytest.mark.slow
def test_sigterm_ends_the_run_pauses_the_schedule_and_leaves_no_other_run(project: Project, tmp_path: Path) -> None:
    log, name = tmp_path / "serve.log", tmp_path.name
    project.trouble(prepare={"seconds": 300})
    with started(
        project, log, "-m", "flows.deploy", "serve", "prepare", "--name", name, "--cron", "0 3 * * *"
    ) as serving:
        asked = {"deployments": {"name": {"any_": [name]}}}
        end = time.monotonic() + 60
        while not (made := project.api("deployments/filter", **asked)) or made[0]["status"] != "READY":
            assert serving.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.3)
        while project.api("flow_runs/count", **asked) < 2:
            assert time.monotonic() < end, "the schedule plans its next runs"
            time.sleep(0.3)
        project.api(f"deployments/{made[0]['id']}/create_flow_run", state={"type": "SCHEDULED"})
        project.wait_begun("prepare")
        serving.terminate()
        assert serving.wait(timeout=30) == 0, log.read_text()
    lines = [line for line in log.read_text().splitlines() if "Task run" not in line]
    assert not any("Traceback" in line for line in lines), lines
    assert project.api("deployments/filter", **asked)[0]["paused"]
    assert [run["state_type"] for run in project.api("flow_runs/filter", **asked)] == ["CRASHED"]
    end = time.monotonic() + 15  # the guard ends the stage
    while project.processes():
        assert time.monotonic() < end, project.processes()
        time.sleep(0.2)


@pytest.mark.slow
def test_a_worker_of_a_pool_runs_it(project: Project, tmp_path: Path) -> None:
    name, log = tmp_path.name, tmp_path / "worker.log"
    pool = f"pool-{name}"
    words = ["-P", "-m", "flows.deploy", "pool", pool, "prepare", "--name", name, "--cron", "* * * * *", "--new"]
    done = subprocess.run([sys.executable, *words], cwd=project.root, env=project.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"prefect worker start --pool {pool}" in done.stdout
    again = subprocess.run([sys.executable, *words], cwd=project.root, env=project.env, capture_output=True, text=True)
    assert again.returncode == 0 and "created the process work pool" not in again.stdout
    words[words.index(pool)], words[-1:] = f"{pool}s", []
    misspelt = subprocess.run(
        [sys.executable, *words], cwd=project.root, env=project.env, capture_output=True, text=True
    )
    assert misspelt.returncode == 1
    assert f"no work pool '{pool}s'. Did you mean '{pool}'? If not, `--new` creates '{pool}s'" in misspelt.stderr
    assert {made["name"] for made in project.api("work_pools/filter")}.isdisjoint({f"{pool}s"})
    for place in (f"{pool}s", pool):
        words[4] = place
        moved = subprocess.run(
            [sys.executable, *words, "--new"], cwd=project.root, env=project.env, capture_output=True, text=True
        )
        assert f"to the pool '{place}'; --name NAME makes another deployment" in moved.stdout, moved.stderr
    assert 'PREFECT_API_AUTH_STRING="$(cat' in done.stdout
    assert project.env["PREFECT_API_AUTH_STRING"] not in done.stdout + done.stderr
    with started(project, log, "-m", "prefect", "worker", "start", "--pool", pool):
        wait_for(project, name, log, auto_scheduled=True, state_type="COMPLETED")
    assert (project.root / "prepare.txt").exists()


def test_a_webhook_is_tried_again_and_never_breaks_a_flow(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notify, "_DELAYS", (0.0, 0.01, 0.01))
    body = notify.message("pipeline", "grey-fox", "id", "Failed", "x" * 5000)
    assert len(body["text"]) < 3200
    output = "\x1b[31mred\x1b[0m \x1b]8;;http://e\x07link\x1b]8;;\x07 <!channel> a & b\r\n```<http://e|x>\u202e\x00"
    hostile = notify.message("pipeline", "grey-fox", "id", "Failed", output)
    assert hostile["message"] == "red link <!channel> a & b\n```<http://e|x>"
    shown = "red link &lt;!channel&gt; a &amp; b\n'''&lt;http://e|x&gt;"
    assert hostile["text"].endswith(f": Failed\n```\n{shown}\n```")
    webhook.answers[:] = [503, 429]
    assert notify.send(webhook.url, body)
    assert webhook.posted == [body] * 3
    webhook.posted.clear()
    webhook.answers[:] = [404]
    assert not notify.send(webhook.url, body)
    assert len(webhook.posted) == 1, "what is refused is not sent again"
    for unfit in ("http://127.0.0.1:9/secret", "127.0.0.1/secret", "http://127.0.0.1:9/se cret", "secret"):
        assert not notify.send(unfit, body)
    assert "could not be posted to POSTTRAIN_WEBHOOK: InvalidURL" in caplog.text
    assert "cret" not in caplog.text


def test_a_file_arrives_once_it_is_at_rest(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("a")
    watcher = FolderWatcher(tmp_path)
    assert watcher.changed() == []
    new = tmp_path / "new.csv"
    new.write_text("a")
    assert watcher.changed() == [], "it may still be written"
    new.write_text("ab")
    assert watcher.changed() == []
    assert watcher.changed() == [new]
    assert watcher.changed() == [], "once"
    (tmp_path / "old.csv").write_text("changed")
    (tmp_path / ".hidden").write_text("a")
    (tmp_path / "half.csv.part").write_text("a")
    assert watcher.changed() == []
    assert watcher.changed() == [tmp_path / "old.csv"]
    new.unlink()
    assert watcher.changed() == []
    with pytest.raises(PipelineError, match="folder not found"):
        FolderWatcher(tmp_path / "lost")


def test_a_look_that_fails_is_not_the_last_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where a folder vanishes while it is looked through, or a network disk does not answer."""
    looks: list[str] = []

    class Failing(FolderWatcher):
        def changed(self) -> list[Path]:
            looks.append("look")
            if len(looks) < 3:
                raise FileNotFoundError(2, "No such file or directory", "gone")
            return [tmp_path / "new.csv"]

    stop, found = threading.Event(), list[Sequence[Path]]()

    def on_change(_: Path, files: Sequence[Path]) -> None:
        found.append(files)
        stop.set()

    watch(Failing(tmp_path), 0.01, stop, on_change)
    assert found == [[tmp_path / "new.csv"]]
    assert capsys.readouterr().err.count("cannot be looked through now") == 1


def test_a_watched_folder_has_one_name_in_all_clones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        clone = tmp_path / name
        (clone / "data").mkdir(parents=True)
        (tmp_path / f"outside_{name}").mkdir()
        (clone / "data/incoming").symlink_to(tmp_path / f"outside_{name}")
        monkeypatch.chdir(clone / "data")
        for given in (Path("incoming"), clone / "data/incoming"):
            assert project_path(clone, given) == Path("data/incoming")
        assert project_path(clone, tmp_path) == tmp_path
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(clone)
        assert project_path(clone, tmp_path / "link/data") == Path("data")


@pytest.mark.slow
def test_a_watch_started_in_a_subfolder_means_its_own_folder(
    bare: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (bare.root / "incoming").mkdir()
    monkeypatch.setenv("PREFECT_HOME", str(bare.root / ".prefect"))
    monkeypatch.chdir(bare.root / "sub")
    assert main(["watch", "incoming"]) == 1
    assert "sub/incoming: folder not found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--cron", "at night"], "'at night' is not a schedule"),
        (["--every", "0"], "'0' is not a number of seconds of at least 1"),
    ],
)
@pytest.mark.slow
def test_a_time_that_is_none_is_refused(project: Project, words: list[str], told: str) -> None:
    command = [sys.executable, "-m", "flows.deploy", "serve", *words]
    done = subprocess.run(command, cwd=project.root, env=project.env, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert told in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_workers_need_a_server(
    bare: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(bare.root)
    monkeypatch.setenv("PREFECT_HOME", str(bare.root / ".prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert main(["pool", "mine", "--every", "60"]) == 1
    assert "no Prefect server is running. Start one: posttrain server" in capsys.readouterr().err
