"""Tasks by name and by import path: what they generate, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.runs.task_tables import task_tables
from posttrain.pipeline.tables.prepare import prepare
from posttrain.tasks.task import PLAIN, TASKS, load_task

OWN = """
import polars as pl
from pydantic import Field
from posttrain.settings.params import Params
from posttrain.tasks.task import Generator, Task

class Counts(Params):
    prompts: int = Field(4, ge=1, description="prompts")

def tables(params):
    rows = [
        {"split": "train", "problem": str(n), "prompt": [{"role": "user", "content": f"Count to {n}"}]}
        for n in range(params.prompts)
    ]
    return {"prompts": pl.DataFrame(rows)}

counting = Task(generator=Generator(Counts, ("prompts",), tables))
listening = Task()
number = 7
"""


@pytest.fixture(autouse=True)
def _workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_count", raising=False)
    Path("custom").mkdir()
    Path("custom/own_count.py").write_text(OWN)
    load_task.cache_clear()


def put(**settings: object) -> None:
    Path("params.yaml").write_text(json.dumps({"data": {"tasks": {"counted": settings}}}))


def test_a_task_of_the_users_own_generates_tables() -> None:
    put(task="own_count:counting", prompts=3)
    prepare("counted", task_tables)
    table = pl.read_parquet("data/counted/prompts.parquet")
    assert table["task"].to_list() == ["own_count:counting"] * 3
    assert table["info"].to_list() == ["{}"] * 3 and table["answer"].to_list() == [""] * 3
    assert table["id"].n_unique() == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "two_stop"}, "data.tasks.counted.task = 'two_stop' is unknown. Did you mean 'two_step'?"),
        ({}, "data.tasks.counted.task is missing. Give one of: calculator"),
        ({"task": "own_count:listening"}, "'own_count:listening' generates no tables. Give the task a generator"),
        ({"task": "own_count:number"}, "'own_count:number' is not a task. Give the name of a Task (docs/tasks.md)"),
        ({"task": "own_count:countin"}, "own_count.py has no 'countin'. Did you mean 'counting'?"),
        (
            {"task": "own_count:counting", "prompt": 3},
            "data.tasks.counted.prompt: unknown key. Did you mean 'prompts'?",
        ),
        ({"task": "own_count:counting", "prompts": 0}, "data.tasks.counted.prompts = 0"),
    ],
)
def test_a_task_that_cannot_generate_is_refused(settings: dict[str, object], said: str) -> None:
    put(**settings)
    with pytest.raises(ParamsError) as caught:
        task_tables("counted")
    assert said in str(caught.value)


def test_every_task_of_the_library_loads_and_an_empty_name_is_the_plain_task() -> None:
    assert all(load_task(name).generator for name in TASKS)
    assert load_task("") is PLAIN and PLAIN.generator is None
    with pytest.raises(ParamsError, match=r"task: 'two_stop' is not a task\. Did you mean 'two_step'\?"):
        load_task("two_stop")
