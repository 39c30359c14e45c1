"""Every rule of every table has a case here that breaks it, and the message is asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.data.columns import COLUMNS, KINDS, ROLLOUT_TEXT, SPLITS, Kind, with_ids
from posttrain.errors import TableError
from posttrain.pipeline.tables.failures import row_failures
from posttrain.pipeline.tables.schemas import schema_of
from posttrain.pipeline.tables.store import check_disjoint, check_table, rejected_path
from tests.pipeline.tables.samples import assistant, table_of, user

NAN, INF = float("nan"), float("inf")
TOOL, SYSTEM = {"role": "tool", "content": "4"}, {"role": "system", "content": "Be brief."}
LONG = "x" * 1_000_001


def assert_rejects(frame: pl.DataFrame, kind: Kind, tmp_path: Path) -> str:
    with pytest.raises(TableError) as caught:
        check_table(frame, kind, tmp_path / f"{kind}.parquet")
    return str(caught.value)


def test_valid_tables_pass_unchanged(kind: Kind, tmp_path: Path) -> None:
    frame = table_of(kind)
    assert check_table(frame, kind, tmp_path / "t.parquet").equals(frame)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_richer_valid_rows_pass(tmp_path: Path) -> None:
    tooled = [SYSTEM, *user("4?"), *assistant("look"), TOOL, *assistant("4")]
    check_table(table_of("chat", {0: {"messages": tooled}}), "chat", tmp_path / "c.parquet")
    check_table(table_of("prompts", {0: {"answer": ""}, 1: {"split": "test"}}), "prompts", tmp_path / "p.parquet")
    empty = {0: {"completion": "", "completion_ids": [0], "mask": [True], "logps": [5e-5]}}
    check_table(table_of("rollouts", empty), "rollouts", tmp_path / "r.parquet")
    turns = {0: {"mask": [True, False, True], "logps": [-0.5, -0.25]}}
    check_table(table_of("rollouts", turns), "rollouts", tmp_path / "r.parquet")
    check_table(table_of("pairs", {0: {"rejected": assistant("a\x00b")}}), "pairs", tmp_path / "q.parquet")


CASES: list[tuple[Kind, str, dict[str, Any], str]] = [
    ("corpus", "text", {"text": " \n"}, "row 2, text = ' \\n': must not be blank"),
    ("corpus", "text", {"text": "a\x00b"}, "row 2, text = 'a\\x00b': must not contain control characters; remove them"),
    ("corpus", "text", {"text": LONG}, "must be at most 1,000,000 characters; split it into documents"),
    ("corpus", "split", {"split": "test"}, "row 2, split = 'test': must be one of train, heldout"),
    ("corpus", "split", {"split": None}, "row 2, split = None: must not be null"),
    ("corpus", "text", {"text": None}, "row 2, text = None: must not be null"),
    ("chat", "messages", {"messages": []}, "row 2, messages = []: must have a turn"),
    ("chat", "messages", {"messages": user("hi")}, "must end with a turn of the role assistant"),
    ("chat", "messages", {"messages": assistant("hi")}, "must have a user turn"),
    ("chat", "messages", {"messages": user(" ") + assistant("a")}, "each content must not be blank"),
    ("chat", "messages", {"messages": user("a") + assistant(None)}, "each content must not be blank"),  # type: ignore[arg-type]
    ("chat", "messages", {"messages": [None, *user("a"), *assistant("b")]}, "each role must be one of system, user"),
    ("chat", "messages", {"messages": [{"role": "bot", "content": "x"}]}, "each role must be one of system, user"),
    ("chat", "messages", {"messages": user("a\x1b[2J") + assistant("b")}, "no content may contain control characters"),
    ("chat", "messages", {"messages": user(LONG) + assistant("b")}, "each content must be at most 1,000,000"),
    (
        "chat",
        "messages",
        {"messages": [*user("a"), SYSTEM, *assistant("b")]},
        "only the first turn may have the role system",
    ),
    ("chat", "problem", {"problem": ""}, "row 2, problem = '': must not be blank"),
    ("chat", "problem", {"problem": "p1", "split": "heldout"}, "row 2, problem = 'p1': must be in one split only"),
    ("prompts", "prompt", {"prompt": user("a") + assistant("b")}, "must end with a turn of the role user"),
    ("prompts", "answer", {"answer": None}, "row 2, answer = None: must not be null"),
    ("prompts", "split", {"split": "dev"}, "must be one of train, heldout, test"),
    ("pairs", "rejected", {"rejected": assistant("3 ")}, "must differ from chosen; drop the pair"),
    ("pairs", "margin", {"margin": -0.5}, "must be finite and not below 0; use 0 for unknown"),
    ("pairs", "chosen", {"chosen": user("x")}, "must end with a turn of the role assistant"),
    ("pairs", "chosen", {"chosen": user("x") + assistant("y")}, "must be one turn; remove the prompt from it"),
    ("pairs", "rejected", {"rejected": []}, "row 2, rejected = []: must have a turn"),
    ("feedback", "completion", {"completion": assistant("")}, "each content must not be blank"),
    ("feedback", "label", {"label": None}, "row 2, label = None: must not be null"),
    (
        "rollouts",
        "completion_ids",
        {"completion_ids": [], "mask": [], "logps": []},
        "must have a token; keep the stop token",
    ),
    (
        "rollouts",
        "prompt_id",
        {"answer": None},
        "must have prompt, answer, completion, completion_ids, mask, logps, or",
    ),
    ("rollouts", "prompt_id", {"logps": None}, "must have logps, or no row of its policy has them"),
    ("prompts", "info", {"info": " \n "}, "must be a JSON object; write {} if it is empty"),
    ("chat", "fields", {"fields": "[7]"}, "must be a JSON list of objects; write [] if it is empty"),
    ("chat", "tools", {"tools": "{}"}, "must be a JSON list of objects"),
    *(
        (kind, "chat_template_kwargs", {"chat_template_kwargs": "x"}, "must be a JSON object")
        for kind in ("chat", "prompts", "pairs", "feedback")
    ),
    ("prompts", "info", {"info": "[]"}, "row 2, info = '[]': must be a JSON object"),
    ("prompts", "info", {"info": "[" * 100_000}, "must be a JSON object"),
    *((kind, "task", {"task": " \n "}, "must be empty or the name") for kind in ("prompts", "rollouts")),
    ("training_rollouts", "task", {"task": "two step"}, "must be empty or the name of a task; rename it"),
    ("rollouts", "status", {"status": " "}, "must be one of ok, unparseable, timeout, error, infrastructure"),
    ("rollouts", "info", {"info": "7"}, "must be a JSON object"),
    ("training_rollouts", "info", {"info": ""}, "must be a JSON object"),
    ("training_rollouts", "sampling", {"sampling": "7"}, "must be a JSON object"),
    ("rollouts", "completion_ids", {"completion_ids": [1, -1, 2]}, "each must be a token id >= 0"),
    ("rollouts", "completion_ids", {"completion_ids": [1, None, 2]}, "each must be a token id >= 0"),
    ("rollouts", "logps", {"logps": [-1.0]}, "row 2, logps = [-1.0]: must have one number for each token of the"),
    ("rollouts", "mask", {"mask": [True], "logps": [-1.0]}, "row 2, mask = [True]: must be as long as completion_ids"),
    (
        "rollouts",
        "mask",
        {"mask": [False, True, True], "logps": [-1.0, -1.0]},
        "row 2, mask = [False, True, True]: must begin and end with a sampled token",
    ),
    ("rollouts", "logps", {"logps": [-1.0, NAN, -1.0]}, "each must be finite"),
    ("rollouts", "logps", {"logps": [-1.0, None, -1.0]}, "each must be finite"),
    ("rollouts", "logps", {"logps": [-1.0, -INF, -1.0]}, "each must be finite"),
    ("rollouts", "logps", {"logps": [-1.0, 0.25, -1.0]}, "each must be <= 0; give log-probabilities"),
    ("rollouts", "reward", {"reward": INF}, "row 2, reward = inf: must be finite"),
    ("rollouts", "reward", {"reward": NAN}, "row 2, reward = nan: must be finite, or missing where"),
    ("rollouts", "sample", {"sample": 1}, "samples of one (policy, prompt_id, greedy) must be numbered 0..n-1"),
    ("rollouts", "policy", {"policy": ""}, "row 2, policy = '': must not be blank"),
    ("rollouts", "prompt_id", {"prompt_id": " "}, "row 2, prompt_id = ' ': must not be blank"),
    ("rollouts", "prompt_id", {"problem": "other"}, "must belong to one problem; take both from the prompts table"),
    ("training_rollouts", "prompt_id", {"prompt_id": " "}, "must not be blank"),
    ("training_rollouts", "prompt_id", {"mask": None}, "must have all of prompt_ids, completion, completion_ids, mask"),
    ("training_rollouts", "draw", {"sample": 1}, "the samples of a draw must be numbered 0..n-1, n the same for all"),
    ("training_rollouts", "draw", {"draw": 2}, "the samples of a draw must be numbered 0..n-1, n the same for all"),
    ("training_rollouts", "draw", {"prompt_id": "f"}, "the samples of a draw must have one prompt"),
    ("training_rollouts", "version", {"version": ""}, "must not be blank"),
    ("training_rollouts", "prompt_ids", {"prompt_ids": []}, "must have a token"),
    ("training_rollouts", "prompt_ids", {"prompt_ids": [-1]}, "each must be a token id >= 0"),
    (
        "training_rollouts",
        "completion_ids",
        {"completion_ids": [], "mask": [], "logps": []},
        "must have a token; keep the stop token",
    ),
    ("training_rollouts", "completion_ids", {"completion_ids": [1, -1, 2]}, "each must be a token id >= 0"),
    ("training_rollouts", "mask", {"mask": [True], "logps": [-1.0]}, "must be as long as completion_ids"),
    (
        "training_rollouts",
        "mask",
        {"mask": [True, True, False], "logps": [-0.5, -1.25]},
        "must begin and end with a sampled token",
    ),
    ("training_rollouts", "logps", {"logps": [-1.0]}, "must have one number for each token of the mask"),
    ("training_rollouts", "logps", {"logps": [-1.0, NAN, -1.0]}, "each must be finite"),
    ("training_rollouts", "logps", {"logps": [-1.0, 0.25, -1.0]}, "each must be <= 0"),
    ("training_rollouts", "kept_counts", {"kept_ids": [1], "kept_counts": [2, 0, 0]}, "must count the kept tokens of"),
    ("training_rollouts", "length", {"length": 0}, "must be at least 1"),
    ("training_rollouts", "finish", {"finish": "ended"}, "must be one of stop, length"),
    ("training_rollouts", "reward", {"reward": NAN}, "must be finite, or missing"),
    ("training_rollouts", "outcome", {"outcome": INF}, "must be finite, or missing"),
    ("training_rollouts", "advantage", {"advantage": NAN}, "must be finite, or missing"),
    ("completions", "prompt_id", {"prompt_id": " "}, "must not be blank"),
    ("completions", "sample", {"sample": 1}, "samples of one (prompt_id, greedy) must be numbered 0..n-1"),
    ("completions", "prompt_ids", {"prompt_ids": []}, "must have a token"),
    ("completions", "prompt_ids", {"prompt_ids": [-1]}, "each must be a token id >= 0"),
    (
        "completions",
        "completion_ids",
        {"completion_ids": [], "mask": [], "logps": []},
        "must have a token; keep the stop token",
    ),
    ("completions", "completion_ids", {"completion_ids": [1, -1, 2]}, "each must be a token id >= 0"),
    ("completions", "mask", {"mask": [True], "logps": [-1.0]}, "must be as long as completion_ids"),
    (
        "completions",
        "mask",
        {"mask": [True, True, False], "logps": [-0.5, -1.25]},
        "must begin and end with a sampled token",
    ),
    ("completions", "logps", {"logps": [-1.0]}, "must have one number for each token of the mask"),
    ("completions", "logps", {"logps": [-1.0, NAN, -1.0]}, "each must be finite"),
    ("completions", "logps", {"logps": [-1.0, 0.25, -1.0]}, "each must be <= 0"),
    ("completions", "turns", {"turns": "{}"}, "must be a JSON list of objects; write [] if it is empty"),
    ("completions", "finish", {"finish": "ended"}, "must be one of stop, length, turns, timeout, error; rename it"),
    ("completions", "info", {"info": ""}, "must be a JSON object"),
    ("completions", "gain", {"gain": NAN}, "must be finite, or missing"),
    ("regraded", "rollout", {"rollout": " "}, "must not be blank"),
    ("regraded", "prompt_id", {"prompt_id": " "}, "must not be blank"),
    ("regraded", "before", {"before": INF}, "must be finite, or missing"),
    ("regraded", "reward", {"reward": NAN}, "must be finite, or missing where the status is a failure"),
    ("regraded", "reward", {"reward": None}, "must be finite, or missing where the status is a failure"),
    ("regraded", "status", {"status": "wrong"}, "must be one of ok, unparseable, timeout, error, infrastructure"),
    ("matches", "prompt_id", {"prompt_id": " "}, "must not be blank"),
    ("matches", "second", {"second": "sft"}, "must differ from first"),
    ("matches", "win", {"win": 0.25}, "must be 0, 0.5 or 1"),
    ("matches", "win", {"win": 1.0}, "must agree with margin"),
    ("matches", "status", {"win": None}, "must be ok where there is a win"),
]


@pytest.mark.parametrize(("kind", "column", "change", "expected"), CASES)
def test_a_broken_rule_is_reported_with_row_value_and_fix(
    kind: Kind, column: str, change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    message = assert_rejects(table_of(kind, {2: change}), kind, tmp_path)
    assert message.startswith(f"{tmp_path}/{kind}.parquet: ")
    assert f"row 2, {column} = " in message
    assert expected in message
    assert message.endswith(str(rejected_path(tmp_path / f"{kind}.parquet")))
    assert max(len(line) for line in message.splitlines()[1:]) < 400
    rejected = pl.read_parquet(rejected_path(tmp_path / f"{kind}.parquet"))
    own = ["own_reason" if name == "reason" else name for name in table_of(kind, {2: change}).columns]
    assert rejected.columns == ["row", "reason", *own]
    assert 2 in rejected["row"]


@pytest.mark.slow
def test_every_rule_has_a_case() -> None:
    """A rule that no case breaks could be wrong without anybody noticing."""
    broken = {kind: set[str]() for kind in KINDS}
    for kind, _, change, _ in CASES:
        broken[kind] |= {f"{one.column} {one.rule}" for one in row_failures(table_of(kind, {2: change}), kind)}
    elsewhere = ("id ", "sample groups of one policy", "length ", "logp ")
    turn_rules_tested_in_chat = {"prompts", "pairs", "feedback", "rollouts"}
    for kind in KINDS:
        for name, column in schema_of(kind).columns.items():
            shared = kind in turn_rules_tested_in_chat and name in ("prompt", "chosen", "rejected", "completion")
            for check in column.checks:
                rule = f"{name} {check.error}"
                if rule.startswith(elsewhere) or shared or name in ("problem", "split"):
                    continue
                assert rule in broken[kind], f"no case breaks: {kind} {rule}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "expected"), [("length", 0, "length = 0: must be at least 1"), ("logp", NAN, "logp = nan: must")]
)
def test_rollouts_without_text_have_figures(name: str, value: float, expected: str, tmp_path: Path) -> None:
    rows = table_of("rollouts").with_columns(
        pl.lit(None).cast(COLUMNS["rollouts"][one]).alias(one) for one in ROLLOUT_TEXT
    )
    assert "row 0, prompt_id = '0000000000000000': must have prompt, answer," in assert_rejects(
        with_ids(rows, "rollouts"), "rollouts", tmp_path
    )
    told_by = with_ids(rows.with_columns(length=pl.lit(3, pl.Int64()), logp=-1.5), "rollouts")
    assert check_table(told_by, "rollouts", tmp_path / "r.parquet").equals(told_by)
    wrong = told_by.with_columns(pl.lit(value).cast(told_by.schema[name]).alias(name))
    assert expected in assert_rejects(wrong, "rollouts", tmp_path)


def test_wrong_and_repeated_ids_are_refused(kind: Kind, tmp_path: Path) -> None:
    frame = table_of(kind)
    wrong = frame.with_columns(id=pl.Series(["0" * 16, *frame["id"][1:]]))
    assert "row 0, id = '0000000000000000': must be the hash of " in assert_rejects(wrong, kind, tmp_path)
    double = pl.concat([frame, frame[1:2]])
    message = assert_rejects(double, kind, tmp_path)
    assert "row 1, id = " in message
    assert "row 4, id = " in message
    assert "must be unique; remove duplicate rows" in message


def test_an_incomplete_group_of_samples_is_refused(tmp_path: Path) -> None:
    message = assert_rejects(table_of("rollouts", rows=5), "rollouts", tmp_path)
    assert "1 failure in 1 of 5 rows" in message
    assert "row 4, sample = 0: groups of one policy must have the same number of samples" in message


def test_greedy_and_sampled_groups_may_have_different_sizes(tmp_path: Path) -> None:
    greedy = {4: {"greedy": True, "sample": 0}}
    check_table(table_of("rollouts", greedy, rows=5), "rollouts", tmp_path / "r.parquet")


def test_all_wrong_columns_are_reported_at_once(tmp_path: Path) -> None:
    frame = table_of("prompts").rename({"answer": "anwser"}).with_columns(pl.lit(1).alias("problem"))
    message = assert_rejects(frame, "prompts", tmp_path)
    assert "column 'answer' (str) is missing" in message
    assert "column 'anwser' does not belong in a 'prompts' table. Did you mean 'answer'?" in message
    assert "column 'problem' has the type int32, not str" in message
    assert list(tmp_path.iterdir()) == []


def test_column_order_and_turn_fields(tmp_path: Path) -> None:
    frame = table_of("corpus").select("split", "id", "text")
    assert "is in the wrong place (the order is id, split, text)" in assert_rejects(frame, "corpus", tmp_path)
    swapped = pl.List(pl.Struct({"content": pl.String, "role": pl.String}))
    frame = table_of("chat").with_columns(pl.col("messages").cast(swapped))
    expected = "has the type list[struct{content: str, role: str}], not list[struct{role: str, content: str}]"
    assert expected in assert_rejects(frame, "chat", tmp_path)


def test_empty_table(kind: Kind, tmp_path: Path) -> None:
    assert f"the '{kind}' table has no rows" in assert_rejects(table_of(kind).clear(), kind, tmp_path)


def test_failures_of_every_rule_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    changes = {n: {"text": " "} if n != 20 else {"split": "nowhere"} for n in range(30)}
    changes = {n: {**change, "text": " " * (n + 1)} if n != 20 else change for n, change in changes.items()}
    message = assert_rejects(table_of("corpus", changes, rows=40), "corpus", tmp_path)
    assert "30 failures in 30 of 40 rows" in message
    assert "row 20, split = 'nowhere'" in message, "one rule's many failures must not hide another's"
    assert message.count("row ") == 10
    assert "and 20 more" in message


def test_rejected_rows_are_in_a_file_that_a_valid_table_removes(tmp_path: Path) -> None:
    target = tmp_path / "pairs.parquet"
    bad = table_of("pairs", {1: {"rejected": assistant("2"), "split": "x"}, 3: {"rejected": assistant("4")}})
    message = assert_rejects(bad, "pairs", tmp_path)
    assert "3 failures in 2 of 4 rows" in message
    rejected = pl.read_parquet(rejected_path(target))
    assert rejected["row"].to_list() == [1, 3]
    assert rejected["reason"][0] == "split must be one of train, heldout; rename it; " + rejected["reason"][1]
    assert rejected["reason"][1] == "rejected must differ from chosen; drop the pair"
    assert rejected.drop("row", "reason").equals(bad[[1, 3]])
    check_table(table_of("pairs"), "pairs", target)
    assert not rejected_path(target).exists()


def test_validation_cannot_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pandera.config import CONFIG

    monkeypatch.setattr(CONFIG, "validation_enabled", False)
    assert_rejects(table_of("corpus", {0: {"text": " "}}), "corpus", tmp_path)
    assert_rejects(table_of("corpus").drop("split"), "corpus", tmp_path)


def test_disjoint_across_tables() -> None:
    chat, prompts = table_of("chat"), table_of("prompts", {1: {"split": "test"}})
    with pytest.raises(TableError, match="1 problem is in more than one split") as caught:
        check_disjoint({"chat": chat, "prompts": prompts})
    assert "problem 'p1' is in train (chat), test (prompts)" in str(caught.value)
    check_disjoint({"chat": chat, "prompts": table_of("prompts"), "rollouts": table_of("rollouts")})
    twins = {split: table_of("corpus").with_columns(split=pl.lit(split)) for split in SPLITS["corpus"]}
    with pytest.raises(TableError, match="4 ids are in more than one split"):
        check_disjoint(twins)
