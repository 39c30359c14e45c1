"""Runs programs in a sandbox on a machine without some of the kernel's mechanisms, or as another user.

Started as a file: it reads {denied, programs, seconds} from stdin and prints {mechanisms, results} or {error}. It
imports nothing but the standard library, so that another user's Python can run it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import struct
import sys
import types
from pathlib import Path


def deny(numbers: list[int]) -> None:
    """Let these system calls fail for good, as a container's own filter does."""
    rows = [(0x20, 0, 0, 0)]
    for number in numbers:
        rows += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | errno.EPERM)]
    rows.append((0x06, 0, 0, 0x7FFF0000))
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
    header = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(rows), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(38, ctypes.c_ulong(1), zero, zero, zero) or libc.prctl(
        22, ctypes.c_ulong(2), ctypes.c_void_p(ctypes.addressof(header)), zero, zero
    ):
        raise OSError(ctypes.get_errno(), "cannot deny system calls")


def main() -> None:
    """Run the programs one after the other."""
    package = types.ModuleType("posttrain")
    package.__path__ = [str(Path(__file__).resolve().parents[3] / "posttrain")]
    sys.modules["posttrain"] = package
    from posttrain.sandbox.parent import Limits, Sandbox, SandboxError
    from posttrain.sandbox.verdicts import run_program

    request = json.load(sys.stdin)
    if request["denied"]:
        deny(request["denied"])
    try:
        box = Sandbox()
    except SandboxError as error:
        print(json.dumps({"error": str(error)}))
        return
    with box:
        limits = Limits(seconds=request["seconds"])
        results = [run_program(box, code, "", limits)[:2] for code in request["programs"]]
        print(json.dumps({"mechanisms": box.mechanisms, "results": results}))


if __name__ == "__main__":
    main()
