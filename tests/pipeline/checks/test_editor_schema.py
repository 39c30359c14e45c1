"""The schema of params.yaml for editors: it accepts what `check` accepts, and refuses a key that nothing reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from posttrain.pipeline.checks.editor_schema import _items, editor_schema
from posttrain.pipeline.params.yaml_files import read_yaml
from tests.workspace import ROOT

GIVEN = [
    ROOT / "params.yaml",
    *sorted(ROOT.glob("recipes/*.yaml")),
    *sorted(ROOT.glob("posttrain/pipeline/template/recipes/*")),
]


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    found = json.loads(editor_schema())
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


@pytest.mark.parametrize("file", GIVEN, ids=lambda file: str(file.name))
def test_params_and_every_recipe_are_accepted(file: Path, schema: Draft202012Validator) -> None:
    assert [error.message for error in schema.iter_errors(read_yaml(file))] == []


def test_short_forms_and_things_of_the_users_own_are_accepted(schema: Draft202012Validator) -> None:
    params: dict[str, Any] = read_yaml(ROOT / "params.yaml")
    params["data"]["tasks"]["own"] = {"task": "my_data:tables", "anything": 1}
    params["data"]["files"] = {
        "mine": {"path": "my", "chat": "a.jsonl", "pairs": ["a.jsonl", {"path": "b", "weight": 1}]}
    }
    run = params["online"]["runs"]["grpo"]
    run["reward"] = {"correct": {"answer": "math"}, "my_rewards:brief": 0.5, "again": {"type": "length", "limit": 9}}
    run["reward"] |= {"json_schema": {"schema": {"type": "object"}}, "language": {"script": ["han", "latin"]}}
    run |= {"surrogate": "my_losses:soft", "optimizer": {"lr": "1e-5"}}
    assert [error.message for error in schema.iter_errors(params)] == []


WRONG: dict[str, Callable[[Any], Any]] = {
    "section": lambda params: params.update(onlin={}),
    "group": lambda params: params["online"].update(run={}),
    "run": lambda params: params["online"]["runs"]["grpo"].update(algoritm="grpo"),
    "algorithm": lambda params: params["online"]["runs"]["grpo"].update(algorithm="grpoo"),
    "row": lambda params: params["preference"]["runs"]["dpo"].update(rollout={"rounds": 1}),
    "inner": lambda params: params["sft"]["runs"]["main"].update(optimizer={"learning_rate": 1e-5}),
    "choice": lambda params: params["online"]["runs"]["grpo"].update(surrogate={"type": "clip", "hihg": 0.2}),
    "reward": lambda params: params["online"]["runs"]["grpo"].update(reward={"corect": 1.0}),
    "option": lambda params: params["online"]["runs"]["grpo"].update(reward={"correct": {"anwser": "math"}}),
    "range": lambda params: params["sft"]["runs"]["main"].update(epochs=-1.0),
    "task": lambda params: params["data"]["tasks"]["two_step"].update(task="two_steps"),
    "settings": lambda params: params["evaluate"]["settings"].update(sample=4),
    "input": lambda params: params["sft"]["runs"]["main"].pop("start"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_nothing_reads_is_refused(what: str, schema: Draft202012Validator) -> None:
    params = read_yaml(ROOT / "params.yaml")
    WRONG[what](params)
    assert not schema.is_valid(params)


def test_an_editor_shows_what_keys_mean(schema: Draft202012Validator) -> None:
    found: Any = schema.schema
    run = found["$defs"]["PolicyRun"]["properties"]
    assert "a folder under models/" in run["start"]["description"]
    weight = found["$defs"]["rewards"]["properties"]["correct"]["anyOf"][1]["properties"]["weight"]
    assert "multiplied by" in weight["description"]


def test_the_forms_of_a_table_are_its_items() -> None:
    table, none = {"type": "object"}, {"type": "null"}
    assert _items({"anyOf": [table, none]}) == _items({"oneOf": [none, table]}) == [table] and _items(table) == []
