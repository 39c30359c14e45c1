"""A run shared by several processes is the run of one: every objective, to rounding."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.pipeline.processes.differences import largest
from tests.pipeline.processes.every_objective import COMPILES, names
from tests.pipeline.processes.launched import launch

MODULE = "tests.pipeline.processes.every_objective"
LIMITS = {"float64": (1e-12, 1e-12), "float32": (1e-6, 5e-6)}
"""Of weights and of metrics. A margin is the difference of log-probs that are some times larger, so it rounds more."""
TRPO_LIMIT = 1e-9
"""In float64: a few steps of conjugate gradients magnify rounding."""


QUICK = ("gspo", "ppo", "trpo", "nash_md", "sdpo", "kto", "simpo", "likelihood", "distill", "reward", "mixture, grpo")
"""One of each form; the slow cases have all."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


def results(place: Path, size: int, dtype: str, shards: int = 0, again: str = "", chosen: tuple[str, ...] = ()) -> Path:
    """The folder with the weights and metrics of the chosen objectives, or of all."""
    folder = place / f"{size}-{dtype}-{shards}{again}{'-chosen' if chosen else ''}"
    if not (folder / "metrics.json").exists():
        launch(MODULE, size, folder, str(folder), dtype, str(shards), *chosen)
    return folder


def test_a_few_objectives_train_with_two_processes_what_they_do_with_one(place: Path) -> None:
    one, several = (results(place, size, "float64", chosen=QUICK) for size in (1, 2))
    assert_equal(largest(one, several), QUICK, "float64")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "dtype", "shards"),
    [(2, "float64", 0), (4, "float64", 0), (4, "float64", 2), (2, "float32", 0), (4, "float32", 0)],
    ids=["2-float64", "4-float64", "2x2-float64", "2-float32", "4-float32"],
)
def test_several_processes_train_what_one_does(place: Path, size: int, dtype: str, shards: int) -> None:
    one, several = results(place, 1, dtype), results(place, size, dtype, shards)
    assert_equal(largest(one, several), names(), dtype)


@pytest.mark.slow
def test_compiled_layers_of_two_processes_train_what_uncompiled_ones_do(place: Path) -> None:
    """Whole layers of a dense model, attention of a mixture: within 1e-5, and not the same bits."""
    chosen = ("grpo", "dpo", "ppo", "mixture, grpo")
    plain = results(place, 2, "float32", chosen=chosen, again="-plain")
    compiled = results(place, 2, "float32", chosen=(COMPILES, *chosen), again="-compiled")
    found = largest(plain, compiled)
    assert found.keys() == set(chosen)
    assert all(0 < weights < 1e-5 and metrics < 1e-4 for weights, metrics in found.values()), found


def assert_equal(found: dict[str, tuple[float, float]], expected: Collection[str], dtype: str) -> None:
    """Assert that all expected objectives were trained, and that none differs by more than rounding."""
    assert found.keys() == set(expected)
    least = TRPO_LIMIT if dtype == "float64" else 0.0
    wrong = {
        name: pair
        for name, pair in found.items()
        if not all(
            value <= (max(limit, least) if name == "trpo" else limit)
            for value, limit in zip(pair, LIMITS[dtype], strict=True)
        )
    }
    assert not wrong, wrong


@pytest.mark.slow
def test_training_changes_the_weights(place: Path) -> None:
    """Else equal weights would prove nothing."""
    folder = results(place, 2, "float64")
    for name, steps in json.loads((folder / "metrics.json").read_text()).items():
        assert all(math.isfinite(step["grad_norm"]) for step in steps), name
        # the groups have three samples: all that pass@4 takes, so no sample differs; "pass_at_k, pairs" learns
        assert any(step["grad_norm"] > 0 for step in steps) or name == "pass_at_k", name


@pytest.mark.slow
def test_the_same_number_of_processes_gives_the_same_bytes(place: Path) -> None:
    one, other = results(place, 4, "float32"), results(place, 4, "float32", again="-again")
    first, second = (load_file(str(folder / "weights.safetensors")) for folder in (one, other))
    assert all(first[name].equal(second[name]) for name in first)
    assert (one / "metrics.json").read_text() == (other / "metrics.json").read_text()
