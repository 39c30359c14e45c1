"""What runs inside of the sandbox: a program's calls, and tests that count."""

from __future__ import annotations

import socket
import threading
from typing import Any

from posttrain.sandbox.child import answer_calls, run_tests


def judged(code: str, tests: str, entry: str | None = "f", *, share: bool = False) -> dict[str, Any]:
    """The verdict of tests on a program that runs in a thread."""
    given = {"code": code, "tests": tests, "setup": "", "entry_point": entry, "share": share}
    ours, theirs = socket.socketpair()
    program = threading.Thread(target=answer_calls, args=(given, theirs))
    program.start()
    try:
        return run_tests(given, ours)
    finally:
        ours.close()
        program.join()
        theirs.close()


def test_verdicts() -> None:
    tests = "assert f(1) == 2\nassert f(2) == 3"
    right = judged("def f(x): return x + 1", tests)
    assert (right["passed"], right["failed"], right["count"], right["fault"]) == (2, 0, 2, "")
    half = judged("def f(x): return 2", tests, share=True)
    assert (half["passed"], half["failed"], half["count"]) == (1, 1, 2) and "assert f(2) == 3" in half["reason"]
    broken = judged("def f(x: return 2", tests)
    assert (broken["passed"], broken["failed"], broken["count"]) == (0, 1, 2) and "SyntaxError" in broken["reason"]
    raised = judged("def f(x): raise KeyError('a')", tests)
    assert raised["passed"] == 0 and "KeyError" in raised["reason"]
