"""Several children: jobs in order, and successors of those that die."""

from __future__ import annotations

import os
import sys

import pytest

from posttrain.isolation.child import Child, DiedError, TooSlowError
from posttrain.isolation.pool import Pool
from tests.library.isolation.test_child import ECHO


def pool() -> Pool:
    return Pool(lambda: Child([sys.executable, "-c", ECHO], os.environ), 2)


def test_jobs_keep_their_order() -> None:
    some = pool()
    assert some.map(lambda job: some.ask(job, 20)["got"], [1, 2, 3, 4]) == [1, 2, 3, 4]


def test_a_child_that_dies_has_a_successor() -> None:
    some = pool()
    with pytest.raises(DiedError, match="its worker process died 2 times"):
        some.ask("die", 20)
    with pytest.raises(TooSlowError):
        some.ask("sleep", 0.1)
    assert some.ask("a", 20) == {"got": "a"}
