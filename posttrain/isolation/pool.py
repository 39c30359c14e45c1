"""Several children of one kind. A child that takes too long or dies is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from posttrain.isolation.child import Child, DiedError, TooSlowError

J = TypeVar("J")
R = TypeVar("R")
TRIES = 2
"""The number of children that may die on the same request."""


class Pool:
    """Children made by `start`, up to a maximum number at a time.

    Example: `Pool(lambda: Child(command, environment), 2).ask(request, seconds=10.0)`
    """

    def __init__(self, start: Callable[[], Child], size: int) -> None:
        self._start = start
        # Kept: a child may end with the thread that started it (PR_SET_PDEATHSIG).
        self._threads = ThreadPoolExecutor(size)
        self._idle: SimpleQueue[Child | None] = SimpleQueue()
        for _ in range(size):
            self._idle.put(None)  # a child that is not started yet

    def map(self, function: Callable[[J], R], jobs: Iterable[J]) -> list[R]:
        """Return the results of a function that may call `ask`. At most one job per child runs at a time."""
        return list(self._threads.map(function, jobs))

    def ask(self, request: Any, seconds: float) -> dict[str, Any]:
        """Return the answer of an idle child.

        A child that dies is replaced and the request sent again, up to TRIES times.
        """
        for tries in range(1, TRIES + 1):
            child = self._idle.get()
            try:
                child = child or self._start()
                answer: dict[str, Any] = child.ask(request, seconds)
                return answer
            except (DiedError, TooSlowError) as error:
                if child is not None:
                    child.kill()
                    child = None
                if isinstance(error, TooSlowError):
                    raise
                if tries == TRIES:
                    raise DiedError(f"its worker process died {TRIES} times ({error})", error.code) from error
            finally:
                self._idle.put(child)
        raise AssertionError("the last try returns or raises")
