"""Evaluations by likelihood: the numbers are those of transformers' own forward pass, and bad tables are refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.data.columns import from_rows, with_ids
from posttrain.data.layouts import convert, table_of
from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.intervals import best_of_k, calibration_error, sizes
from posttrain.evaluate.likelihood import (
    _chosen,
    _options,
    measure_options,
    measure_pairs,
    measure_texts,
    pair_answers,
    readable_questions,
    row_logps,
)
from posttrain.models.files.store import load_policy, load_tokenizer
from posttrain.pipeline.runs.evaluation import EvaluateRun
from posttrain.pipeline.tables.store import check_table
from posttrain.settings.params import check
from posttrain.text.chat import ChatText
from tests.library.models.tiny import tiny_folder
from tests.pipeline.train.test_training import DEVICE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def question(text: str, options: list[str], answer: str, task: str = "") -> dict[str, Any]:
    asked = [{"role": "user", "content": text}]
    row = {"split": "test", "prompt": asked, "problem": text, "answer": answer, "task": task}
    return {**row, "info": json.dumps({"options": options})}


def prompts(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return with_ids(from_rows(rows, "prompts"), "prompts")


def plain(model: Any, ids: list[int], first: int) -> float:
    """The log-prob of a sequence from one place on, by transformers' own forward pass."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return math.fsum(float(logits[place - 1, ids[place]]) for place in range(first, len(ids)))


@pytest.mark.slow
def test_the_likeliest_option_is_that_of_plain_forward_passes(folder: Path) -> None:
    text, model, own = (
        ChatText(load_tokenizer(folder)),
        load_policy(folder),
        AutoModelForCausalLM.from_pretrained(folder),
    )
    rows = [
        question(f"{a}+{b}", [str(a + b), str(a + b + 1), f"the answer is {a}"], "A")
        for a in range(4)
        for b in range(3)
    ]
    asked = readable_questions(prompts(rows).iter_rows(named=True), "t")
    found = measure_options(model, text, asked, DEVICE, 0)
    for prompt, rollout in zip(asked, found.rollouts, strict=True):
        sums = []
        for option in prompt.info["options"]:
            (row,) = text.exchanges([(prompt.messages, [{"role": "assistant", "content": option}])])
            sums.append(plain(own, [*row.prompt, *row.rest], len(row.prompt)))
        assert rollout.text == prompt.info["options"][int(np.argmax(sums))]
        assert math.fsum(rollout.logps) == pytest.approx(max(sums), abs=1e-3)
        assert rollout.scores["likelihood"].value == float(np.argmax(sums) == 0)
    assert found.metrics["score"] == np.mean([one.scores["likelihood"].value for one in found.rollouts])
    assert 0 < found.metrics["probability"] < 1 and found.metrics["score_low"] <= found.metrics["score"]


def test_the_bits_of_a_text_are_those_of_a_plain_forward_pass_in_parts_too(folder: Path) -> None:
    text, model, own = (
        ChatText(load_tokenizer(folder)),
        load_policy(folder),
        AutoModelForCausalLM.from_pretrained(folder),
    )
    texts = ["1+2=3 so the answer is #### 3", "für 7+8", "12" * 40]
    frame = with_ids(from_rows([{"split": "heldout", "text": one} for one in texts], "corpus"), "corpus")
    found = measure_texts(model, text, frame, DEVICE, 0)
    start = text.tokenizer.bos_token_id if text.tokenizer.bos_token_id is not None else text.stop
    bits = []
    for name, written in zip(frame["id"], frame["text"], strict=True):
        (ids,) = text.plain([written])
        bits.append(-plain(own, [start, *ids], 1) / math.log(2))
        rollout = next(one for one in found.rollouts if one.prompt.id == name)
        assert rollout.scores["likelihood"].value == pytest.approx(-bits[-1] / len(written.encode()), rel=1e-4)
    size = sum(len(one.encode()) for one in texts)
    assert found.metrics["bits_per_byte"] == pytest.approx(sum(bits) / size, rel=1e-4)
    tokens = sum(len(ids) for ids in text.plain(texts))
    assert found.metrics["perplexity"] == pytest.approx(2 ** (sum(bits) / tokens), rel=1e-4)
    text.context = 9
    parts = measure_texts(model, text, frame, DEVICE, 0)
    assert [len(one.row.rest) for one in parts.rollouts] == [len(one.row.rest) for one in found.rollouts]
    assert parts.metrics["bits_per_byte"] != found.metrics["bits_per_byte"], "the parts see less before them"


def test_a_pair_is_right_where_the_chosen_answer_is_likelier(folder: Path) -> None:
    text, model = ChatText(load_tokenizer(folder)), load_policy(folder)
    rows = [
        {"prompt": f"{n}+1", "chosen": f"#### {n + 1}", "rejected": f"{n}", "subset": "even" if n % 2 == 0 else "odd"}
        for n in range(8)
    ]
    table = table_of([convert(row, "pairs") for row in rows], "pairs")
    table = with_ids(table.with_columns(split=pl.lit("heldout")), "pairs")
    check_table(table, "pairs", Path("t"))
    assert table["subset"].to_list() == ["even", "odd"] * 4
    answers = pair_answers(text, table)
    sums = [math.fsum(logps) for logps in row_logps(model, [one.row for one in answers], DEVICE)]
    found = measure_pairs(table, (answers, sums), odds=False, seed=0)
    right = [float(sums[2 * n] > sums[2 * n + 1]) for n in range(8)]
    assert found.metrics["score"] == np.mean(right)
    assert found.metrics["score_even"] == np.mean(right[0::2]) and found.metrics["score_odd"] == np.mean(right[1::2])
    equal = measure_pairs(table, (answers, [0.0] * 16), odds=True, seed=0)
    assert equal.metrics["score"] == 0.5 and equal.metrics["calibration_error"] == 0
    sure = measure_pairs(table, (answers, [9.0, 0.0] * 8), odds=True, seed=0)
    assert sure.metrics["score"] == 1 and sure.metrics["calibration_error"] < 1e-3
    wrong = measure_pairs(table, (answers, [0.0, 9.0] * 8), odds=True, seed=0)
    assert wrong.metrics["score"] == 0 and wrong.metrics["calibration_error"] > 0.99


def test_questions_without_options_are_left_out_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    good, no_answer = question("a", ["x", "y"], "y"), question("b", ["x", "y"], "z")
    few, letter = question("c", ["x"], "x"), question("d", ["x", "y"], "B")
    kept = readable_questions(prompts([good, no_answer, few, letter]).iter_rows(named=True), "data/t/prompts.parquet")
    assert {prompt.problem for prompt in kept} == {"a", "d"}
    said = capsys.readouterr().err
    assert said.startswith("data/t/prompts.parquet: 2 prompts are left out; prompt ")
    with pytest.raises(DataError, match="no prompt has options") as caught:
        readable_questions(prompts([no_answer, few]).iter_rows(named=True), "data/t/prompts.parquet")
    assert '{"options": [...]}' in caught.value.fix


@pytest.mark.parametrize(
    ("info", "answer", "right"),
    [
        ({"options": ["x", "y"]}, "y", 1),
        ({"options": ["x", "y"]}, "B", 1),
        ({"choices": ["x", "y", "z"]}, "2", 2),
        ({"choices": ["1", "0"]}, "1", 0),
        ({"choices": {"text": ["x", "y"], "label": ["1", "2"]}}, "2", 1),
    ],
    ids=["text", "letter", "place", "text before place", "label"],
)
def test_the_right_option_is_named_as_data_sets_do(info: dict[str, Any], answer: str, right: int) -> None:
    row = {**question("q", ["a", "b"], answer), "info": json.dumps(info)}
    (prompt,) = readable_questions(prompts([row]).iter_rows(named=True), "t")
    assert _options(prompt)[1] == right


def test_a_sure_model_that_is_right_as_often_as_it_says_is_calibrated() -> None:
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.5, 1, 20_000)
    assert calibration_error(sure, (rng.uniform(size=sure.size) < sure).astype(float)) < 0.02
    assert calibration_error(np.full(4, 0.9), np.array([1.0, 0, 0, 0])) == pytest.approx(0.65)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_best_of_k_is_the_mean_over_all_choices_of_k(k: int) -> None:
    by, scores = np.array([3.0, 1.0, 4.0, 1.5, 9.0]), np.array([0.0, 1.0, 1.0, 0.0, 0.5])
    chosen = [scores[max(some, key=lambda place: by[place])] for some in itertools.combinations(range(5), k)]
    assert best_of_k(by, scores, k) == pytest.approx(np.mean(chosen))
    assert best_of_k(np.zeros(5), scores, k) == pytest.approx(scores.mean()), "where nothing is preferred"
    assert best_of_k(scores, scores, k) >= best_of_k(-scores, scores, k)


def test_the_sizes_are_powers_of_two_and_all() -> None:
    assert [sizes(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


INPUTS = {"policy": "sft/main", "reference": "none", "reward_model": "none"}


@pytest.mark.parametrize(
    ("over", "because"),
    [
        ({"data": "a/corpus", "by": "samples"}, "a table of corpus has no prompts to sample"),
        ({"data": "a/pairs", "split": "test"}, "no split test"),
        ({"data": "a/corpus", "samples": 3}, "samples: without effect if by is likelihood"),
        ({"data": "a/corpus", "reference": "sft/main"}, "reference: without effect"),
        ({"data": "a/prompts", "by": "likelihood", "reward": {"correct": 1.0}}, "reward: without effect"),
        ({"data": "a/chat"}, "data"),
    ],
)
def test_settings_that_nothing_reads_are_refused(over: dict[str, Any], because: str) -> None:
    with pytest.raises(ParamsError, match=because):
        check(EvaluateRun, {**INPUTS, **over}, where="evaluate.runs.a")


def test_the_table_decides_the_split_and_how_it_is_measured() -> None:
    for data, split, by in (
        ("a/pairs", "heldout", "likelihood"),
        ("a/corpus", "heldout", "likelihood"),
        ("a/prompts", "test", "samples"),
    ):
        params = check(EvaluateRun, {**INPUTS, "data": data}, where="evaluate.runs.a")
        assert (params.split, params.by) == (split, by)


def test_options_that_are_as_likely_share_the_point() -> None:
    assert [_chosen(np.array([-2.0, -1.0, -1.0]), gold) for gold in range(3)] == [0.0, 0.5, 0.5]
