"""The miniature task keeps its promises: right answers, disjoint splits, the same text from the same seed."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import posttrain
from posttrain.errors import ParamsError
from posttrain.pipeline.tables.store import check_disjoint, check_table
from posttrain.pipeline.toy_tasks.two_step.problems import PROBLEM_KINDS, all_problems
from posttrain.pipeline.toy_tasks.two_step.tables import TwoStepParams, two_step
from posttrain.settings.params import check

SMALL = {"n_corpus": 1500, "n_corpus_heldout": 40, "n_sft": 400, "n_sft_heldout": 30, "n_rl": 300}
SMOKE = {**SMALL, "operand_max": 12, "result_max": 12, "n_heldout": 60, "n_test": 80}
TINY = {"operand_max": 3, "result_max": 6, "chain_length": 2, "n_sft": 5, "n_sft_heldout": 1, "n_rl": 5} | {
    "n_heldout": 1,
    "n_test": 1,
}
EQUATION = re.compile(r"(\d+)([-+*])(\d+)=(\d+)")


@cache
def tables(**changes: int) -> dict[str, pl.DataFrame]:
    return two_step(TwoStepParams(**{**SMALL, "n_heldout": 200, "n_test": 300, **changes}))


def worked_out(key: str) -> tuple[int, int]:
    """Both results of a problem from its key alone, by code that shares nothing with the generator."""
    kind, numbers = key.split(":")
    n = [int(number) for number in numbers.split(",")]
    first, second = {
        "a+b+c": lambda a, b, c: (a + b, a + b + c),
        "a+b-c": lambda a, b, c: (a + b, a + b - c),
        "a-b+c": lambda a, b, c: (a - b, a - b + c),
        "a-b-c": lambda a, b, c: (a - b, a - b - c),
        "k*m+c": lambda k, m, c: (k * m, k * m + c),
        "k*m-c": lambda k, m, c: (k * m, k * m - c),
        "more": lambda a, b: (a + b, 2 * a + b),
        "fewer": lambda a, b: (a - b, 2 * a - b),
    }[kind](*n)
    return first, second


def equations_hold(text: str) -> bool:
    operations = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    return all(operations[op](int(a), int(b)) == int(c) for a, op, b, c in EQUATION.findall(text))


def bucket(key: str) -> float:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


@pytest.mark.slow
def test_tables_are_valid_and_disjoint(tmp_path: Path) -> None:
    made = tables()
    for kind in ("corpus", "chat", "prompts"):
        check_table(made[kind], kind, tmp_path / f"{kind}.parquet")  # type: ignore[arg-type]
    check_disjoint(made)


def test_tables_have_the_requested_sizes() -> None:
    made = tables()
    assert dict(made["corpus"]["split"].value_counts().rows()) == {"train": 1500, "heldout": 40}
    assert dict(made["chat"]["split"].value_counts().rows()) == {"train": 400, "heldout": 30}
    assert dict(made["prompts"]["split"].value_counts().rows()) == {"train": 300, "heldout": 200, "test": 300}
    assert made["prompts"]["problem"].is_unique().all()


def test_answers_are_right_and_in_range() -> None:
    for row in tables()["prompts"].iter_rows(named=True):
        first, second = worked_out(row["problem"])
        assert row["answer"] == str(second)
        assert 0 <= first <= 30
        assert 0 <= second <= 30
        said = [int(number) for number in re.findall(r"\d+", row["prompt"][0]["content"])]
        asked = [int(number) for number in row["problem"].split(":")[1].split(",")]
        assert said == asked, "the question tells the numbers in order, and no others"


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(operand_max=st.integers(2, 25), result_max=st.integers(4, 40))
def test_every_problem_is_in_range(operand_max: int, result_max: int) -> None:
    keys = [problem.key for problem in all_problems(operand_max, result_max)]
    assert len(keys) == len(set(keys))
    for problem in all_problems(operand_max, result_max):
        assert worked_out(problem.key) == tuple(step.result for step in problem.steps)
        assert all(2 <= number <= operand_max for number in problem.numbers)
        assert all(0 <= step.result <= result_max for step in problem.steps)
    plain = sum(
        0 <= a + b <= result_max and 0 <= a + b - c <= result_max
        for a in range(2, operand_max + 1)
        for b in range(2, operand_max + 1)
        for c in range(2, operand_max + 1)
    )
    assert sum(key.startswith("a+b-c:") for key in keys) == plain


@pytest.mark.slow
def test_the_split_is_the_problems_own_whatever_the_seed() -> None:
    for made in (tables(), tables(seed=7, test_seed=8)):
        for name in ("prompts", "chat"):
            for split, key in made[name].select("split", "problem").iter_rows():
                u = bucket(key)
                assert split == ("test" if u < 0.1 else "heldout" if u < 0.2 else "train")


def test_the_corpus_solves_no_problem_outside_the_train_split() -> None:
    """Every pair of neighbouring equations in the corpus is read back as the problem that it works."""
    pairs = 0
    for text in tables()["corpus"]["text"]:
        assert equations_hold(text)
        steps = EQUATION.findall(text)
        for (a, one, b, r), (left, two, c, _) in itertools.pairwise(steps):
            if left == r:
                key = f"{'k*m' if one == '*' else f'a{one}b'}{two}c:{a},{b},{c}"
            else:
                assert (left, two, c) == (a, "+", r), "otherwise it is a comparison, which adds both holders' things"
                key = f"{'more' if one == '+' else 'fewer'}:{a},{b}"
            assert bucket(key) >= 0.2, f"{key} is not of the train split, in: {text}"
            pairs += 1
    assert pairs > 800


def test_corpus_mixture() -> None:
    texts = tables()["corpus"]["text"]
    headed = texts.str.starts_with("#### ")
    assert 0.03 < headed.mean() < 0.08  # type: ignore[operator]
    assert texts.filter(headed).str.contains(r"^#### (Exercise|Problem|Question) \d+\n").all()
    assert not texts.str.strip_prefix("#### ").str.contains("####").any(), "the marker never ends a document"
    bodies = texts.str.replace(r"^#### .*\n", "")
    chained = bodies.str.contains(r"^[-+*=0-9,; \n]+$").mean()
    silent = (~bodies.str.contains("=")).mean()
    assert 0.2 < chained < 0.3  # type: ignore[operator]
    assert 0.06 < silent < 0.14  # type: ignore[operator]


@pytest.mark.slow
def test_demonstrations_are_mixed_and_right() -> None:
    expected = [
        (row["problem"], row["messages"][-1]["content"]) for row in tables(n_sft=2000)["chat"].iter_rows(named=True)
    ]
    for key, text in expected:
        *working, last = text.split("\n")
        first, second = worked_out(key)
        assert last.removeprefix("#### ") == str(second)
        assert len(working) in (0, 2)
        assert equations_hold(text)
        if working:
            assert [line.split("=")[1] for line in working] == [str(first), str(second)]
    terse = sum("=" not in text for _, text in expected) / len(expected)
    unmarked = sum("####" not in text for _, text in expected) / len(expected)
    assert 0.46 < terse < 0.54
    assert 0.08 < unmarked < 0.12
    always = two_step(TwoStepParams(**SMALL, terse_share=0.0, unmarked_share=0.0))["chat"]["messages"].to_list()
    assert all(re.search(r"^.+=\d+\n.+=\d+\n#### \d+$", messages[-1]["content"]) for messages in always)


def test_every_kind_occurs_in_every_split() -> None:
    frame = tables()["prompts"].with_columns(kind=pl.col("problem").str.split(":").list.first())
    for split in ("train", "heldout", "test"):
        assert set(frame.filter(split=split)["kind"]) == set(PROBLEM_KINDS)


@pytest.mark.slow
def test_each_seed_changes_only_its_own_rows() -> None:
    one, two = tables(), tables(test_seed=5)
    assert one["corpus"].equals(two["corpus"])
    assert one["chat"].equals(two["chat"])
    test = pl.col("split") == "test"
    assert one["prompts"].filter(~test).equals(two["prompts"].filter(~test))
    assert not one["prompts"].filter(test).equals(two["prompts"].filter(test))
    three = tables(seed=5)
    assert one["prompts"].filter(test).equals(three["prompts"].filter(test))
    assert not one["corpus"].equals(three["corpus"])


@pytest.mark.slow
def test_the_size_of_one_table_does_not_change_the_others() -> None:
    one, two = tables(), tables(n_sft=401)
    assert one["corpus"].equals(two["corpus"])
    assert one["prompts"].equals(two["prompts"])


@pytest.mark.slow
@pytest.mark.parametrize(("hash_seed", "threads"), [("1", "1"), ("2", "2")])
def test_other_processes_generate_the_same_tables(hash_seed: str, threads: str) -> None:
    code = (
        "from tests.pipeline.tasks.test_two_step import tables\n"
        "print(*(frame['id'].str.join('').item() for frame in tables().values()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "POLARS_MAX_THREADS": threads, "LC_ALL": "C"}
    expected = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(posttrain.__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert expected.split() == [frame["id"].str.join("").item() for frame in tables().values()]


def test_the_smoke_variant_needs_only_params(tmp_path: Path) -> None:
    made = two_step(TwoStepParams(**SMOKE))
    assert made["prompts"]["answer"].cast(pl.Int64).max() == 12
    for kind in ("corpus", "chat", "prompts"):
        check_table(made[kind], kind, tmp_path / f"{kind}.parquet")  # type: ignore[arg-type]
    assert made["prompts"].filter(split="test").height == 80


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"n_test": 5000},
            "params.yaml: n_test = 5,000, but the test split has only 1,339 problems. Lower n_test",
        ),
        ({"n_sft": 50_000}, "n_sft = 50,000, but the train split has only 11,140 problems. Lower n_sft"),
        ({**SMOKE, "n_test": 300}, "n_test = 300, but the test split has only"),
        ({"operand_max": 2, "result_max": 4}, "n_sft = 400, but the train split has only 4 problems"),
        (
            {"chained_share": 1.0, "worked_share": 0.0, "bare_share": 0.0, "heading_share": 0.001, **TINY},
            "different documents exist. Lower n_corpus, or raise operand_max or result_max",
        ),
    ],
)
def test_more_problems_than_exist_are_refused(changes: dict[str, float], expected: str) -> None:
    with pytest.raises(ParamsError) as caught:
        two_step(TwoStepParams(**{**SMALL, **changes}))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"heldout_share": 0.4, "test_share": 0.4}, "heldout_share + test_share must be at most 0.5"),
        ({"worked_share": 0.9}, "worked_share + bare_share + chained_share must be at most 1"),
        ({"n_tests": 3}, "prepare.two_step.n_tests: unknown key. Did you mean 'n_test'?"),
        ({"seed": -1}, "prepare.two_step.seed = -1"),
    ],
)
def test_contradictory_params(changes: dict[str, float], expected: str) -> None:
    with pytest.raises(ParamsError) as caught:
        check(TwoStepParams, changes, where="prepare.two_step")
    assert expected in str(caught.value)
