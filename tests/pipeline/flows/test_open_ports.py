"""What a schedule opens: no port without a login, and none that a page of another site may use; SIGTERM closes them."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.pipeline.flows.project import Project
from tests.pipeline.flows.test_origin_check import ask
from tests.workspace import ROOT, run

PARSERS = {
    "deploy": ["serve", "--cron", "0 3 * * *", "--watch", "data"],
    "pipeline": ["online", "--force"],
    "server": ["--port", "4201"],
    "sweep": ["k", "--seeds", "1,2", "-S", "a.b=1"],
    "workers": ["--name", "big"],
}


@pytest.mark.slow
@pytest.mark.parametrize("module", PARSERS)
def test_parsing_a_command_line_imports_no_prefect(module: str) -> None:
    """Prefect reads PREFECT_API_URL when it is imported: before that is set it would start a server without a login."""
    program = (
        f"import sys; from flows.{module} import parser; parser().parse_args({PARSERS[module]!r}); "
        "print([name for name in sys.modules if name.partition('.')[0] == 'prefect'])"
    )
    done = run(ROOT, sys.executable, "-c", program)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stdout


def listening(process: psutil.Process) -> set[int]:
    """The ports that a process and its children have opened."""
    found = set()
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # ended meanwhile
            found |= {each.laddr.port for each in one.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    return found


EVIL = {"Origin": "https://evil.example"}
REQUESTS = (("/admin/version", {}), ("/admin/version", EVIL), ("/health", EVIL))


def refusal(port: int, path: str, headers: dict[str, str]) -> int:
    """The status of the answer to a request without login; 0 where no web server answers, as on Prefect's own channel
    to the runs of a schedule."""
    try:
        status, replied = ask(f"http://127.0.0.1:{port}/api", path, headers, "GET")
    except (http.client.HTTPException, OSError):
        return 0
    assert "access-control-allow-origin" not in replied
    return status


@pytest.mark.slow
def test_a_schedule_in_a_scripts_background_opens_only_ports_with_a_login_and_ends_by_sigterm(
    bare: Project, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    # A shell without job control starts this with SIGINT ignored.
    script = 'exec 2>&1; "$0" -m flows.deploy serve --cron "0 3 * * *" & echo $!; wait'
    with log.open("wb") as sink:
        shell = subprocess.Popen(["sh", "-c", script, sys.executable], cwd=bare.root, env=bare.env, stdout=sink)
    try:
        end = time.monotonic() + 120
        while "serving pipeline/scheduled" not in log.read_text():
            assert shell.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        service = psutil.Process(int(log.read_text().split()[0]))
        time.sleep(3)  # what it would open by itself comes with its first request
        refused = {port: [refusal(port, *request) for request in REQUESTS] for port in listening(service)}
        assert [found for found in refused.values() if any(found)] == [[401, 403, 403]], (refused, log.read_text())
        service.terminate()
        service.wait(timeout=60)
        assert shell.wait(timeout=10) == 0
    finally:
        for one in psutil.Process(shell.pid).children(recursive=True) if shell.poll() is None else ():
            one.kill()
        shell.kill()
        shell.wait()
