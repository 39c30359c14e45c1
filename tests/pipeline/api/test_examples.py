"""The examples run as they are, with their tiny model, and learn."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.library.models.tiny import tiny_folder
from tests.marks import slow_except
from tests.workspace import ROOT

FOLDER = ROOT / "examples"
NAMES = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "tiny")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    return lambda name: importlib.import_module(name).main


@pytest.mark.slow
def test_sft_learns_its_sums(example: Callable[[str], Any], tmp_path: Path) -> None:
    before, after = example("sft")(["--save", str(tmp_path / "saved")])
    assert before < 0.2 < 0.6 < after
    again, _ = example("sft")(["--model", str(tmp_path / "saved"), "--epochs", "0.1"])
    assert again == after, "the saved model answers the same"


@pytest.mark.slow
def test_dpo_prefers_the_chosen(example: Callable[[str], Any]) -> None:
    history = example("dpo_own_trainer")(["--epochs", "8"])
    first, last = (sum(row["margin"] for row in part) / 3 for part in (history[:3], history[-3:]))
    assert last > first + 0.3 and history[-1]["loss"] < history[0]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_raises_the_reward(example: Callable[[str], Any], seed: int) -> None:
    rewards = example("grpo_loop")(["--seed", str(seed), "--steps", "24"])
    assert sum(rewards[:4]) / 4 < 0.2 and sum(rewards[-4:]) / 4 > 0.5, rewards


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_diffusion_dpo_draws_what_is_liked(example: Callable[[str], Any], seed: int) -> None:
    (right, near), *_, (liked, still_near) = example("diffusion_dpo")(["--seed", str(seed)])
    assert abs(right - 0.5) < 0.1 and liked > 0.75 and still_near > near - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_mdpo_looks_at_the_image(example: Callable[[str], Any], seed: int) -> None:
    before, *_, after = example("mdpo")(["--seed", str(seed)])
    assert before < 0.35 and after > 0.8, "one colour of six is chance"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_answers_in_the_context_tell_a_new_group(example: Callable[[str], Any], seed: int) -> None:
    before, *_, after = example("group_preferences")(["--seed", str(seed)])
    assert max(before) < 0.4 and after[0] < 0.4 < 0.5 < after[1] < after[2], "one option of four is chance"


@pytest.mark.parametrize("seed", slow_except((0,), range(3)))
def test_a_run_in_one_call_raises_the_reward(example: Callable[[str], Any], seed: int) -> None:
    history = example("grpo")(["--seed", str(seed), "--rounds", "30"])
    rewards = [row["reward"] for row in history]
    assert sum(rewards[:4]) / 4 < 0.2 and sum(rewards[-4:]) / 4 > 0.5, rewards


def test_a_run_in_one_call_is_short() -> None:
    assert len((FOLDER / "grpo.py").read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.slow
def test_they_take_a_model_folder(example: Callable[[str], Any], tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path))
    assert len(example("grpo_loop")(["--model", folder, "--steps", "1", "--algorithm", "dr_grpo"])) == 1
    assert len(example("dpo_own_trainer")(["--model", folder, "--epochs", "1", "--algorithm", "ipo"])) == 3


@pytest.mark.slow
def test_rollouts_can_be_read_with_polars_alone(smoke_workspace: Path) -> None:
    """In a process of its own without the folder of the library, as in a notebook."""
    code = "import sys; sys.modules['posttrain'] = None; import read_rollouts; read_rollouts.main([sys.argv[1]])"
    folder = str(smoke_workspace / "rollouts/online/grpo")
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(FOLDER)!r}); {code}", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "hardest prompts" in done.stdout and "correct" in done.stdout and "groups without" in done.stdout
    rows = pl.read_parquet(f"{folder}/*.parquet")
    means = rows.group_by("round", maintain_order=True).agg(pl.col("reward").mean())["reward"]
    assert f"{means[0]:.6f}".rstrip("0")[:6] in done.stdout  # polars shows six digits, without zeros at the end


@pytest.mark.parametrize("name", NAMES)
def test_they_are_short_and_say_how_to_run_them(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 100 and f"python examples/{name}.py" in text
