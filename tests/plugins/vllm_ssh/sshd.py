"""An ssh server of our own on loopback, with keys of its own: what `POSTTRAIN_SSH` reaches as any host name."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from posttrain.plugins.vllm_ssh.ssh import SSH
from posttrain.sampling.vllm.hosts import HOSTS
from posttrain.sampling.vllm.process import PYTHON
from tests.pipeline.engines.support import SERVER

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
needs_sshd = pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="needs OpenSSH: ssh and sshd")


@dataclass
class Sshd:
    """The server, and how it is reached."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int

    def command(self, *more: str, key: str = "user_key") -> str:
        """What POSTTRAIN_SSH says."""
        known = f"UserKnownHostsFile={self.folder / 'known_hosts'}"
        options = ["-F", "none", "-i", str(self.folder / key), "-p", str(self.port), "-o", known]
        options += ["-o", "HostKeyAlias=ours", "-o", "Hostname=127.0.0.1", "-o", "IdentitiesOnly=yes"]
        return shlex.join(["ssh", *options, "-o", f"User={getpass.getuser()}", *more])

    def sessions(self) -> list[psutil.Process]:
        """The processes of its connections."""
        return psutil.Process(self.process.pid).children()


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Sshd]:
    assert SSHD is not None
    for name in ("host_key", "user_key", "other_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copyfile(folder / "user_key.pub", folder / "authorized_keys")
    (folder / "known_hosts").write_text(f"ours {(folder / 'host_key.pub').read_text()}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "Port": port, "ListenAddress": "127.0.0.1", "HostKey": folder / "host_key", "PidFile": "none",
        "AuthorizedKeysFile": folder / "authorized_keys", "UsePAM": "no", "StrictModes": "no",
        "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no", "PermitRootLogin": "prohibit-password",
    }  # fmt: skip
    (folder / "config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it where it can change users
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "config")], stdout=log, stderr=log)
    try:
        listening = time.monotonic() + 10
        while time.monotonic() < listening and b"Server listening" not in (folder / "log").read_bytes():
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        yield Sshd(process, folder, port)
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.send_signal(signal.SIGTERM)
        process.wait()


INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
"""What `stages` sets where it is imported: other instructions round in another way."""


def use_hosts(
    patch: pytest.MonkeyPatch, sshd: Sshd, hosts: str = "far", *options: str, place: Path, faults: str = "", **more: str
) -> None:
    """Let servers run on these hosts, with the test server in place of vLLM's; the words go there with the command."""
    words = {"OMP_NUM_THREADS": "1", "ENGINE_FAULTS": faults, "ENGINE_FAULTS_DONE": str(place), **more}
    words |= {name: os.environ[name] for name in INSTRUCTIONS if name in os.environ}
    patch.setenv(HOSTS, hosts)
    patch.setenv(SSH, sshd.command(*options))
    patch.setenv(PYTHON, f"env {shlex.join(f'{name}={value}' for name, value in words.items())} {SERVER}")
