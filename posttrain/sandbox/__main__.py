"""`python -m posttrain.sandbox`: show which isolation mechanisms this machine offers."""

from __future__ import annotations

import sys
import time

from posttrain.sandbox.parent import ISOLATED, Limits, Sandbox, SandboxError, SandboxFailed
from posttrain.sandbox.verdicts import run_program

GIVES = {
    "namespaces": "a file system with only Python, a scratch folder in memory, no network",
    "landlock": "no other file can be read, and no file can be written outside the scratch folder",
    "seccomp": "no new process, socket, signal to others, or other call that a program does not need",
}


def main() -> int:
    """Print the mechanisms. Exit with 1 if programs cannot be isolated."""
    try:
        box = Sandbox()
    except (SandboxError, SandboxFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with box:
        for name in ISOLATED:
            print(f"{name:<12}{GIVES[name] if name in box.mechanisms else f'missing: {box.faults[name]}'}")
        start = time.perf_counter()
        run_program(box, "print(1)", "", Limits())
        took = 1000 * (time.perf_counter() - start)
        scratch = "" if "namespaces" in box.mechanisms else " They have no scratch folder, which needs namespaces."
        print(f"Programs are isolated; one took {took:.0f} ms.{scratch}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
