"""One project per test, and one Prefect server for all of them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.server import login
from tests.pipeline.flows.project import DVC_YAML, PYTHON, STEP, SUB_YAML, Project, clean_env
from tests.pipeline.flows.small import make_small
from tests.pipeline.flows.webhook import Webhook


@pytest.fixture(scope="session")
def server_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("server")
    (root / ".dvc").mkdir()
    return root


@pytest.fixture(scope="session")
def server(server_root: Path) -> Iterator[str]:
    """The API of one server for the whole session, started the way `make ui` starts it."""
    root = server_root
    command = [sys.executable, "-m", "flows.server", "--port", "0"]
    process = subprocess.Popen(command, cwd=root, env=clean_env(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "http://127.0.0.1:" in said
        yield json.loads((root / ".prefect" / "server.json").read_text())["url"]
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        assert not (root / ".prefect" / "server.json").exists()
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def server_env(server: str, server_root: Path) -> dict[str, str]:
    """What points a command to that server."""
    return {"PREFECT_API_URL": server, "PREFECT_API_AUTH_STRING": login(server_root / ".prefect")}


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "project"
    (root / "sub").mkdir(parents=True)
    step = f"{PYTHON} step.py"
    (root / "step.py").write_text(STEP)
    (root / "dvc.yaml").write_text(DVC_YAML.format(step=step))
    (root / "sub" / "dvc.yaml").write_text(SUB_YAML.format(step=step))
    (root / ".gitignore").write_text("*.txt\nseen/\ntrouble.json\n.prefect/\n")
    project = Project(root, clean_env())
    project.runs({}, {})
    project.trouble()
    for words in (["init", "-q"], ["config", "user.email", "a@example.com"], ["config", "user.name", "A"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    project.dvc("init", "-q")
    for key in ("analytics", "autostage", "check_update"):
        project.dvc("config", f"core.{key}", "false")
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    subprocess.run(["git", "commit", "-qm", "begin"], cwd=root, check=True)
    return root


@pytest.fixture
def bare(template: Path, tmp_path: Path) -> Project:
    """A project that no server is told to."""
    shutil.copytree(template, tmp_path / "project")
    return Project(tmp_path / "project", clean_env())


@pytest.fixture
def project(bare: Project, server_env: dict[str, str]) -> Project:
    return Project(bare.root, {**bare.env, **server_env, "PREFECT_HOME": str(bare.root / ".prefect")})


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def small(tmp_path: Path, server_env: dict[str, str]) -> Project:
    """A committed project with one run."""
    return make_small(tmp_path, server_env)
