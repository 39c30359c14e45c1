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
from flows.temporary_server import TemporaryServer
from posttrain.errors import PipelineError
from tests.pipeline.flows.project import Project

ANSWERS = """
import os, pathlib, socket, sys
started = pathlib.Path("started")
started.write_text(f"{started.read_text() if started.exists() else ''}x")
if "%s"[len(started.read_text()) - 1 :][:1] != "a":
    sys.exit(3)
while True:
    connection, _ = socket.socket(fileno=os.dup(int(sys.argv[1]))).accept()
    connection.recv(4096)
    try:
        connection.recv(1, socket.MSG_DONTWAIT)  # a client that did not wait any longer has closed it
    except BlockingIOError:
        break
connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
connection.close()
"""
"""A server that dies after one answer where its turn has an `a`, else at once: Prefect's takes seconds to start."""


def made(folder: Path, program: str) -> TemporaryServer:
    """A server that runs a program, which gets the number of the socket."""
    listener = listen(0)
    command = [sys.executable, "-c", program, str(listener.fileno())]
    start = Lock(folder / "starting")
    return TemporaryServer(folder, api(listener), listener, command, {**os.environ}, folder / "log", start)


@pytest.mark.parametrize(
    ("turns", "again"),
    [("aaaa", 4 + 2), ("daad", 2 + 1 + 2), ("ddd", 2)],
    ids=["dies often", "dies at its first start", "never answers"],
)
def test_one_that_dies_is_started_again_until_it_dies_three_times_before_it_answers(
    turns: str, again: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    server = made(tmp_path, ANSWERS % turns)
    server.watch()
    if "a" in turns:
        server.wait()
    else:
        with pytest.raises(PipelineError, match=r"Prefect's server did not start \(exit code 3\)"):
            server.wait()
    until = time.monotonic() + 60
    while server.listener.fileno() >= 0:
        assert time.monotonic() < until
        time.sleep(0.05)
    said = capfd.readouterr().err
    assert said.count("; starting it again. Its log: ") == again, said
    assert said.count("Prefect's server has ended (exit code 3); giving it up. Its log: ") == 1
    assert not temporary_server.answers(server.url)
    Lock(tmp_path / "starting").release()
    server.stop()


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
    assert ended.err.count("Prefect's server has ended (signal 9); starting it again") == 2
    assert not [place for place in bare.processes() if place]


@pytest.mark.slow
def test_a_flow_that_loses_a_server_that_stays_says_so_and_ends(bare: Project) -> None:
    """A permanent server is its user's to start again. Events that cannot be sent do not keep the flow from ending."""
    words = [sys.executable, "-m", "flows.server", "--port", "0"]
    with subprocess.Popen(words, cwd=bare.root, env=bare.env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and "http://127.0.0.1:" in server.stdout.readline()
        bare.trouble(prepare={"seconds": 12})
        flow = replace(bare, env={**bare.env, "PREFECT_CLIENT_MAX_RETRIES": "1"}).start()
        bare.wait_begun("prepare")
        server.kill()
    ended = bare.finish(flow)
    assert ended.code == 1 and "Prefect's server has stopped answering" in ended.err
    assert "does not answer. Start it again: `posttrain server`" in ended.err
    assert "Still processing items" not in ended.err
    assert (bare.root / "prepare.txt").exists(), "a running stage finishes"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_flow_without_its_server_can_be_interrupted(bare: Project, number: signal.Signals) -> None:
    """Prefect alone would repeat its calls for minutes."""
    words = [sys.executable, "-m", "flows.server", "--port", "0"]
    with subprocess.Popen(words, cwd=bare.root, env=bare.env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and "http://127.0.0.1:" in server.stdout.readline()
        bare.trouble(prepare={"seconds": 600})
        flow = bare.start()
        bare.wait_begun("prepare")
        server.kill()
    flow.send_signal(number)
    ended = bare.finish(flow)
    assert ended.code == 128 + number, ended.err
    assert "Prefect's server has stopped answering" in ended.err
    assert not [place for place in bare.processes() if place] and not (bare.root / "prepare.txt").exists()


def _servers(flow: int) -> list[psutil.Process]:
    return [one for one in psutil.Process(flow).children() if "flows.server" in one.cmdline()]
