"""`posttrain reward test`: scores, statuses and failures of the rows of a table."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError, ParamsError, PosttrainError, RewardError
from posttrain.pipeline.commands import reward
from posttrain.pipeline.commands.line import parser
from posttrain.pipeline.commands.reward.inputs import _option
from posttrain.pipeline.commands.reward.trial import reward_test
from posttrain.pipeline.tables.store import write_table
from tests.library.models.tiny import tiny_folder
from tests.pipeline.tables.samples import table_of
from tests.workspace import ROOT, environment

PARAMS = """
format: 2
base: {folders: {start: {path: my/model}}}
data:
  samples:
    moody: {policy: base/start, data: mine/prompts, reward_model: none, template: {mood: calm}}
  filters:
    good: {data: mine/chat, against: none, reward_model: none, reward: {kind: {type: format}}, min_score: 0.5}
online:
  runs:
    grpo:
      algorithm: grpo
      start: base/start
      data: mine/prompts
      corpus: none
      reward_model: none
      reward:
        correct: {weight: 1.0, after: "####"}
        test_rewards_of_rows:has_keys: 1.0
        overlong: 0.5
        length: {weight: 0.1, limit: 8}
        rare: {type: test_rewards_of_rows:unlike_the_others}
      rollout: {sampling: {max_tokens: 4}}
evaluate:
  settings: {data: mine/prompts, reference: none, reward_model: none}
  policies: {late: online/grpo}
  runs: {unlisted: {policy: base/start, data: mine/prompts, reference: none, reward_model: none}}
"""
OWN = """
from pydantic import Field

from posttrain.settings.params import Params
from posttrain.rewards.reward import Examples, rule


class Options(Params):
    least: int = Field(1, description="keys")


@rule(Options)
def has_keys(rollout, options):
    return float(len(keys_of(rollout.prompt)) >= options.least)


def keys_of(prompt):
    return prompt.info["keys"]


def examples(prompt, options):
    return Examples([prompt.answer], ["wrong"])


@rule(examples=examples)
def lenient(rollout, options):
    return 1.0


@rule(cannot_score=lambda prompt, options: prompt.info["why"])
def unsure(rollout, options):
    raise RuntimeError("no server")


@rule()
def takes_text(text):
    return 1.0


def unlike_the_others(rollouts):
    texts = [one.text for one in rollouts]
    if "bad" in texts:
        raise LookupError("no")
    return [float(texts.count(text) == 1) for text in texts]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "custom").mkdir()
    (folder / "custom/test_rewards_of_rows.py").write_text(OWN)
    shutil.copytree(tiny_folder(folder), folder / "models/base/start")
    prompts = table_of("prompts", {0: {"info": '{"keys": ["a"]}'}, 1: {"info": '{"keys": []}'}})
    write_table(prompts, folder / "data/mine/prompts.parquet", "prompts")
    ids = prompts["id"].to_list()
    texts = ["#### 1", "2", "#### 2", "3"]
    rows = {n: {"prompt_id": ids[n // 2], "completion": text} for n, text in enumerate(texts)}
    rows[3] |= {"truncated": True, "completion_ids": [5, 6, 7, 8], "mask": [True] * 4, "logps": [0.0] * 4}
    write_table(table_of("rollouts", rows), folder / "results/grpo/rollouts.parquet", "rollouts")
    return folder


@pytest.fixture(autouse=True)
def inside(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("test_rewards_of_rows", None)


def written(*rows: dict[str, Any]) -> str:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "rows.jsonl"


def shown(
    capsys: pytest.CaptureFixture[str], name: str, table: str, *options: str, run: str | None = None, count: int = 20
) -> tuple[list[str], str, PosttrainError | None]:
    """The line of each row, all that was printed, and the error."""
    error = None
    try:
        print(reward_test(name, table, options, run, count))
    except RewardError as found:
        error = found
    text = capsys.readouterr().out
    return [" ".join(line.split()) for line in text.splitlines() if line.startswith("row ")], text, error


RIGHT = {"prompt": "1+1?", "completion": "#### 2", "answer": "2"}


def test_completions_of_a_file_are_scored(capsys: pytest.CaptureFixture[str]) -> None:
    table = written(RIGHT, {**RIGHT, "completion": "#### 3"}, {**RIGHT, "completion": "2"}, {**RIGHT, "answer": "B"})
    lines, text, error = shown(capsys, "correct", table, "after=####")
    assert [line.split()[2] for line in lines] == ["ok", "ok", "unparseable", "left"]
    assert [line.split()[3] for line in lines] == ["1.000", "0.000", "0.000", "out"]
    assert "it does not end with `#### N`" in lines[2] and "a choice letter" in lines[3] and error is None
    assert "4 rows: 2 ok, 1 unparseable, 1 left out; mean 0.333 of 3 scores; slowest row" in text
    assert "answer      2" in text and r"completion  #### 3" in text
    assert len(shown(capsys, "correct", table, count=2)[0]) == 2


def test_a_csv_file_with_another_separator_and_encoding_is_scored(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.csv").write_bytes("prompt;completion;answer\nWie groß?;#### 2;2\n".encode("cp1252"))
    words = ["reward", "test", "correct", "--table", "rows.csv", "--options", "after=####"]
    print(reward.run(parser("reward").parse_args([*words, "--separator", ";", "--encoding", "cp1252"])))
    assert "1 row: 1 ok; mean 1.000 of 1 score; slowest" in capsys.readouterr().out
    with pytest.raises(DataError, match="set separator"):
        reward.run(parser("reward").parse_args(words))
    with pytest.raises(ParamsError, match="'cp99' is not an encoding"):
        reward.run(parser("reward").parse_args([*words, "--encoding", "cp99"]))
    with pytest.raises(DataError, match="separator and encoding apply only to csv files"):
        reward.run(parser("reward").parse_args([*words[:4], written(RIGHT), "--separator", ";"]))


@pytest.mark.slow
def test_a_row_that_fails_shows_the_lines_of_the_users_file(capsys: pytest.CaptureFixture[str]) -> None:
    table = written({**RIGHT, "info": {"keys": ["a"]}}, {**RIGHT, "info": {"key": "a"}})
    lines, text, error = shown(capsys, "test_rewards_of_rows:has_keys", table)
    assert lines[0].startswith("row 1 ok 1.000") and "row 2 error" in lines[1] and "KeyError: 'keys'" in lines[1]
    shown_frames = [line.strip() for line in text.splitlines() if 'File "' in line]
    assert shown_frames == [
        'File "custom/test_rewards_of_rows.py", line 14, in has_keys',
        'File "custom/test_rewards_of_rows.py", line 18, in keys_of',
    ]
    assert 'return prompt.info["keys"]' in text
    assert "1 of 2 rows failed, the first is row 2" in str(error)
    lines, _, _ = shown(capsys, "test_rewards_of_rows:unsure", written({**RIGHT, "info": {"why": None}}))
    assert "row 1 error" in lines[0] and "FAILED it raised RuntimeError: no server" in lines[0]
    with pytest.raises(
        RewardError, match=r"its `cannot_score` raised KeyError: 'why' \(test_rewards_of_rows.py line 30\)"
    ):
        reward_test("test_rewards_of_rows:unsure", written(RIGHT), [], None, 20)
    with pytest.raises(ParamsError, match="-n = 0"):
        reward_test("correct", written(RIGHT), [], None, 0)


@pytest.mark.slow
def test_prompts_alone_are_scored_by_the_examples_of_the_reward(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"prompt": "?", "answer": '{"a": 1}'}
    lines, _, error = shown(capsys, "json_schema", written(answer), "schema={required: [a]}")
    assert lines[0].startswith("row 1 ok 1.000") and lines[0].endswith("must be 1")
    assert "unparseable 0.000" in lines[1] and "must be 0" in lines[1] and error is None
    lines, _, error = shown(capsys, "json_schema", written(answer), "schema={required: [b]}")
    assert "must be 1 FAILED" in lines[0] and "1 of 2 rows failed" in str(error)
    lines, _, error = shown(capsys, "test_rewards_of_rows:lenient", written(answer))
    assert "must be 0 FAILED" in lines[1] and error is not None
    with pytest.raises(DataError, match="no completions, and the reward has no examples"):
        shown(capsys, "test_rewards_of_rows:has_keys", written(answer))


@pytest.mark.slow
def test_a_table_of_rollouts_has_the_info_of_its_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    table = "results/grpo/rollouts.parquet"
    lines, _, error = shown(capsys, "test_rewards_of_rows:has_keys", table)
    assert [line.split()[3] for line in lines] == ["1.000", "1.000", "0.000", "0.000"] and error is None
    lines, _, _ = shown(capsys, "test_rewards_of_rows:has_keys", table, "least=0")
    assert [line.split()[3] for line in lines] == ["1.000"] * 4


@pytest.mark.slow
def test_a_run_gives_its_options_its_tokens_and_its_longest_completion(capsys: pytest.CaptureFixture[str]) -> None:
    table, run = "results/grpo/rollouts.parquet", "online.runs.grpo"
    lines, _, _ = shown(capsys, "correct", table, run=run)
    assert [line.split()[2] for line in lines] == ["ok", "unparseable", "ok", "unparseable"]
    for name, other in (("correct", "evaluate.runs.unlisted"), ("kind", "data.filters.good")):
        lines, _, _ = shown(capsys, name, written(RIGHT), run=other)
        assert lines[0].startswith("row 1 ok 1.000")
    lines, _, _ = shown(capsys, "overlong", table, run=run)
    assert [line.split()[3] for line in lines] == ["0.000", "0.000", "0.000", "-1.000"]
    lines, _, error = shown(capsys, "length", written(RIGHT), run=run)
    assert lines[0].split()[2] == "ok" and error is None
    _, text, error = shown(capsys, "length", written(RIGHT), "limit=8")
    assert "its tokens are not known; run `reward test` with --run" in text and error is not None
    _, text, error = shown(capsys, "overlong", table)
    assert "sampling.max_tokens is not known here" in text and error is not None


@pytest.mark.slow
def test_a_function_of_all_rollouts_gets_all_rows_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    same = written(RIGHT, RIGHT, {**RIGHT, "completion": "3"})
    for name, run in (("test_rewards_of_rows:unlike_the_others", None), ("rare", "online.runs.grpo")):
        lines, _, _ = shown(capsys, name, same, run=run)
        assert [line.split()[3] for line in lines] == ["0.000", "0.000", "1.000"]
    bad = written(RIGHT, {**RIGHT, "completion": "bad"})
    lines, _, error = shown(capsys, "test_rewards_of_rows:unlike_the_others", bad)
    assert "row 1 ok" in lines[0] and "row 2 error" in lines[1] and "LookupError" in lines[1] and error is not None


@pytest.mark.parametrize(
    ("name", "table", "options", "run", "said"),
    [
        ("corect", "rows.jsonl", [], None, "Did you mean 'correct'?"),
        ("correct", "rows.jsonl", ["aftr=1"], None, "Did you mean 'after'?"),
        ("correct", "rows.jsonl", ["after"], None, "'after' has no '='"),
        ("correct", "rows.jsonl", ["after=["], None, "'after=[' is not YAML"),
        ("correct", "missing.jsonl", [], None, "missing.jsonl: no such table"),
        ("correct", "params.yaml", [], None, ".yaml cannot be read. Use .parquet, .jsonl"),
        (
            "test_rewards_of_rows:takes_text",
            "rows.jsonl",
            [],
            None,
            "(custom/test_rewards_of_rows.py line 35: takes_text(text)): it cannot be called with (rollout, options)",
        ),
        ("format", "rows.jsonl", [], "online.runs.grpo", "online.runs.grpo.reward has no 'format'"),
        ("correct", "rows.jsonl", [], "online.runs.gropo", "Did you mean 'grpo'?"),
        (
            "correct",
            "rows.jsonl",
            [],
            "sft.runs.main",
            "'sft.runs.main' has no rewards. Known here: data.filters.good",
        ),
        ("correct", "rows.jsonl", [], "grpo", "'grpo' has no rewards. Did you mean 'online.runs.grpo'?"),
        ("correct", "rows.jsonl", [], "data.samples.moody", "does not use mood"),
        ("correct", "results/late/rollouts.parquet", [], None, "does not exist yet. Make it: dvc repro evaluate@late"),
        ("correct", "results/grop/rollouts.parquet", [], None, "Did you mean 'results/late/rollouts.parquet'?"),
    ],
)
def test_wrong_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], name: str, table: str, options: list[str], run: str | None, said: str
) -> None:
    written(RIGHT)
    with pytest.raises((ParamsError, DataError)) as caught:
        shown(capsys, name, table, *options, run=run)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"completion": "2"}, "row 2: 'prompt' is missing"),
        ({**RIGHT, "completion": 2}, "row 2: 'completion' is a number"),
        ({**RIGHT, "info": 3}, "row 2: 'info' is 3"),
        ([], "row 2: not a JSON object"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str], row: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        shown(capsys, "correct", written(RIGHT, row))


@pytest.mark.slow
def test_the_command_exits_with_1_where_a_row_failed() -> None:
    table = written({**RIGHT, "info": {"keys": []}}, {**RIGHT, "info": {}})
    for count, status in ((1, 0), (2, 1)):
        words = ["reward", "test", "test_rewards_of_rows:has_keys", "--table", table, "-n", str(count)]
        done = subprocess.run(
            [sys.executable, "-m", "posttrain", *words],
            env=environment() | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stderr
        assert f"{count} row{'s' * (count != 1)}: 1 ok" in done.stdout
        assert ("error: reward 'test_rewards_of_rows:has_keys': 1 of 2 rows failed" in done.stderr) == bool(status)


@pytest.mark.parametrize("mark", ["!", "?", ",", "-", "####", "#1", ""])
def test_marks_are_texts_without_quotes(mark: str) -> None:
    assert _option(f"after={mark}") == ("after", mark or None)
