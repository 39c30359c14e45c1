"""Hostile replies of a real server to the clients of rewards: each client has 2 GB of address space."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.faults.replies import CLIENTS, TEACHER, Hostile, asked, replies, serving
from tests.marks import slow_except

COMPRESSED = ("gzip, gzip", "gzip", "deflate of an error")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, dict[str, Hostile]]]:
    found = replies()
    with serving(found) as url:
        yield url, found


@pytest.mark.parametrize("client", slow_except(("judge",), (*CLIENTS, TEACHER)))
@pytest.mark.parametrize("name", COMPRESSED)
def test_a_compressed_reply_is_not_unpacked(server: tuple[str, dict[str, Hostile]], client: str, name: str) -> None:
    url, found = server
    said = asked(client, f"{url}/{list(found).index(name)}")
    assert "compressed" in said["outcome"] and said["mb"] < 1000, said


@pytest.mark.slow
def test_every_reply_has_an_outcome(server: tuple[str, dict[str, Hostile]]) -> None:
    url, found = server
    for number, name in enumerate(found):
        said = asked("judge", f"{url}/{number}")
        assert not said["outcome"].startswith("ENDED") and said["mb"] < 500, (name, said)
