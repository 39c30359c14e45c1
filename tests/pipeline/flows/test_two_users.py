"""Another user of the same host: what we keep secret stays so, and nothing that they leave about is run by us."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.server import login
from posttrain.pipeline.lock.repair_dvc import repair_lock
from tests.pipeline.flows.project import Project
from tests.pipeline.flows.test_origin_check import ask

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
OTHER = 54_321
"""A user id that nobody has."""
SPY = """
import os, sys
def hook(event, arguments):
    path = arguments[0] if event in ("open", "sqlite3.connect") else None
    if isinstance(path, (str, bytes)) and os.fsdecode(path).startswith(tuple(os.environ["SPY_AT"].split(":"))):
        handle = os.open(os.environ["SPY_TO"], os.O_WRONLY | os.O_APPEND)
        os.write(handle, os.fsencode(path) + b"\\n")
        os.close(handle)
sys.addaudithook(hook)
"""
"""As sitecustomize.py: notes every file that a Python opens below these folders."""


def as_other(act: Callable[[], object]) -> str:
    """Call it in a child that is the other user; what it gave, or the name of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            try:
                answer = repr(act())
            except Exception as error:  # noqa: BLE001
                answer = type(error).__name__
            os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return answer


@pytest.fixture
def open_project(bare: Project) -> Iterator[Project]:
    """A project where everybody can enter and read, as in a shared folder of a host."""
    shared = Path(tempfile.mkdtemp(prefix="two-users"))
    shared.chmod(0o755)
    shutil.copytree(bare.root, shared / "project")
    (shared / "project").chmod(0o755)
    yield Project(shared / "project", bare.env)
    shutil.rmtree(shared)


@pytest.mark.slow
def test_another_user_cannot_read_the_login_or_write_where_dvc_unpickles(open_project: Project) -> None:
    root = open_project.root
    secret, _ = login(root / ".prefect"), repair_lock(root)
    open_project.dvc("status")
    assert as_other((root / "params.yaml").read_text) == repr((root / "params.yaml").read_text()), "it can enter"
    site = root / ".dvc/tmp/site"
    planted = next(file for file in site.rglob("*") if file.is_file())
    tries: dict[str, Callable[[], object]] = {
        "the login": (root / ".prefect/login").read_text,
        "Prefect's folder": lambda: list((root / ".prefect").iterdir()),
        "a file beside the login": (root / ".prefect/server.json").touch,
        "the site cache": lambda: list(site.iterdir()),
        "what lies there": lambda: planted.write_bytes(b"cos\nsystem\n"),
        "a new file there": (site / "planted").touch,
        "DVC's other files": (root / ".dvc/tmp/planted").touch,
    }
    assert {name: as_other(act) for name, act in tries.items()} == dict.fromkeys(tries, "PermissionError")
    assert secret not in as_other(_command_lines)


@pytest.mark.slow
def test_the_api_refuses_another_user(server: str, server_root: Path) -> None:
    secret = login(server_root / ".prefect")
    assert ask(server, "/health", {}, "GET")[0] == 200  # also imports what the other user may not read
    assert as_other(lambda: ask(server, "/health", {}, "GET")[0]) == "200", "it can reach it"
    assert as_other(lambda: ask(server, "/admin/version", {}, "GET")[0]) == "401"
    assert as_other(lambda: ask(server, "/flows/", {"Content-Type": "application/json"})[0]) == "403"
    lines = as_other(_command_lines)
    assert "flows.server" in lines and secret not in lines, "no command line shows it"
    assert as_other(_environments) == "''", "and no environment"


@pytest.mark.slow
def test_nothing_that_another_user_could_have_left_is_opened(open_project: Project, tmp_path: Path) -> None:
    """Neither DVC nor a flow opens a file in the folders that all users share; what opens one is noted."""
    shared, noted = open_project.root.parent / "tmp", tmp_path / "noted"
    shared.mkdir()
    shared.chmod(0o1777)
    noted.touch()
    (tmp_path / "sitecustomize.py").write_text(SPY)
    env = {
        **open_project.env, "TMPDIR": str(shared), "SPY_TO": str(noted), "SPY_AT": f"{shared}:/var/tmp:/dev/shm",
        "PYTHONPATH": f"{tmp_path}:{open_project.env['PYTHONPATH']}",
    }  # fmt: skip
    repair_lock(open_project.root)
    for words in (["-m", "dvc", "repro", "prepare"], ["-m", "flows.pipeline"]):
        subprocess.run([sys.executable, *words], cwd=open_project.root, env=env, check=True, capture_output=True)
    probe = f"open({str(shared / 'probe')!r}, 'w').close()"
    subprocess.run([sys.executable, "-c", probe], env=env, check=True)
    assert noted.read_text().splitlines() == [str(shared / "probe")]


def _command_lines() -> str:
    return "\n".join(_read(file) for file in Path("/proc").glob("[0-9]*/cmdline"))


def _environments() -> str:
    """What the other user can read of our processes."""
    return "".join(_read(file) for file in Path("/proc").glob("[0-9]*/environ"))


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def test_what_cannot_be_killed_does_not_stop_what_ends_the_rest() -> None:
    """A command may have started a process of another user; the others are killed, and files removed, all the same."""
    words = [
        "import os, subprocess",
        "from posttrain.isolation import keeper",
        "theirs = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)",
        "print(theirs.pid, flush=True)",
        f"os.setuid({OTHER})",
        "keeper.PATIENCE_S = 0.2",
        "keeper.kill_all(theirs.pid)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(words)], capture_output=True, text=True)
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == 0, done.stderr
