"""A run shared by several processes is the run of one: every objective, to rounding."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.processes.differences import largest
from tests.processes.every_objective import names
from tests.processes.launched import launch

MODULE = "tests.processes.every_objective"
LIMITS = {"float64": 1e-12, "float32": 1e-6}
TRPO_LIMIT = 1e-9
"""In float64: a few steps of conjugate gradients magnify rounding."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


def results(place: Path, size: int, dtype: str, shards: int = 0, again: str = "") -> Path:
    folder = place / f"{size}-{dtype}-{shards}{again}"
    if not (folder / "metrics.json").exists():
        launch(MODULE, size, folder, str(folder), dtype, str(shards))
    return folder


@pytest.mark.parametrize(
    ("size", "dtype", "shards"),
    [
        (2, "float64", 0),
        pytest.param(4, "float64", 0, marks=pytest.mark.slow),
        pytest.param(4, "float64", 2, marks=pytest.mark.slow),
        pytest.param(2, "float32", 0, marks=pytest.mark.slow),
        pytest.param(4, "float32", 0, marks=pytest.mark.slow),
    ],
    ids=["2-float64", "4-float64", "2x2-float64", "2-float32", "4-float32"],
)
def test_several_processes_train_what_one_does(place: Path, size: int, dtype: str, shards: int) -> None:
    one, several = results(place, 1, dtype), results(place, size, dtype, shards)
    found = largest(one, several)
    assert found.keys() == set(names())
    limit = LIMITS[dtype]
    wrong = {
        name: pair
        for name, pair in found.items()
        if not max(pair) <= (max(limit, TRPO_LIMIT) if name == "trpo" else limit)
    }
    assert not wrong, wrong


@pytest.mark.slow
def test_training_changes_the_weights(place: Path) -> None:
    """Else equal weights would prove nothing."""
    folder = results(place, 2, "float64")
    for name, steps in json.loads((folder / "metrics.json").read_text()).items():
        assert all(math.isfinite(step["grad_norm"]) for step in steps), name
        assert any(step["grad_norm"] > 0 for step in steps), name


@pytest.mark.slow
def test_the_same_number_of_processes_gives_the_same_bytes(place: Path) -> None:
    one, other = results(place, 4, "float32"), results(place, 4, "float32", again="-again")
    first, second = (load_file(str(folder / "weights.safetensors")) for folder in (one, other))
    assert all(first[name].equal(second[name]) for name in first)
    assert (one / "metrics.json").read_text() == (other / "metrics.json").read_text()
