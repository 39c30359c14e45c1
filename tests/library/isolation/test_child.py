"""A child process that answers lines of JSON."""

from __future__ import annotations

import os
import sys

import pytest

from posttrain.isolation.child import Child, DiedError, TooSlowError

ECHO = """
import json, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked == "die":
        sys.exit(5)
    if asked == "sleep":
        time.sleep(60)
    print(json.dumps({"got": asked}), flush=True)
"""


def child() -> Child:
    return Child([sys.executable, "-c", ECHO], os.environ)


def test_answers() -> None:
    one = child()
    assert one.ask([1]) == {"got": [1]} and one.ask("b", seconds=20) == {"got": "b"} and one.alive is True
    one.kill()
    assert one.alive is False


def test_death_and_delay() -> None:
    dying = child()
    with pytest.raises(DiedError, match="exit status 5") as caught:
        dying.ask("die")
    assert caught.value.code == 5
    slow = child()
    with pytest.raises(TooSlowError):
        slow.ask("sleep", seconds=0.1)
    os.kill(slow.pid, 9)
    with pytest.raises(DiedError, match="killed by signal 9"):
        slow.ask("a", seconds=20)
