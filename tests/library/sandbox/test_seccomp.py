"""The filter of system calls, decoded and followed step by step."""

from __future__ import annotations

import errno
import struct

import pytest

from posttrain.sandbox import seccomp
from posttrain.sandbox.seccomp import ALLOW, AUDIT, ERROR, FCNTLS, KILL, OWN, PLAIN, filter_code

DENY, MISSING = ERROR | errno.EPERM, ERROR | errno.ENOSYS


def answer(code: bytes, number: int, *arguments: int, architecture: int = AUDIT["x86_64"]) -> int:
    """What the kernel answers to a call, by the rules of classic BPF."""
    steps = list(struct.iter_unpack("<HBBI", code))
    data = {0: number, 4: architecture, **{16 + 8 * place: value for place, value in enumerate(arguments)}}
    at, value = 0, 0
    while True:
        kind, yes, no, operand = steps[at]
        if kind == seccomp.RETURN:
            return operand
        if kind == seccomp.LOAD:
            value = data.get(operand, 0)
            at += 1
            continue
        holds = value == operand if kind == seccomp.EQUAL else bool(value & operand)
        at += 1 + (yes if holds else no)


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(seccomp, "machine", lambda: "x86_64")
    return filter_code()


def test_plain_calls_are_allowed_with_any_arguments(code: bytes) -> None:
    for row in PLAIN.replace("\n", "|").strip("|").split("|"):
        _, number, _ = row.split()
        assert answer(code, int(number), 77) == ALLOW, row


@pytest.mark.parametrize("number", [57, 58, 59, 41, 42, 101, 165, 425, 9999])
def test_other_calls_are_denied(code: bytes, number: int) -> None:
    """fork, vfork, execve, socket, connect, ptrace, mount, io_uring_setup, and one that is not there yet."""
    assert answer(code, number) == DENY


def test_another_architecture_ends_the_process(code: bytes) -> None:
    assert answer(code, 0, architecture=0x40000003) == KILL


def test_calls_that_depend_on_an_argument(code: bytes) -> None:
    assert answer(code, 435) == MISSING, "clone3"
    assert (answer(code, 56, 0x10000), answer(code, 56, 0x11)) == (ALLOW, DENY), "clone of a thread, of a process"
    assert (answer(code, 62, OWN), answer(code, 62, 1)) == (ALLOW, DENY), "kill of itself, of another"
    assert (answer(code, 302, 0), answer(code, 302, 1)) == (ALLOW, DENY), "prlimit"
    assert (answer(code, 53, 1, 1), answer(code, 53, 1, 2)) == (ALLOW, DENY), "socketpair of a stream, of datagrams"
    assert (answer(code, 16, 0, 0x5401), answer(code, 16, 0, 0x5412)) == (ALLOW, DENY), "ioctl"
    assert [answer(code, 72, 0, one) for one in FCNTLS] == [ALLOW] * len(FCNTLS)
    assert answer(code, 72, 0, 8) == DENY, "fcntl that sets the owner of a file"


def test_a_call_with_two_values(code: bytes) -> None:
    """A thread that also shares memory is a thread."""
    assert seccomp._if_argument(56, 0, [5], seccomp.ANY_BIT) == [
        (seccomp.EQUAL, 0, 4, 56),
        (seccomp.LOAD, 0, 0, 16),
        (seccomp.ANY_BIT, 0, 1, 5),
        (seccomp.RETURN, 0, 0, ALLOW),
        (seccomp.RETURN, 0, 0, DENY),
    ]
    assert len(code) % 8 == 0 and answer(code, 56, 0x10F00) == ALLOW
