"""`check` reads the first rows of every file and calls each own reward once, and says what it did not read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.errors import DataError, ParamsError
from posttrain.pipeline.checks.check_rows import check_rows
from posttrain.pipeline.runs.online import online_run
from posttrain.pipeline.runs.training import RunInputs
from posttrain.pipeline.tables.prepare import prepare
from posttrain.pipeline.tables.sources import file_tables
from posttrain.pipeline.tables.store import read_table
from posttrain.rewards.catalog import term
from posttrain.settings import user_code
from posttrain.settings.user_code import load_object
from tests.workspace import ROOT, environment

ROWS = [{"prompt": f"{n}+1?", "completion": str(n + 1), "answer": str(n + 1)} for n in range(60)]


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my").mkdir()
    (tmp_path / "custom").mkdir()
    put(ROWS)
    return tmp_path


def put(rows: list[Any], name: str = "a.jsonl") -> None:
    Path("my", name).write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))


def write(chat: Any = "a.jsonl", **others: Any) -> None:
    files = {"mine": {"path": "my", "chat": chat, **others.pop("tables", {})}}
    Path("params.yaml").write_text(json.dumps({"data": {"files": files}, **others}))


def fault() -> str:
    with pytest.raises(ParamsError) as caught:
        check_rows()
    return str(caught.value)


def test_variables_of_rows_that_the_template_does_not_read_are_noted() -> None:
    base = {"scratch": {"tiny": {"data": "mine/corpus"}}}
    sft = {"runs": {"main": {"start": "base/tiny", "data": "mine/chat"}}}
    put([{**row, "chat_template_kwargs": {"enable_thinking": False}} for row in ROWS])
    write(base=base, sft=sft)
    named = "chat_template_kwargs of mine/chat has enable_thinking"
    assert check_rows() == f"note: sft.runs.main: {named}, which the chat template of base/tiny does not read"
    put([{**row, "chat_template_kwargs": {"messages": 1}} for row in ROWS])
    assert "messages means something else in a template" in fault()


def test_right_rows_are_right() -> None:
    write()
    assert check_rows() == ""


@pytest.mark.parametrize(
    ("rows", "chat", "said"),
    [
        ([], "a.jsonl", "my/a.jsonl has no rows"),
        (
            [{"question": "a", "reply": "b"}],
            "a.jsonl",
            "a 'chat' table cannot be made from the columns question, reply",
        ),
        (ROWS, {"path": "a.jsonl", "rename": {"reply": "completion"}}, "my/a.jsonl has no column 'reply' to rename"),
        (
            [{"ticket": str(n), "completion": "b"} for n in range(101)],
            {"path": "a.jsonl", "rename": {"prompt": "tiket"}},
            "no column 'prompt' to rename; it has ticket, completion. Did you mean rename: {ticket: prompt}?",
        ),
        (
            [*ROWS, {"prompt": "a", "completion": None}],
            "a.jsonl",
            "my/a.jsonl line 61: 'completion' is missing or null",
        ),
        ([*ROWS, {"prompt": "a", "completion": " "}], "a.jsonl", "my/a.jsonl line 61, messages = "),
        ([*ROWS, "{"], "a.jsonl", "my/a.jsonl line 61: not valid JSON"),
    ],
)
def test_wrong_first_rows_are_named(rows: list[Any], chat: Any, said: str) -> None:
    put(rows)
    write(chat)
    assert said in fault()


def test_the_splits_of_an_entry_are_tried_on_what_was_read() -> None:
    """Pairs have a column `chosen`, which once was the name of a helper column too."""
    splits = {1: "train", 2: "heldout"}
    pairs = [{"prompt": f"{n}+1?", "chosen": "2", "rejected": "3", "split": split} for n, split in splits.items()]
    put(pairs, "pairs.jsonl")
    put([{"prompt": "1+1?", "answer": "2", "split": "test"}], "prompts.jsonl")
    write(None, tables={"pairs": "pairs.jsonl", "prompts": "prompts.jsonl"})
    said = fault()
    assert "1 row whose problem is in another split in another table's files" in said
    assert "my/pairs.jsonl line 1: train, elsewhere test" in said
    put(
        [
            {"prompt": "1+1?", "chosen": "2", "rejected": "3"},
            *({**ROWS[n], "chosen": "a", "rejected": "b"} for n in range(9)),
        ],
        "pairs.jsonl",
    )
    assert check_rows() == ""
    put([{"prompt": f"{n}?", "answer": "2", "split": "train"} for n in range(101)], "more.jsonl")
    put(pairs, "pairs.jsonl")
    write(None, tables={"pairs": "pairs.jsonl", "prompts": ["prompts.jsonl", "more.jsonl"]})
    assert "note: not read" in check_rows(), "later rows may change what the others are"


GRPO = {"algorithm": "grpo", "start": "base/tiny", "data": "mine/prompts", "corpus": "none", "reward_model": "none"}


def learns(rows: list[Any], run: dict[str, Any] | None = None) -> None:
    """params.yaml with an online run on these prompts."""
    put(rows)
    base = {"scratch": {"tiny": {"data": "mine/corpus"}}}
    write(None, tables={"prompts": "a.jsonl"}, base=base, online={"runs": {"grpo": {**GRPO, **(run or {})}}})


def words(count: int, of: int) -> list[dict[str, str]]:
    """So many answers are words, all of them after the first 100 rows."""
    return [{"prompt": f"{n}?", "answer": "in words" if of - count <= n else str(n)} for n in range(of)]


def test_answers_that_correct_cannot_read_are_found_before_a_run_without_a_reward() -> None:
    """GRPO found them hours later; the first 100 rows of a sorted file say nothing of the others."""
    learns(words(150, 600))
    said = fault()
    assert "online.runs.grpo.reward: it sets no reward, so training uses `correct`, which cannot read 1" in said
    assert "answers of 600 rows of mine/prompts, drawn with the seed 0" in said
    assert re.search(r"my/a\.jsonl line \d+: 'in words' \(", said)
    assert "Set the reward to train on, e.g. reward: {correct: {answer: exact}} for labels" in said


def test_a_run_that_sets_its_reward_or_has_few_such_answers_is_not_refused() -> None:
    learns(words(150, 600), {"reward": {"correct": {"answer": "exact"}}})
    assert "no reward" not in check_rows()
    learns(words(10, 600))
    said = "note: online.runs.grpo has no reward: `correct` was tried on the answers of 600 rows of mine/prompts"
    assert said in check_rows()
    learns(words(0, 3000))
    assert "answers of 1,000 rows of mine/prompts, drawn with the seed 0" in check_rows()


def measures(rows: Any, settings: dict[str, Any] | None = None) -> None:
    """params.yaml with an evaluation on these prompts."""
    base = {"scratch": {"tiny": {"data": "mine/corpus"}}}
    measured = {"data": "mine/prompts", "reference": "base/tiny", "reward_model": "none", **(settings or {})}
    evaluate = {"settings": measured, "policies": {"tiny": "base/tiny"}}
    write(None, tables={"prompts": rows}, base=base, evaluate=evaluate)


@pytest.mark.parametrize(("count", "refused"), [(600, True), (150, True), (10, False)])
def test_an_evaluation_whose_reward_cannot_read_the_answers_is_refused_before_anything_is_trained(
    count: int, refused: bool
) -> None:
    put(words(count, 600))
    measures("a.jsonl")
    if not refused:
        assert "`correct` was tried on the answers of 600 rows" in check_rows()
        return
    said = fault()
    assert "evaluate.settings.reward: it sets no reward, so its score uses `correct`, which cannot read" in said
    assert "{correct: {answer: exact}} for labels" in said


def test_the_answers_of_a_test_file_are_tried() -> None:
    """Training rows with numbers say nothing of a test file with labels."""
    labels = [{"prompt": f"Is {n} even?", "answer": "yes" if n % 2 else "no"} for n in range(110)]
    put(labels, "eval.jsonl")
    measures({"path": "eval.jsonl", "splits": {"test": "eval"}})
    assert "cannot read 110 of 110 answers of 110 rows of mine/prompts" in fault()
    put(words(0, 3000), "train.jsonl")
    both = {"path": "*.jsonl", "splits": {"train": "train", "test": "eval"}}
    Path("my/a.jsonl").unlink()
    measures(both)
    assert "cannot read 110 of 110 answers of 110 rows of mine/prompts" in fault()
    measures(both, {"split": "train"})
    assert "tried on the answers of 1,000 rows" in check_rows()
    measures(both, {"reward": {"correct": {"answer": "exact"}}})
    assert "no reward" not in check_rows()


def test_prompts_without_any_answer_are_noted() -> None:
    put([{"prompt": f"{n}?"} for n in range(60)])
    measures("a.jsonl")
    assert "evaluate.settings has no reward, and `correct` can read no answer of 0 rows" in check_rows()


@pytest.mark.parametrize(("wrong", "refused"), [(200, True), (6, True), (5, False)])
def test_more_wrong_rows_than_may_be_left_out_are_an_error_in_long_files_too(wrong: int, refused: bool) -> None:
    put([{"prompt": f"{n}+1?", "completion": " " if n < wrong else "2"} for n in range(200)])
    write({"path": "a.jsonl", "bad_rows": "drop"})
    if not refused:
        assert "note: not read" in check_rows()
        return
    said = fault()
    assert "rows of the 100 that were read are wrong, more than bad_rows: {drop: 0.05} leaves out" in said
    assert "my/a.jsonl line 1, messages = " in said


def test_tables_of_other_stages_are_judged_by_their_rows(workspace: Path) -> None:
    learns(words(150, 600))
    prepare("mine", file_tables)
    train = read_table("data/mine/prompts.parquet", "prompts").filter(split="train")
    unread = train.filter(answer="in words").height
    (workspace / "data/mine").rename(workspace / "data/other")
    write(None, tables={"prompts": "a.jsonl"}, online={"runs": {"grpo": {**GRPO, "data": "other/prompts"}}})
    said = fault()
    assert f"cannot read {unread} of {train.height} answers of {train.height} rows of data/other/prompts" in said
    assert "'in words' (" in said and "of prompt " in said
    params: Any = SimpleNamespace(start="base/tiny", data="other/prompts", reward={"correct": term("correct", 1.0)})
    with pytest.raises(DataError, match="it sets no reward, so training uses `correct`, which cannot read"):
        online_run(RunInputs("online@grpo", params))


def test_what_is_not_read_is_said() -> None:
    put([{"prompt": f"{n}+1?", "completion": str(n)} for n in range(100)] + ["{"])
    hub = {"chat": {"name": "a/b", "revision": "a" * 40}}
    Path("params.yaml").write_text(
        json.dumps({"data": {"files": {"mine": {"path": "my", "chat": "a.jsonl"}}, "hub": {"ultra": hub}}})
    )
    assert check_rows() == "note: not read: the rows after the first 100 of my/a.jsonl, data.hub.ultra"


def test_a_test_file_that_another_entry_trains_on_is_noted_with_the_entry_and_the_fix() -> None:
    """The same file, and its rows in another file; a table that no run learns from is not named."""
    exam = [{"prompt": f"How many apples are in basket {n}?", "completion": "5", "answer": "5"} for n in range(40)]
    put(exam, "exam.jsonl")
    put([*ROWS, *exam[:3]], "copy.jsonl")
    held = {"path": "my", "prompts": {"path": "exam.jsonl", "splits": {"test": "exam"}}}
    files = {"held": held, "same": {"path": "my", "chat": "exam.jsonl"}, "copied": {"path": "my", "chat": "copy.jsonl"}}
    runs = {"a": {"start": "base/a", "data": "same/chat"}, "b": {"start": "base/a", "data": "copied/chat"}}

    def notes(**sft: Any) -> list[str]:
        Path("params.yaml").write_text(json.dumps({"data": {"files": files}, "sft": {"runs": sft}}))
        return [line for line in check_rows().splitlines() if "test prompt" in line]

    same, copied = notes(**runs)
    assert "note: same/chat: " in same and "training rows have the question of a test prompt of held/prompts" in same
    assert same.endswith(". data.files.same.chat and data.files.held.prompts both read my/exam.jsonl")
    assert "note: copied/chat: 2 training rows have the question of a test prompt of held/prompts" in copied
    assert "data.filters: {copied_chat_clean: {data: copied/chat, against: held/prompts, reward_model: none}}" in copied
    assert notes(a={"start": "base/a", "data": "copied_chat_clean/chat"}) == []


def test_a_column_that_only_later_rows_have_is_no_fault() -> None:
    put([*({"prompt": f"{n}", "answer": "1"} for n in range(100)), {"prompt": "x", "hint": "y"}])
    write(tables={"prompts": {"path": "a.jsonl", "info": ["hint"]}}, chat=None)
    assert "the rows after the first 100" in check_rows()


def rewarded(code: str, reward: Any = None) -> None:
    """params.yaml with a reward of this code, and prompts in a file."""
    Path("custom/mine.py").write_text(code)
    run = {"algorithm": "grpo", "start": "base/a", "data": "mine/prompts", "corpus": "none", "reward_model": "none"}
    runs = {"grpo": {**run, "reward": reward or {"mine:good": {"timeout": 2.0}}}}
    write(tables={"prompts": "a.jsonl"}, chat=None, online={"runs": runs})


RULE = "from posttrain.rewards.reward import rule\n\n\n@rule()\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            f"{RULE}def good(text):\n    return 1.0\n",
            "it cannot be called with (rollout, options): too many positional",
        ),
        (
            "def good(prompts, completions):\n    return [1.0]\n",
            "it cannot be called with (rollouts): missing a required",
        ),
        (f"{RULE}def good(rollout, options):\n    return 'yes'\n", "it returned 'yes'. Return a number or a Score"),
        (
            f"{RULE}def good(rollout, options):\n    return rollout.reply\n",
            "it raised AttributeError: 'Rollout' object",
        ),
        (f"{RULE}def good(rollout, options):\n    while True:\n        pass\n", "it took longer than 2 s"),
        (f"import os\n{RULE}def good(rollout, options):\n    os._exit(0)\n", "died 2 times (exit status 0)"),
        ("def good(rollouts):\n    return []\n", "it returned 0 scores for 1 rollout"),
    ],
)
def test_a_reward_that_gives_no_score_is_named(code: str, said: str) -> None:
    rewarded(code)
    try:
        assert said in fault()
    finally:
        sys.modules.pop("mine", None)


def test_a_reward_with_a_name_of_its_own_is_called() -> None:
    rewarded("def good(rollouts):\n    return []\n", {"correct": 1.0, "brief": {"type": "mine:good", "weight": 0.1}})
    try:
        assert "online.runs.grpo: reward 'brief': it returned 0 scores for 1 rollout" in fault()
    finally:
        sys.modules.pop("mine", None)


def test_a_reward_of_a_filter_is_called() -> None:
    Path("custom/mine.py").write_text("def good(rollouts):\n    return []\n")
    best = {"data": "mine/chat", "against": "none", "reward_model": "none", "reward": {"mine:good": 1.0}, "best": 1}
    files = {"mine": {"path": "my", "chat": "a.jsonl"}}
    Path("params.yaml").write_text(json.dumps({"data": {"files": files, "filters": {"best": best}}}))
    try:
        assert "data.filters.best: reward 'mine:good': it returned 0 scores for 1 rollout" in fault()
    finally:
        sys.modules.pop("mine", None)


def test_a_right_reward_is_called_on_the_first_prompt() -> None:
    rewarded(f"{RULE}def good(rollout, options):\n    return float(rollout.text == rollout.prompt.answer == '1')\n")
    assert check_rows() == ""
    sys.modules.pop("mine")


ENDINGS = {
    "os._exit": ("import os\nos._exit(0)\n", "it calls os._exit(0) at import"),
    "sys.exit": ("import sys\nsys.exit(0)\n", "it calls sys.exit(0) at import"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt\n", "it raises KeyboardInterrupt at import"),
    "another BaseException": ("raise GeneratorExit('no')\n", "cannot be imported (GeneratorExit: no)"),
    "loop": ("while True:\n    pass\n", "its import takes longer than 0.5 s"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_module_that_does_not_end_its_import_is_an_error(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = ENDINGS[ending]
    Path("custom/ending.py").write_text(code)
    monkeypatch.setattr(user_code, "IMPORT_SECONDS", 0.5)
    for _ in range(2):
        with pytest.raises(ParamsError, match=r"custom/ending.py") as caught:
            load_object("ending:good", "reward")
        assert said in str(caught.value)


CLOSES = {
    "streams": ("import sys\nsys.stdout.close()\nsys.stderr.close()\nsys.__stdout__.close()\nsys.__stderr__.close()\n"),
    "descriptors": "import os\nos.close(1)\nos.close(2)\n",
}
LOADS = """
from posttrain.errors import ParamsError
from posttrain.measure.terminal import make_streams_safe
from posttrain.settings.user_code import load_object
import sys

if sys.argv[1] == "safe":
    make_streams_safe()
try:
    load_object("closing:good", "reward")
except ParamsError as error:
    print(error)
    print(error, file=sys.stderr)
"""


@pytest.mark.parametrize("streams", ["plain", "safe"])
@pytest.mark.parametrize("what", CLOSES)
def test_a_module_that_closes_the_output_is_an_error_that_is_said(what: str, streams: str) -> None:
    Path("custom/closing.py").write_text(CLOSES[what])
    done = subprocess.run(
        [sys.executable, "-c", LOADS, streams], env=environment() | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    for said in (done.stdout, done.stderr):
        assert "custom/closing.py: it closes stdout and stderr at import" in said, done


def test_ctrl_c_during_an_import_is_no_fault_of_the_file() -> None:
    Path("custom/pressed.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nx = 1\n")
    with pytest.raises(KeyboardInterrupt):
        load_object("pressed:x", "reward")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "words"), [("os._exit", ("posttrain", "check")), ("sys.exit", ("stages.online", "grpo"))]
)
def test_no_command_ends_with_success(ending: str, words: tuple[str, ...]) -> None:
    rewarded(ENDINGS[ending][0])
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and ENDINGS[ending][1] in done.stderr, done.stderr


def test_a_file_named_for_tests_that_is_not_used_for_the_score_is_noted() -> None:
    asked = [{"prompt": f"What is {n} plus 1?", "answer": str(n + 1)} for n in range(90)]
    put(asked[:60], "quiz.jsonl")
    put(asked[60:], "eval.jsonl")
    measures([{"path": "quiz.jsonl"}, {"path": "eval.jsonl"}])
    said = next(line for line in check_rows().splitlines() if "the score will be on" in line)
    assert re.fullmatch(
        r"note: data\.files\.mine\.prompts: the score will be on \d+ prompts taken from my/quiz\.jsonl \(test_share\); "
        r"to use my/eval\.jsonl: splits: \{test: eval\}",
        said,
    )
    measures([{"path": "quiz.jsonl"}, {"path": "eval.jsonl", "splits": {"test": "eval"}}])
    assert "the score will be on" not in check_rows()
