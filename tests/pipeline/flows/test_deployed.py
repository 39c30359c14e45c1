"""Deployments with settings, a sweep as a deployment, and one of prefect.yaml, with a real server and real runs."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flows import notify
from flows.alerts import EVENTS, NAME
from flows.server import KEEP, login
from tests.pipeline.flows.project import Project
from tests.pipeline.flows.small import BETA, commit
from tests.pipeline.flows.test_deploy import started, wait_for
from tests.pipeline.flows.webhook import Webhook
from tests.workspace import ROOT

pytestmark = pytest.mark.slow
PORT = "45123"
SERVE = ("-m", "flows.deploy", "serve")


def asked(project: Project, name: str) -> dict[str, Any]:
    return {"deployments": {"name": {"any_": [name]}}}


def until(done: Callable[[], Any], log: Path, seconds: float = 240) -> Any:
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end, log.read_text()[-4000:] if log.is_file() else "it did not happen"
        time.sleep(0.5)
    return found


def run_now(project: Project, name: str, log: Path, **parameters: Any) -> dict[str, Any]:
    """Start a run of a deployment, with some parameters changed, and return it at its end."""
    (made,) = until(lambda: project.api("deployments/filter", **asked(project, name)), log)
    body = {"state": {"type": "SCHEDULED"}, "parameters": parameters}
    begun = project.api(f"deployments/{made['id']}/create_flow_run", **body)

    def ended() -> dict[str, Any] | None:
        (run,) = project.api("flow_runs/filter", flow_runs={"id": {"any_": [begun["id"]]}})
        return run if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None

    found: dict[str, Any] = until(ended, log)
    return found


def experiments(project: Project) -> list[str]:
    words = ["git", "for-each-ref", "--format=%(refname:lstrip=4)", "refs/exps"]
    return subprocess.run(words, cwd=project.root, check=True, capture_output=True, text=True).stdout.split()


def command(project: Project, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**project.env, **variables}
    return subprocess.run([sys.executable, *words], cwd=project.root, env=env, capture_output=True, text=True)


def artifact(project: Project, run: dict[str, Any], key: str) -> Any:
    found = project.api("artifacts/filter", artifacts={"flow_run_id": {"any_": [run["id"]]}})
    return next(one for one in found if one["key"] == key)


def test_settings_on_a_schedule_are_an_experiment_that_runs_once(small: Project, tmp_path: Path) -> None:
    log, before = tmp_path / "serve.log", (small.root / "params.yaml").read_bytes()
    words = (*SERVE, "online", "-S", f"{BETA}=0.5", "--name", "strict-one", "--rrule", "FREQ=SECONDLY;INTERVAL=40")
    with started(small, log, *words):
        first = wait_for(small, "strict-one", log, auto_scheduled=True, state_type="COMPLETED")
        assert "schedule: 'FREQ=SECONDLY;INTERVAL=40', in UTC. Prefect's pages: http://127.0.0.1:" in log.read_text()
        assert first["parameters"]["set"] == {BETA: 0.5} and "have run: 1" in first["state"]["message"]
        second = wait_for(small, "strict-one", log, auto_scheduled=True, state_name="Cached")
        assert "nothing to do: strict_one-beta0.5-" in second["state"]["message"]
        (made,) = small.api("deployments/filter", **asked(small, "strict-one"))
        small.api(f"deployments/{made['id']}/pause_deployment")  # its next runs would come first
        other = run_now(small, "strict-one", log, set={BETA: 0.02})
        assert other["state_type"] == "COMPLETED", other["state"]
        for wrong, said in (
            ({f"{BETA}x": 1}, "unknown key. Did you mean 'beta'?"),
            ({"online.runs.b.kl": 1}, "run of"),
        ):
            refused = run_now(small, "strict-one", log, set=wrong)
            assert refused["state_type"] == "FAILED" and said in refused["state"]["message"]
            assert small.api("task_runs/count", flow_runs={"id": {"any_": [refused["id"]]}}) == 0
            assert said in log.read_text() and refused["name"].startswith("online @ "), (
                "the terminal and the name say so"
            )
        second = command(small, *SERVE, "--name", "strict-one")
        assert second.returncode == 1 and "Give this deployment another name with --name" in second.stderr
    assert (small.root / "params.yaml").read_bytes() == before
    assert [name.rpartition("-")[0] for name in sorted(experiments(small))] == [
        "strict_one-beta0.02",
        "strict_one-beta0.5",
    ]
    assert small.left_running() == []


def test_what_is_wrong_is_refused_before_a_deployment_is_made(small: Project) -> None:
    for words, said in (
        (["-S", f"{BETA}x=1"], "unknown key. Did you mean 'beta'?"),
        (["-S", "beta"], "'beta' is not NAME=VALUE"),
        (["--sweep", "kl", "-S", f"{BETA}=0.5,x"], "online.runs.a.kl.beta = 'x'"),
        (["--sweep", "none"], "sweeps/none.yaml: file not found"),
        (["--jobs", "2"], "--jobs needs --sweep"),
        (["--env", "JUDGE=secret/a"], "is not a name for a secret"),
        (["--env", "JUDGE_KEY=a"], "does not refer to a stored value"),
        (["--env", "JUDGE_KEY=secret/nobody"], "has no secret 'nobody'"),
        (["--rrule", "EVERY DAY"], "'EVERY DAY' is not a schedule"),
        (["onlin"], "onlin"),
        (["--name", "a/b"], "'a/b' is not a valid name for a deployment"),
    ):
        done = command(small, *SERVE, "--name", "wrong", *words)
        assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert small.api("deployments/filter", **asked(small, "wrong")) == []


def test_a_sweep_is_a_deployment_with_its_page(small: Project, tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    words = (*SERVE, "--sweep", "kl", "-S", f"{BETA}=0.02,0.5", "--seeds", "1,2", "--jobs", "2", "--name", "weekly")
    with started(small, log, *words):
        run = run_now(small, "weekly", log)
        assert run["state_type"] == "COMPLETED" and "sweep" in run["tags"], run["state"]
        rows = json.loads(artifact(small, run, "sweep")["data"])
        assert {row["kl.beta"]: row["seeds"] for row in rows} == {"0.02": 2, "0.5": 2}
        assert "Best on the held-out prompts: beta 0.02." in artifact(small, run, "comparison")["data"]
        page = (small.root / ".sweeps/kl.html").read_text()
        assert {"kl.beta", "seeds"} <= {*re.findall(r"<th[^>]*>([^<]*)<", page)}
        refused = run_now(small, "weekly", log, jobs=0)
        assert refused["state_type"] == "FAILED" and "jobs = 0: at least 1 must run" in refused["state"]["message"]
        more = run_now(small, "weekly", log, seeds=[1, 2, 3])
        assert "have run: 2" in more["state"]["message"], "those of the third seed"
        (small.root / "params.yaml").write_text((small.root / "params.yaml").read_text() + "# changed\n")
        refused = run_now(small, "weekly", log)
        assert refused["state_type"] == "FAILED" and "changed since the last commit" in refused["state"]["message"]
    assert len(experiments(small)) == 6


def test_prefect_deploy_makes_what_prefect_yaml_says(small: Project, tmp_path: Path) -> None:
    file, pool, log = small.root / "prefect.yaml", f"pool-{tmp_path.name}", tmp_path / "worker.log"
    assert (ROOT / "posttrain/pipeline/template/prefect.yaml").read_bytes() == (ROOT / "prefect.yaml").read_bytes()
    shipped, examples = (ROOT / "prefect.yaml").read_text().split("# - name: strict")
    examples = re.sub(r"^# ", "", f"# - name: strict{examples}", flags=re.MULTILINE)
    for there, here in {
        "online.runs.grpo.kl.beta": BETA,
        ", env: {OPENAI_API_KEY: secret/judge}": "",
        "{name: local}": f"{{name: {pool}}}",
        "evaluate@grpo": "online",
    }.items():
        shipped, examples = (part.replace(there, here) for part in (shipped, examples))
    file.write_text(shipped + examples)
    commit(small.root)
    prefect = str(Path(sys.executable).with_name("prefect"))
    for words in (["work-pool", "create", pool, "--type", "process"], ["--no-prompt", "deploy", "--all"]):
        done = subprocess.run([prefect, *words], cwd=small.root, env=small.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    with started(small, log, "-m", "prefect", "worker", "start", "--pool", pool):
        assert run_now(small, "nightly", log)["state_type"] == "COMPLETED"
        assert "have run: 1" in run_now(small, "strict", log)["state"]["message"]
        assert "have run: 6" in run_now(small, "kl", log)["state"]["message"]


def test_keys_come_from_prefects_secrets_and_variables(small: Project, tmp_path: Path) -> None:
    log, seen = tmp_path / "serve.log", tmp_path / "seen"
    step = (small.root / "step.py").read_text()
    note = (
        f"import os, pathlib\npathlib.Path({str(seen)!r}).write_text(os.environ['JUDGE_KEY'] + os.environ['PLACE'])\n"
    )
    (small.root / "step.py").write_text(f"{note}print(os.environ['JUDGE_KEY'])\n{step}")
    commit(small.root)
    make = (
        "from prefect.blocks.system import Secret; from prefect.variables import Variable\n"
        "Secret(value='sk-hidden-1234').save('judge', overwrite=True); Variable.set('place', '/models', overwrite=True)"
    )
    done = command(small, "-c", make)
    assert done.returncode == 0, done.stderr
    words = (*SERVE, "online", "--name", "keys", "--env", "JUDGE_KEY=secret/judge", "--env", "PLACE=variable/place")
    with started(small, log, *words):
        run = run_now(small, "keys", log)
        assert run["state_type"] == "COMPLETED", run["state"]
        assert seen.read_text() == "sk-hidden-1234/models"
        assert run["parameters"]["env"] == {"JUDGE_KEY": "secret/judge", "PLACE": "variable/place"}
        missing = run_now(small, "keys", log, env={"JUDGE_KEY": "secret/nobody"})
        assert "has no secret 'nobody'" in missing["state"]["message"]
    assert "sk-hidden" not in log.read_text()


def test_prefect_itself_tells_failures_and_missed_schedules(small: Project, webhook: Webhook, tmp_path: Path) -> None:
    log, pool = tmp_path / "serve.log", f"pool-{tmp_path.name}"
    assert "no webhook is set" in command(small, "-m", "flows.deploy", "alert").stderr
    for _ in range(2):  # the second replaces the first
        done = command(small, "-m", "flows.deploy", "alert", **{notify.VARIABLE: webhook.url})
        assert done.returncode == 0 and "posts failures, crashes and late runs" in done.stdout, done.stderr
    made = [one for one in small.api("automations/filter") if one["name"] == NAME]
    assert len(made) == 1 and webhook.url not in json.dumps(made)
    (small.root / "custom/fails").touch()
    with started(small, log, *SERVE, "online", "--name", "told"):
        failed = run_now(small, "told", log)
        assert failed["state_type"] == "FAILED"
        until(lambda: [one for one in webhook.posted if one["url"].endswith(failed["id"])], log)
    (body,) = [one for one in webhook.posted if one["url"].endswith(failed["id"])]
    assert body["flow"] == "pipeline" and body["state"] == "Failed" and "the reward cannot be read" in body["text"]
    done = command(
        small, "-m", "flows.deploy", "pool", pool, "online", "--new", "--name", "missed", "--cron", "* * * * *"
    )
    assert done.returncode == 0, done.stderr  # no worker takes its runs
    # Prefect's server holds this event back for 15 minutes, since it knows no event of the run before it.
    wanted = {"limit": 50, "filter": {"event": {"name": ["prefect.flow-run.Late"]}}}
    late = until(lambda: small.api("events/filter", **wanted)["events"], log)
    assert ("flow", "pipeline") in {
        (one["prefect.resource.role"], one.get("prefect.resource.name")) for one in late[0]["related"]
    }
    assert "Late" in EVENTS


def own_server(small: Project, env: dict[str, str]) -> tuple[subprocess.Popen[str], Project]:
    """Start the project's own server on a fixed port. Return it, and the project as one that uses it."""
    words = [sys.executable, "-m", "flows.server", "--port", PORT]
    server = subprocess.Popen(words, cwd=small.root, env=env, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and f":{PORT}" in server.stdout.readline()
    there = {"PREFECT_API_URL": f"http://127.0.0.1:{PORT}/api"}
    return server, Project(small.root, {**env, **there, "PREFECT_API_AUTH_STRING": login(small.root / ".prefect")})


def test_a_server_that_was_killed_goes_on_with_the_schedule(small: Project, tmp_path: Path) -> None:
    log, env = tmp_path / "serve.log", dict(small.env)
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        env.pop(name)
    port = "45123"

    def start() -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "flows.server", "--port", port]
        server = subprocess.Popen(words, cwd=small.root, env=env, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None and f":{port}" in server.stdout.readline()
        return server

    server = start()
    home = small.root / ".prefect"
    mine = Project(
        small.root, {**env, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api", "PREFECT_API_AUTH_STRING": login(home)}
    )
    try:
        with started(mine, log, *SERVE, "online", "--name", "steady", "--every", "40"):
            first = wait_for(mine, "steady", log, auto_scheduled=True, state_type="COMPLETED")
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            time.sleep(45)  # a run is missed
            server, _ = own_server(small, env)
            again = until(
                lambda: [
                    run
                    for run in mine.api("flow_runs/filter", **asked(mine, "steady"), sort="START_TIME_DESC")
                    if run["state_type"] == "COMPLETED" and run["id"] != first["id"]
                ],
                log,
            )
            assert again
    finally:
        server.kill()
        server.wait()


def test_old_runs_leave_the_server(small: Project, tmp_path: Path) -> None:
    env = {name: value for name, value in small.env.items() if not name.startswith("PREFECT_API_")}
    server, mine = own_server(small, {**env, KEEP: "2", "PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS": "5"})
    try:
        flow = mine.api("flows/", name="pipeline")
        for name in ("old", "new"):
            mine.api("flow_runs/", flow_id=flow["id"], name=name, state={"type": "COMPLETED", "name": "Completed"})
        with closing(sqlite3.connect(small.root / ".prefect/prefect.db", timeout=60)) as database, database:
            database.execute("update flow_run set end_time = '2020-01-01 00:00:00.000000' where name = 'old'")
        until(lambda: [run["name"] for run in mine.api("flow_runs/filter")] == ["new"], tmp_path)
    finally:
        server.kill()
        server.wait()
