"""The arithmetic tasks: true workings, demonstrations that their own rewards accept, mixtures by weight."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from pydantic import TypeAdapter

from posttrain.errors import ParamsError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.runs.task_tables import task_tables
from posttrain.pipeline.tables.store import check_disjoint, check_table
from posttrain.pipeline.toy_tasks.arithmetic.problems import Range, draw_product, draw_sequence, draw_story, draw_sum
from posttrain.rewards.catalog import Rewards
from posttrain.rewards.reward import Context
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, TokenRow

Write = Callable[[str], None]
SMALL = "demonstrations: 40, heldout_demonstrations: 4, prompts: 60, heldout_prompts: 5, test_prompts: 24"


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)
    return lambda run: Path("params.yaml").write_text(f"data: {{tasks: {{math: {{{run}}}}}}}\n") and None


@pytest.mark.parametrize("draw", [draw_sum, draw_story, draw_product, draw_sequence])
def test_the_working_is_true_and_ends_with_the_answer(draw: Callable[..., object]) -> None:
    rng = random.Random(5)
    for _ in range(300):
        one = draw(rng, Range(2, 4, 30))
        for equation in one.working:
            left, result = equation.split(" = ")
            a, sign, b = left.split()
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(result) >= 0
        assert one.working[-1].endswith(f" = {one.answer}")
        numbers = [int(found) for found in re.findall(r"\d+", one.question)]
        assert numbers and max(numbers) <= 30
        assert draw is draw_product or one.answer <= 30


def scored(task: str, answer: str, said: str) -> tuple[float, float]:
    terms = TypeAdapter(Rewards).validate_python({"correct": 1.0, "format": 1.0})
    reward = RewardSum(terms, Context(Runtime(DeviceParams(device="cpu")), "test"))
    prompt = Prompt("p", [{"role": "user", "content": "?"}], [1], answer, task=task)
    (one,) = reward.score([Rollout(prompt, 0, TokenRow([1], [2]), [0.0], said, "stop")])
    return one.scores["correct"].value, one.scores["format"].value


@pytest.mark.parametrize("task", ["sums", "stories", "products", "sequences"])
def test_demonstrations_are_right_by_their_own_rewards(task: str, params: Write) -> None:
    params(f"task: {task}, worked_share: 0.5, {SMALL}")
    tables = task_tables("math")
    for kind, frame in tables.items():
        check_table(frame, kind, Path(f"{kind}.parquet"))
    check_disjoint(tables)
    answers = dict(tables["prompts"].select("problem", "answer").iter_rows())
    said = [(row["problem"], row["messages"][-1]["content"]) for row in tables["chat"].iter_rows(named=True)]
    worked = [text for _, text in said if "=" in text]
    assert 8 <= len(worked) <= 36, "about half of 44 show their working"
    for problem, text in said:
        answer = answers.get(problem) or text.rpartition(" ")[2].rstrip(".")
        assert scored(task, answer, text) == (1.0, 1.0)
    assert set(tables["prompts"]["task"]) == {task}
    assert tables["prompts"].equals(task_tables("math")["prompts"])


def test_plain_answers_of_an_untrained_model_are_read() -> None:
    assert scored("stories", "18", "There are 18 apples left in the basket.") == (1.0, 0.0)
    assert scored("sums", "18", "9 + 9 equals 18, so the answer is **18**.") == (1.0, 0.0)
    assert scored("sums", "18", "9 + 9 = 81") == (0.0, 0.0)


PARTS = """
        sums: {task: sums, weight: 3.0}
        stories: {task: stories}
        next: {task: sequences, largest: 99, splits: [test]}
"""


def test_a_mixture_has_its_parts_by_weight_and_some_only_in_the_test_split(params: Write, tmp_path: Path) -> None:
    text = f"data:\n  tasks:\n    math:\n      task: mixture\n      parts:{PARTS}"
    Path("params.yaml").write_text(text + "".join(f"      {one.strip()}\n" for one in SMALL.split(",")))
    tables = task_tables("math")
    check_disjoint(tables)
    counts = tables["prompts"].group_by("split", "task").len()
    found = {(split, task): count for split, task, count in counts.iter_rows()}
    assert found[("train", "sums")] == 45 and found[("train", "stories")] == 15
    assert {task for split, task in found if split != "test"} == {"sums", "stories"}
    assert [found["test", task] for task in ("sums", "stories", "sequences")] == [14, 5, 5]
    assert tables["chat"].filter(split="train").height == 40
    first = tables["prompts"].filter(split="test").head(12)["task"]
    assert first.n_unique() > 1, "the first prompts of a split are mixed"
    assert tables["prompts"].equals(task_tables("math")["prompts"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("task: sums, largest: 3", "different train problems exist for `chat`, not 400"),
        ("task: sums, fewest: 4", "fewest (4) must be <= most (3)"),
        ("task: mixture, parts: {a: {task: sumz}}", "parts.a.task = 'sumz' is unknown. Did you mean 'sums'?"),
        ("task: mixture, parts: {a: {task: sums, larges: 9}}", "parts.a.larges: unknown key. Did you mean 'largest'?"),
        (
            "task: mixture, parts: {a: {task: sums, splits: [test]}}",
            "no part has rows in the split train. Add train to the splits of a part",
        ),
        (
            "task: mixture, prompts: 9, parts: {a: {task: two_step, n_sft: 900, n_rl: 5}}",
            "parts.a has 5 rows of `prompts` in the split train, but its share is 9",
        ),
    ],
)
def test_an_impossible_number_of_problems_is_refused_with_a_fix(run: str, message: str, params: Write) -> None:
    params(run)
    with pytest.raises(ParamsError, match=re.escape(message)):
        task_tables("math")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("task: two_step, n_test: 5000", ".n_test = 5,000, but the test split has only 1,339 problems. Lower n_test"),
        ("task: mixture, parts: {a: {task: two_step, n_rl: 50000}}", ".parts.a.n_rl = 50,000, but the train split has"),
        ("task: sums, largest: 3", ": only about 20 different train problems exist for `chat`, not 400"),
    ],
)
def test_too_many_rows_are_refused_where_the_run_asks_for_them(run: str, message: str, params: Write) -> None:
    params(run)
    with pytest.raises(ParamsError, match=re.escape(f"params.yaml: data.tasks.math{message}")):
        task_tables("math")


def test_an_id_belongs_to_one_problem(params: Write) -> None:
    params(f"task: sums, {SMALL}")
    prompts = task_tables("math")["prompts"]
    assert prompts["problem"].n_unique() == prompts.height and prompts.schema["task"] == pl.String()
