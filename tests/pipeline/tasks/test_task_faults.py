"""What a task of the user's own can get wrong: refused with its name, never written down."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.evaluate.metrics import evaluation_metrics
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.runs.task_tables import task_tables
from posttrain.rewards.reward import Context, Reward, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.tasks.task import load_task
from tests.library.models.tiny import rollout_of

TASK = """
import polars as pl
from posttrain.settings.params import Params
from posttrain.tasks.task import Generator, Task

class Nothing(Params):
    pass

def tables(params):
    asked = [{"role": "user", "content": "?"}]
    return {"prompts": pl.DataFrame([{"split": "train", "problem": "a", "prompt": asked, "info": "item"}])}

nan = Task(metrics=lambda rollouts, scores: {"turns": float("nan")})
raises = Task(metrics=lambda rollouts, scores: {"turns": 1 / 0})
no_json = Task(generator=Generator(Nothing, ("prompts",), tables))
"""


@pytest.fixture(autouse=True)
def _task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/own_faults.py").write_text(TASK)
    (tmp_path / "params.yaml").write_text('data: {tasks: {a: {task: "own_faults:no_json"}}}')
    load_task.cache_clear()
    yield
    load_task.cache_clear()
    sys.modules.pop("own_faults", None)


def scored(task: str) -> Callable[[], Any]:
    one: Reward[Any] = Reward(lambda options, context: lambda rollouts: [1.0] * len(rollouts))
    reward = RewardSum({"one": WeightedReward(reward=one)}, Context(Runtime(DeviceParams()), "test"))
    rollouts = reward.score([rollout_of("a", task=task), rollout_of("b", task=task)])
    return lambda: evaluation_metrics(reward, rollouts, rollouts, 0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nan", "task 'own_faults:nan': its metrics turns are not finite"),
        ("raises", r"task 'own_faults:raises': its metrics raised ZeroDivisionError.*own_faults.py line 14"),
    ],
)
def test_metrics_that_are_no_numbers_end_the_evaluation(name: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        scored(f"own_faults:{name}")()


def test_info_that_is_not_json_is_refused_where_it_is_made() -> None:
    assert read_yaml("params.yaml")
    with pytest.raises(DataError, match=r"task 'own_faults:no_json': row 0 of its prompts has info = 'item'"):
        task_tables("a")
