"""What a user types first: one prompt as a string, an algorithm of another section, keys of other libraries."""

from __future__ import annotations

import re
from typing import Any

import pytest

import posttrain
from posttrain.checks.params_schema import ALGORITHMS, MODELS
from posttrain.errors import DataError, ParamsError
from posttrain.online.runs import ONLINE
from posttrain.params.other_names import OURS
from posttrain.params.params import _has, check
from posttrain.train.optimizer import OptimizerParams
from tests.models.tiny import tiny_folder
from tests.workspace import ROOT

INPUTS = {"start": "sft/main", "data": "a/prompts", "corpus": "none", "reward_model": "none"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return posttrain.load_model(tiny_folder(tmp_path_factory.mktemp("model")))


def test_one_prompt_needs_no_list(model: tuple[Any, Any]) -> None:
    alone = posttrain.sample(*model, "hello", n=2, max_tokens=4)
    listed = posttrain.sample(*model, ["hello"], n=2, max_tokens=4)
    turns = posttrain.sample(*model, [{"role": "user", "content": "hello"}], n=2, max_tokens=4)
    assert len(alone.texts) == 2 and alone.texts == listed.texts == turns.texts
    with pytest.raises(DataError, match="there are no prompts"):
        posttrain.sample(*model, [])


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "raft"])
def test_an_algorithm_that_samples_is_not_taken_for_a_typing_error(model: tuple[Any, Any], algorithm: str) -> None:
    with pytest.raises(ParamsError, match=f"'{algorithm}' learns from its own samples.*train_online.*policy_loss"):
        posttrain.train_model(*model, [{"prompt": "a", "completion": "b"}], algorithm)


def said(over: dict[str, Any]) -> str:
    run = ONLINE["grpo"]
    with pytest.raises(ParamsError) as caught:
        check(run.model, run.row.merged({"algorithm": "grpo", **INPUTS, **over}), where="online.runs.a")
    return str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("learning_rate", "'optimizer.lr'"),
        ("num_generations", "'rollout.group_size'"),
        ("beta", "'kl.beta'"),
        ("max_completion_length", "'rollout.sampling.max_tokens'"),
        ("epsilon", "'surrogate.high' or 'surrogate.low'"),
    ],
)
def test_a_key_of_another_library_is_answered_with_ours(theirs: str, ours: str) -> None:
    assert f"online.runs.a.{theirs}: unknown key. It is {ours} here" in said({theirs: 1})


def test_a_key_of_another_library_inside_a_group_is_answered_with_its_neighbour() -> None:
    assert "optimizer.learning_rate: unknown key. It is 'lr' here" in said({"optimizer": {"learning_rate": 1e-5}})


def test_every_name_of_the_table_is_a_setting_of_some_run() -> None:
    runs = [*MODELS.values(), *(of.model for table in ALGORITHMS.values() for of in table.values())]
    unknown = {place for places in OURS.values() for place in places if not any(_has(run, place) for run in runs)}
    assert not unknown


def test_the_page_for_those_who_come_from_another_library_has_the_whole_table() -> None:
    page = (ROOT / "docs/reference/trl.md").read_text(encoding="utf-8").split("## Keys")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", page, re.MULTILINE)
    found = {
        name: tuple(re.findall(r"`(.*?)`", ours)) for ours, theirs in rows for name in re.findall(r"`(.*?)`", theirs)
    }
    assert found == OURS


def test_an_input_that_is_null_is_answered_with_what_to_write() -> None:
    assert "reward_model = None: expected the reward model" in said({"reward_model": None})
    assert "or none" in said({"reward_model": None})


def test_a_number_as_yaml_1_1_reads_it_is_a_number() -> None:
    assert check(OptimizerParams, {"lr": "1e-5"}, where="optimizer").lr == 1e-5
    with pytest.raises(ParamsError, match="valid number"):
        check(OptimizerParams, {"lr": "fast"}, where="optimizer")


def test_max_failed_of_1_is_refused() -> None:
    assert "max_failed: nothing would have to be scored" in said({"max_failed": 1.0})


def test_completions_do_not_depend_on_the_place_of_their_prompt(model: tuple[Any, Any]) -> None:
    texts = posttrain.sample(*model, ["1+1", "2+2", "1+1"], n=2, max_tokens=6).texts
    turned = posttrain.sample(*model, ["2+2", "1+1"], n=2, max_tokens=6).texts
    assert turned == [*texts[2:4], *texts[:2]] and texts[:2] != texts[4:]


def test_what_the_context_does_not_hold_is_refused(model: tuple[Any, Any]) -> None:
    with pytest.raises(ParamsError, match=r"^sample: .*context of 256"):
        posttrain.sample(*model, "hello", max_tokens=256)
    with pytest.raises(ParamsError, match=r"sample\.n"):
        posttrain.sample(*model, "hello", n=0)
    rows = [
        {"prompt": "1" * 200, "completion": "2", "label": True},
        {"prompt": "1", "completion": "2" * 200, "label": False},
    ]
    with pytest.raises(DataError, match=r"rows: prompts are also answered with other rows' answers.*context of 256"):
        posttrain.train_model(*model, rows, "kto")
