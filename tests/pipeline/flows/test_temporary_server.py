"""A flow's own server is started again if it dies; one that cannot start is given up at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from flows import temporary_server
from flows.server import Lock, api, listen
from flows.temporary_server import STARTS, TemporaryServer
from posttrain.errors import PipelineError
from tests.pipeline.flows.project import Project

ANSWERS_ONCE = """
import os, socket, sys
connection, _ = socket.socket(fileno=int(sys.argv[1])).accept()
connection.recv(4096)
connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + str(os.getpid()).encode())
connection.close()
"""
"""A server that dies after one answer. It is here because Prefect's takes seconds to start."""


def made(folder: Path, program: str) -> TemporaryServer:
    """A server that runs a program, which gets the number of the socket."""
    listener = listen(0)
    command = [sys.executable, "-c", program, str(listener.fileno())]
    start = Lock(folder / "starting")
    return TemporaryServer(folder, api(listener), listener, command, {**os.environ}, folder / "log", start)


def test_one_that_dies_is_started_again_and_given_up_in_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server = made(tmp_path, ANSWERS_ONCE)
    server.watch()
    server.wait()
    until = time.monotonic() + 60
    while server.listener.fileno() >= 0:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert capfd.readouterr().err.count("Prefect's server has ended; starting it again. Its log: ") == STARTS - 1
    assert not temporary_server.answers(server.url)
    Lock(tmp_path / "starting").release()
    server.stop()


def test_one_that_never_answers_is_not_started_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server = made(tmp_path, "raise SystemExit('the database is damaged')")
    server.watch()
    with pytest.raises(PipelineError, match="Prefect's server did not start"):
        server.wait()
    assert "the database is damaged" in server.log.read_text()
    assert "starting it again" not in capfd.readouterr().err


def test_one_that_was_stopped_is_not_started_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    server = made(tmp_path, "import time; time.sleep(600)")
    server.watch()
    server.stop()
    assert server._process is not None and server._process.poll() == -signal.SIGTERM
    assert "starting it again" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_flow_whose_server_is_killed_runs_to_its_end(bare: Project) -> None:
    bare.trouble(prepare={"seconds": 8}, left={"seconds": 3})
    flow = bare.start()
    for stage in ("prepare", "left"):  # the second time while the next server may still start
        bare.wait_begun(stage)
        (server,) = _servers(flow.pid)
        server.send_signal(signal.SIGKILL)
        server.wait(timeout=10)
    ended = bare.finish(flow)
    assert ended.code == 0, ended.err
    assert set(ended.states.values()) == {"Completed"}
    assert ended.err.count("Prefect's server has ended; starting it again") == 2
    assert not [place for place in bare.processes() if place]


@pytest.mark.slow
def test_a_flow_that_loses_a_server_that_stays_says_so_and_ends(bare: Project) -> None:
    """A permanent server is its user's to start again. Events that cannot be sent do not keep the flow from ending."""
    words = [sys.executable, "-m", "flows.server", "--port", "0"]
    with subprocess.Popen(words, cwd=bare.root, env=bare.env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and "http://127.0.0.1:" in server.stdout.readline()
        bare.trouble(prepare={"seconds": 3})
        flow = replace(bare, env={**bare.env, "PREFECT_CLIENT_MAX_RETRIES": "1"}).start()
        bare.wait_begun("prepare")
        server.kill()
    ended = bare.finish(flow)
    assert ended.code == 1 and "Prefect's server has stopped answering" in ended.err
    assert "Still processing items" not in ended.err
    assert (bare.root / "prepare.txt").exists(), "a running stage finishes"


def _servers(flow: int) -> list[psutil.Process]:
    return [one for one in psutil.Process(flow).children() if "flows.server" in one.cmdline()]
