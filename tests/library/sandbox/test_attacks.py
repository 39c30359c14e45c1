"""Programs that attack: each is held, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from posttrain.sandbox.parent import Limits, Sandbox
from posttrain.sandbox.verdicts import run_program
from tests.library.sandbox.attacks import ATTACKS, HELD_BY_THE_KERNEL, OUTSIDE, PARENT, PORT, Attack

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the attacks use the numbers of x86-64")
SECONDS = 0.3
SECRET = "POSTTRAIN_ATTACK_SECRET"
DRIVER = Path(__file__).with_name("driver.py")
UNSHARE, LANDLOCK, SECCOMP = 272, 444, 317


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    os.environ[SECRET] = SECRET
    with Sandbox() as found:
        yield found
    assert not Path(found._base).exists()
    assert not psutil.pid_exists(found._process.pid)
    del os.environ[SECRET]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("outside"))
    (folder / "secret").write_text(SECRET)
    for one in (folder, *folder.parents[:2], folder / "secret"):
        one.chmod(0o777)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        yield listening


def written(attack: Attack, outside: Path, server: socket.socket) -> str:
    code = attack.code.replace(OUTSIDE, str(outside)).replace(PARENT, str(os.getpid()))
    return code.replace(PORT, str(server.getsockname()[1]))


def check(attack: Attack, printed: str, why: str) -> None:
    if attack.prints is not None:
        assert (printed.strip(), why) == (attack.prints, "")
    if attack.why is not None:
        # on a busy machine the clock's limit may come before the processor's
        assert attack.why in why or (attack.why == "processor time" and "longer than" in why), why
    assert SECRET not in printed + why


def nothing_left(outside: Path, server: socket.socket) -> None:
    assert [one.name for one in outside.iterdir()] == ["secret"]
    found = (outside / "secret").stat()
    assert (outside / "secret").read_text() == SECRET
    assert found.st_mode & 0o777 == 0o777 and found.st_mtime > 1e9 and found.st_nlink == 1
    for folder in ("/", "/tmp", "/var/tmp", "/dev/shm", "/etc"):
        assert not Path(folder, "posttrain-attack").exists()
    with pytest.raises(BlockingIOError):
        server.accept()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_held(attack: Attack, box: Sandbox, outside: Path, server: socket.socket) -> None:
    if attack.scratch and "namespaces" not in box.mechanisms:
        pytest.skip("a scratch folder needs namespaces")
    printed, why, seconds = run_program(box, written(attack, outside, server), "", Limits(seconds=SECONDS))
    check(attack, printed, why)
    assert seconds < 3 * SECONDS
    assert psutil.Process(box._process.pid).children(recursive=True) == []
    nothing_left(outside, server)


def test_a_call_of_32_bit_code_ends_the_program(box: Sandbox) -> None:
    code = "import ctypes, mmap\npage = mmap.mmap(-1, 4096, prot=7)\n"
    code += "page.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))\n"  # mov eax, 20; int 0x80; ret
    code += "print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())"
    assert run_program(box, code, "", Limits())[:2] == ("", "it was ended by SIGSYS")


def test_programs_see_nothing_of_each_other(box: Sandbox) -> None:
    first = "import sys, os\nsys.modules['json'] = None\nopen('left', 'w').write('x') if os.access('.', os.W_OK) else 0"
    run_program(box, first, "", Limits())
    second = "import json, os\ntry: print(os.listdir())\nexcept OSError: print([])"
    assert run_program(box, second, "", Limits())[:2] == ("[]\n", "")


@pytest.mark.slow
def test_the_end_of_the_parent_ends_all() -> None:
    code = (
        "import os, sys, threading, time\nfrom posttrain.sandbox.parent import *\n"
        "from posttrain.sandbox.verdicts import *\n"
    )
    code += "box = Sandbox()\nprint(box._process.pid, flush=True)\n"
    code += "run_program(box, 'while True: pass', '', Limits(seconds=100))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        zygote = psutil.Process(int(parent.stdout.readline()))
        while not (children := zygote.children()):
            pass
        parent.kill()
        gone, alive = psutil.wait_procs([zygote, *children], timeout=20)
    assert not alive and len(gone) == 2


def drive(
    attacks: list[Attack], denied: list[int], user: int | None, outside: Path, server: socket.socket
) -> dict[str, object]:
    """What the driver says, as another user where one is named."""
    words = [sys.executable if user is None else str(shutil.which("python3", path="/usr/bin")), "-S", "-B", str(DRIVER)]
    if user is not None:
        words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *words]
    programs = [written(attack, outside, server) for attack in attacks]
    request = json.dumps({"denied": denied, "programs": programs, "seconds": SECONDS})
    done = subprocess.run(
        words, input=request, capture_output=True, text=True, env={**os.environ, SECRET: SECRET}, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


MACHINES = {
    "without user namespaces": ([UNSHARE], None, {"landlock", "seccomp"}),
    "without Landlock": ([LANDLOCK], None, {"namespaces", "seccomp"}),
    "ordinary user": ([], 54_321, {"namespaces", "landlock", "seccomp"}),
    "ordinary user without user namespaces": ([UNSHARE], 54_321, {"landlock", "seccomp"}),
    "ordinary user without Landlock": ([LANDLOCK], 54_321, {"namespaces", "seccomp"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_with_fewer_mechanisms_holds_as_well(
    name: str, box: Sandbox, outside: Path, server: socket.socket
) -> None:
    denied, user, mechanisms = MACHINES[name]
    if user is not None and os.geteuid() != 0:
        pytest.skip("only root can be another user")
    if not mechanisms <= {*box.mechanisms}:
        pytest.skip(f"this machine has only {box.mechanisms}")
    attacks = [one for one in HELD_BY_THE_KERNEL if "namespaces" in mechanisms or not one.scratch]
    answer = drive(attacks, denied, user, outside, server)
    assert {*answer["mechanisms"]} == mechanisms  # type: ignore[misc]
    for attack, (printed, why) in zip(attacks, answer["results"], strict=True):  # type: ignore[arg-type, call-overload]
        check(attack, printed, why)
    nothing_left(outside, server)


@pytest.mark.slow
@pytest.mark.parametrize("denied", [[UNSHARE, LANDLOCK], [UNSHARE, LANDLOCK, SECCOMP]], ids=["no files", "nothing"])
def test_a_machine_that_cannot_isolate_refuses(denied: list[int], outside: Path, server: socket.socket) -> None:
    error = str(drive([], denied, None, outside, server)["error"])
    assert (
        "cannot isolate programs (namespaces: [Errno 1] unshare: Operation not permitted; landlock: the kernel has none"
        in error
    )
    assert "sandbox: none" in error and "\n" not in error
