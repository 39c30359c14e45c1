"""Instructions that a program verifies: each kind by hand, demonstrations that follow them, and the recipe."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.runs.task_tables import generated
from posttrain.pipeline.toy_tasks.instructions.problems import EXCLUSIVE, KINDS, demonstration, draw_problem
from posttrain.pipeline.toy_tasks.instructions.task import InstructionsParams
from posttrain.rewards.catalog import Rewards
from posttrain.rewards.instruction_checks import CHECKS, fault, followed
from posttrain.rewards.reward import Context
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout
from posttrain.settings.params import Params, check
from posttrain.tasks.task import load_task
from tests.library.models.tiny import rollout_of, tiny_folder
from tests.workspace import ROOT, dvc, make_workspace, run

CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"kind": "at_least", "count": 3}, ["one two three", "it's a, b."], ["one two", "- - -", "it's two"]),
    ({"kind": "at_most", "count": 2}, ["one two.", "don't stop"], ["one two three"]),
    ({"kind": "include", "word": "stone"}, ["A Stone!", "(stone)"], ["stones", "limestone"]),
    ({"kind": "avoid", "word": "stone"}, ["stones"], ["a stone."]),
    ({"kind": "include", "word": "Straße"}, ["Die STRASSE.", "straße"], ["Straßen"]),
    ({"kind": "avoid", "word": "Paris"}, ["London"], ["Paris!", "paris"]),
    ({"kind": "repeat", "word": "Old", "count": 1}, ["old"], ["older"]),
    ({"kind": "repeat", "word": "old", "count": 2}, ["old, Old", "old old old"], ["old", "older old"]),
    ({"kind": "lowercase"}, ["all lower, 12", "été"], ["One", "É"]),
    ({"kind": "uppercase"}, ["ALL, 12"], ["ALl"]),
    ({"kind": "no_commas"}, ["a; b"], ["a, b"]),
    ({"kind": "bullets", "count": 2}, ["- a\n- b", "So:\n* a\n  - b\nend"], ["- a", "- a\n- b\n- c", "-a\n-b"]),
    (
        {"kind": "ends", "phrase": "that is all."},
        ["x. That is all.", "THAT IS ALL. \n"],
        ["that is all", "that is all. x"],
    ),
    ({"kind": "begins", "phrase": "Some say"}, ["some say so", " Some say"], ["So some say"]),
    ({"kind": "quotes"}, ['"a b"', ' "a" '], ['"a', '"a" and "b"', '"', "'a'"]),
    ({"kind": "title"}, ["<<A b>>\ntext"], ["<<>>", "<a>"]),
    ({"kind": "json"}, ['{"a": 1}', "{}\n"], ["[1]", '```{"a": 1}```', "{a: 1}", "[" * 100_000]),
]


class Settings(Params):
    reward: Rewards


def test_each_kind_by_hand() -> None:
    assert {case[0]["kind"] for case in CASES} == {*CHECKS} == {*KINDS}
    for instruction, right, wrong in CASES:
        assert [followed(instruction, text) for text in right] == [True] * len(right), instruction
        assert [followed(instruction, text) for text in wrong] == [False] * len(wrong), instruction
        assert not followed(instruction, " \n"), "an empty text follows nothing"


def test_demonstrations_follow_their_prompts_which_name_every_instruction() -> None:
    rng, kinds = random.Random(0), set()
    for _ in range(500):
        problem = draw_problem(rng, 4)
        mine = {one["kind"] for one in problem.instructions}
        assert 1 <= len(mine) == len(problem.instructions) <= 4 and all(len(mine & group) < 2 for group in EXCLUSIVE)
        text = demonstration(problem, rng)
        assert all(followed(one, text) for one in problem.instructions), (problem, text)
        assert all(str(value) in problem.question for one in problem.instructions for value in [*one.values()][1:])
        kinds |= mine
    assert kinds == {*KINDS}


@pytest.mark.slow
def test_tables_repeat_and_their_splits_share_no_prompt() -> None:
    generator, params = load_task("instructions").generator, InstructionsParams(seed=3)
    assert generator is not None
    first, again = (generated("instructions", generator, params) for _ in range(2))
    assert all(first[kind].equals(again[kind]) for kind in first)
    prompts = first["prompts"]
    assert {*prompts["task"]} == {"instructions"} and prompts["prompt"].n_unique() > 0.95 * prompts.height
    tests, rest = (set(prompts.filter(split=split)["problem"]) for split in ("test", "train"))
    assert not tests & rest and not tests & {*first["chat"]["problem"]}


def test_the_reward_counts_all_or_the_share() -> None:
    info = {"instructions": [{"kind": "lowercase"}, {"kind": "at_most", "count": 2}]}
    prompt = Prompt("p", [{"role": "user", "content": "?"}], [1], "", info, "instructions")
    scores = {}
    for count in ("all", "share"):
        terms = check(Settings, {"reward": {"instructions": {"count": count}}}, where="x").reward
        sampled = [rollout_of(text) for text in ("a b", "a b c", "A B C")]
        rollouts = [Rollout(prompt, n, one.row, one.logps, one.text, one.finish) for n, one in enumerate(sampled)]
        scored = RewardSum(terms, Context(Runtime(DeviceParams()), "here")).score(rollouts)
        scores[count] = [one.scores["instructions"].value for one in scored]
        kept = scorable_prompts(terms, [prompt, Prompt("q", [], [], "", {}, "")], "here")
        assert [one.id for one in kept] == ["p"], "a prompt without instructions is not judged"
    assert scores == {"all": [1.0, 0.0, 0.0], "share": [1.0, 0.5, 0.0]}
    assert load_task("instructions").metrics(rollouts, []) == {"instructions_followed": 0.5}


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        "lowercase",
        [1],
        [{"kind": "rhyme"}],
        [{"kind": "at_least"}],
        [{"kind": "at_least", "count": "3"}],
        [{"kind": "bullets", "count": "3"}],
        [{"kind": "bullets", "count": None}],
        [{"kind": "at_most", "count": 2.5}],
        [{"kind": "include", "word": "New York"}],
        [{"kind": "avoid", "word": "e-mail"}],
        [{"kind": "repeat", "word": "", "count": 1}],
        [{"kind": "include", "word": 5}],
        [{"kind": "ends", "phrase": "That is all. "}],
        [{"kind": "begins", "phrase": ""}],
    ],
)
def test_what_is_no_list_of_instructions(wrong: Any) -> None:
    assert fault(wrong) is not None


def test_instructions_of_each_kind_have_no_fault() -> None:
    assert fault([case[0] for case in CASES]) is None


@pytest.mark.slow
def test_the_recipe_with_a_small_stand_in(tmp_path: Path) -> None:
    yaml = YAML(typ="safe")
    params = yaml.load((ROOT / "recipes/ifeval.yaml").read_text(encoding="utf-8"))
    small = {"demonstrations": 8, "heldout_demonstrations": 2, "prompts": 8, "heldout_prompts": 2, "test_prompts": 8}
    params["data"]["tasks"]["asked"] |= small | {"most": 1}
    for group, names in (("sft", ("s3",)), ("online", ("g3",))):
        for name in names:
            del params[group]["runs"][name]
    evaluate = params["evaluate"]
    evaluate["policies"] = {name: policy for name, policy in evaluate["policies"].items() if "3" not in name}
    evaluate["runs"] = {name: one for name, one in evaluate["runs"].items() if "3" not in name}
    params["data"]["tasks"]["sums"] |= {"test_prompts": 8}
    for one in params["sft"]["runs"].values():
        one |= {"epochs": 1.0, "max_tokens": 256, "device": {"threads": 1}}
    for one in params["online"]["runs"].values():
        one["rollout"] = {"rounds": 1, "prompts": 4, "group_size": 4, "minibatches": 1, "sampling": {"max_tokens": 8}}
    params["evaluate"]["settings"] |= {"prompts": 8, "samples": 2, "sampling": {"max_tokens": 8}}
    with (tmp_path / "params.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(params, file)
    workspace = make_workspace(tmp_path / "clone", tmp_path / "params.yaml")
    shutil.copytree(tiny_folder(tmp_path / "tiny"), workspace / "my/smollm2")
    rows = [{"text": f"{n} {split}", "split": split} for split in ("train", "heldout") for n in "ab"]
    tasks = [{"prompt": asked, "info": {"tests": "assert f(1) == 1"}, "split": "test"} for asked in ("f", "g")]
    for name, made in (("python", rows), ("human_eval", tasks)):
        lines = "".join(f"{json.dumps(row)}\n" for row in made)
        (workspace / f"my/{name}.jsonl").write_text(lines, encoding="utf-8")
    done = dvc(workspace, "repro")
    assert done.returncode == 0, done.stdout
    figures = json.loads((workspace / "results/grpo1/metrics.json").read_text(encoding="utf-8"))
    assert 0 <= figures["score"] <= figures["instructions_followed"] <= 1
    compared = run(workspace, "python", "-m", "posttrain", "compare").stdout
    settings = dict(re.findall(r"^(\w+) +(\d+) +\d\.\d+ ", compared, re.MULTILINE))
    assert settings["sft"] == "2" and settings["base"] == "1", "the two seeds are one setting"
