"""The same stages in other surroundings write the same bytes; docs/reproducibility.md says what that promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults.surroundings import OTHER, PLAIN, all_others, made


@pytest.fixture(scope="module")
def plain(smoke_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return made(smoke_workspace, tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.mark.slow
def test_everything_different_at_once(plain: dict[str, str], smoke_workspace: Path, tmp_path: Path) -> None:
    assert made(smoke_workspace, tmp_path, all_others()) == plain


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER)
def test_one_thing_different(name: str, plain: dict[str, str], smoke_workspace: Path, tmp_path: Path) -> None:
    assert made(smoke_workspace, tmp_path, OTHER[name]) == plain


@pytest.mark.slow
def test_another_number_of_threads_repeats_itself(plain: dict[str, str], smoke_workspace: Path, tmp_path: Path) -> None:
    """What is promised: the parameter `device.threads` decides, not the machine; the tables do not depend on it."""
    one, two = (made(smoke_workspace, tmp_path / name, PLAIN, threads=2) for name in ("one", "two"))
    assert one == two
    tables = [f"data/two_step/{kind}.parquet" for kind in ("corpus", "chat", "prompts")]
    assert {name: one[name] for name in tables} == {name: plain[name] for name in tables}
