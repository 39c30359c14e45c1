"""A call and a stage with the same values give the same bytes, in processes with fixed numerics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from posttrain.data.columns import with_ids
from posttrain.pipeline.tables.store import write_table
from tests.library.models.tiny import tiny_folder
from tests.pipeline.runs import same_bytes

ROOT = Path(__file__).parents[3]
REWARD = """
from posttrain.rewards import rule


@rule()
def vowels(rollout, options):
    return sum(rollout.text.count(letter) for letter in "aeiou0123456789") / 10
"""


def turn(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


def tables(place: Path) -> None:
    """Small tables of each kind."""
    splits = ["train"] * 12 + ["heldout"] * 2
    asked = [turn("user", f"{nth}+1") for nth in range(14)]
    said = [turn("assistant", str(nth + 1)) for nth in range(14)]
    wrong = [turn("assistant", str(nth + 3)) for nth in range(14)]
    problem = [f"{nth}+1" for nth in range(14)]
    chat = pl.DataFrame(
        {"split": splits, "problem": problem, "messages": [a + b for a, b in zip(asked, said, strict=True)]}
    )
    pairs = pl.DataFrame(
        {"split": splits, "problem": problem, "prompt": asked, "chosen": said, "rejected": wrong, "margin": [1.0] * 14}
    )
    prompts = pl.DataFrame(
        {"split": splits, "problem": problem, "prompt": asked, "answer": [str(nth + 1) for nth in range(14)],
         "info": ["{}"] * 14, "task": [""] * 14}
    )  # fmt: skip
    for kind, frame in (("chat", chat), ("pairs", pairs), ("prompts", prompts)):
        write_table(with_ids(frame, kind), place / f"data/mine/{kind}.parquet", kind)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose runs were trained by the stages, and by calls into out/."""
    place = tmp_path_factory.mktemp("same")
    tiny_folder(place / "made")
    (place / "models/base").mkdir(parents=True)
    (place / "made/model").rename(place / "models/base/tiny")
    (place / "params.yaml").write_text(same_bytes.params())
    (place / "custom").mkdir()
    (place / "custom/rewards_here.py").write_text(REWARD)
    tables(place)
    for which in ("stages", "calls"):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{place}", "DVC_ROOT": str(place)}
        command = [sys.executable, "-m", "tests.pipeline.runs.same_bytes", which]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    return place


@pytest.mark.parametrize(
    "run", ["sft/main", "reward/main", "preference/main", *(f"online/{name}" for name in same_bytes.ONLINE)]
)
def test_a_call_and_a_stage_give_the_same_bytes(workspace: Path, run: str) -> None:
    trained, called = workspace / "models" / run, workspace / "out" / run / "model"
    weights = sorted(file.name for file in trained.glob("*.safetensors"))
    assert weights and weights == sorted(file.name for file in called.glob("*.safetensors"))
    start = (workspace / "models/base/tiny" / weights[0]).read_bytes()
    for name in weights:
        assert (trained / name).read_bytes() == (called / name).read_bytes() != start
    curve = f"plots/{run}.csv"
    assert (workspace / curve).read_text() == (workspace / "out" / run / "metrics.csv").read_text()
