"""`posttrain preview`: what it shows is what training takes, before anything is trained."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.data.columns import Kind, with_ids
from posttrain.errors import DataError, ParamsError, TableError
from posttrain.pipeline.commands import line
from posttrain.pipeline.commands.preview.text import Style, preview
from posttrain.pipeline.tables.store import write_table
from tests.library.models.tiny import tiny_folder
from tests.pipeline.tables.samples import assistant, table_of, user

PARAMS = """
format: 2
data: {files: {late: {path: my, chat: late.jsonl}}}
evaluate: {policies: {early: sft/early}}
base: {folders: {start: {path: my/model}}, scratch: {tiny: {data: mine/corpus}}}
sft:
  runs:
    main: {start: base/start, data: mine/chat, max_tokens: 40}
    last: {start: sft/main, data: mine/chat, turns: last}
    cut: {start: base/start, data: mine/chat, max_tokens: 40, long_rows: cut}
    early: {start: base/tiny, data: mine/chat}
"""
TALK = [*user("1+1?"), *assistant("2"), *user("2+2\x0b?\nNow."), *assistant("4 <b>")]
LONG = [*user("7+" * 60 + "1?"), *assistant("many")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which nothing has run yet: data, a model folder and params.yaml."""
    folder = tmp_path_factory.mktemp("preview")
    shutil.copytree(tiny_folder(folder), folder / "my/model")
    (folder / "params.yaml").write_text(PARAMS)
    (folder / "my/talk.parquet").touch()
    tables: dict[Kind, Any] = {
        "chat": table_of("chat", {0: {"messages": TALK}, 2: {"messages": LONG}}),
        **{kind: table_of(kind) for kind in ("corpus", "prompts", "pairs", "feedback", "rollouts")},
    }
    for kind, frame in tables.items():
        write_table(frame, folder / f"data/mine/{kind}.parquet", kind)
    return folder


@pytest.fixture(autouse=True)
def inside(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


def shown(table: str = "mine/chat", model: str = "my/model", **changed: Any) -> str:
    style: Style = "plain"
    return preview(table, model, **{"rows": 4, "style": style, "html": None, "turns": None, "longest": None, **changed})


@pytest.mark.slow
def test_what_is_trained_is_marked_and_control_characters_are_escaped() -> None:
    text = shown(rows=1)
    assert (
        "<|user|>1+1?<|end|><|assistant|>{+2<|end|>+}<|user|>2+2\\x0b?\nNow.<|end|><|assistant|>{+4 <b><|end|>+}"
        in text
    )
    assert "row 2," not in text and "turns: all" in text
    assert "<|assistant|>2<|end|><|user|>" in shown(rows=1, turns="last")


def test_a_turn_of_weight_0_is_shown_as_not_trained(made: Path) -> None:
    fields = json.dumps([{}, {"weight": 0}, {}, {}])
    frame = table_of("chat", {0: {"messages": TALK}}).head(1).with_columns(fields=pl.lit(fields)).drop("id")
    write_table(with_ids(frame, "chat"), made / "data/weighted/chat.parquet", "chat")
    text = shown("weighted/chat", rows=1)
    assert "<|assistant|>2<|end|><|user|>" in text and "{+4 <b><|end|>+}" in text


def test_a_run_that_is_not_trained_gives_its_start_and_its_limits() -> None:
    text = shown(model="sft/main")
    assert (
        "tokenizer and chat template: my/model\nlimits: max_tokens = 40, context of the model 256, turns: all" in text
    )
    expected = re.search(r"row 3 \(id \w+\): left out: (\d+) tokens, longer than max_tokens = 40\n", text)
    assert expected and int(expected[1]) > 40
    assert "limits: max_tokens = 256, context of the model 256, turns: last" in shown(model="sft/last")
    assert "longer than max_tokens = 20" in shown(longest=20)


def test_rows_that_training_cuts_are_shown_as_it_cuts_them(made: Path, tmp_path: Path) -> None:
    answered = [*user("1+1?"), *assistant("2+" * 60)]
    write_table(table_of("chat", {0: {"messages": answered}, 2: {"messages": LONG}}), tmp_path / "chat.parquet", "chat")
    text = shown(str(tmp_path / "chat.parquet"), "sft/cut")
    assert "limits: max_tokens = 40, long_rows: cut, context" in text
    assert "\n1 rows are cut at 40 tokens (long_rows: cut)\n" in text
    title = re.search(
        r"conversation 40 tokens, (\d+) trained; cut: (\d+) tokens, longer than max_tokens = 40\n(.*)", text
    )
    assert title and int(title[2]) > 100 and 0 < int(title[1]) < 40
    assert title[3].startswith("<|user|>1+1?<|end|><|assistant|>{+2+2+") and title[3].endswith("+}")
    assert "<|end|>+}" not in title[3], "the end token is cut off"
    assert re.search(r"row 3 .* longer than max_tokens = 40, and no answer would be left of it\n", text)


def test_trained_tokens_are_those_of_the_rows_that_training_takes() -> None:
    rows = re.findall(r"conversation \d+ tokens, (\d+) trained(;?)", shown(model="sft/main"))
    assert sum(int(count) for count, left in rows if not left) == int(
        re.search(r"trained tokens: (\d+)", shown(model="sft/main"))[1]  # type: ignore[index]
    )
    assert [left for _, left in rows] == ["", "", ";", ""]


def test_colours_stand_around_what_is_trained() -> None:
    assert "<|assistant|>\033[32m2<|end|>\033[0m<|user|>" in shown(style="colour", rows=1)
    assert "\033" not in shown()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("corpus", "0{++1=1<|end|>+}"),
        ("prompts", "trained tokens: none, the policy continues the prompts"),
        ("pairs", "[chosen]\n<|user|>What is 0+1?<|end|><|assistant|>{+1<|end|>+}\n[rejected]\n"),
        ("feedback", "liked "),
        ("rollouts", "sample 0 "),
    ],
)
def test_every_kind_of_table(kind: str, expected: str) -> None:
    assert expected in shown(f"mine/{kind}")
    assert shown(f"data/mine/{kind}.parquet", rows=2).startswith(f"data/mine/{kind}.parquet: 4 rows")


def test_rows_that_the_template_refuses_are_named_and_the_others_shown(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "my/model", tmp_path / "odd")
    (tmp_path / "odd/manifest.json").unlink()
    refusing = "{% if '7+7' in messages[0].content %}{{ raise_exception('too many') }}{% endif %}"
    file = tmp_path / "odd/tokenizer_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "chat_template": refusing + config["chat_template"]}))
    text = shown(model=str(tmp_path / "odd"))
    assert re.search(r"row 3 \(id \w+\): refused, which stops the run: .*too many", text)
    assert "{+4 <b><|end|>+}" in text


def test_the_page_marks_what_is_trained_and_runs_nothing(made: Path) -> None:
    assert shown(html=Path("out/preview.html")).endswith("4 rows are shown in out/preview.html")
    page = (made / "out/preview.html").read_text(encoding="utf-8")
    assert "<mark>4 &lt;b&gt;&lt;|end|&gt;</mark>" in page and "2+2\\x0b?<i>↵</i>\nNow." in page
    assert "default-src 'none'" in page and "<script" not in page and "<b>" not in page


@pytest.mark.parametrize(
    ("table", "model", "expected"),
    [
        (
            "mine/chat",
            "sft/mian",
            r"sft/mian: this is neither a model folder nor a run of params.yaml. Did you mean 'sft/main'",
        ),
        ("mine/chat", "sft/early", r"sft/early: the model base/tiny does not exist yet.*dvc repro base_scratch@tiny"),
        (
            "mine/talk",
            "my/model",
            "mine/talk: no such table. Give a file .* or one of late/chat, results/early/rollouts.parquet",
        ),
        ("laet/chat", "my/model", "laet/chat: no such table. Did you mean 'late/chat'?"),
        ("late/chat", "my/model", "late/chat: the table does not exist yet. Make it: dvc repro data_files@late"),
        ("data/late/chat.parquet", "my/model", "does not exist yet. Make it: dvc repro data_files@late"),
        ("my/talk.parquet", "my/model", "this is not the name of a table. Give NAME/KIND with KIND one of corpus, "),
    ],
)
def test_what_cannot_be_shown(table: str, model: str, expected: str) -> None:
    with pytest.raises((DataError, ParamsError, TableError, ValueError), match=expected):
        shown(table, model)


def test_the_command() -> None:
    text = line.run(line.parse(["preview", "mine/chat", "sft/main", "--rows", "1"]))
    assert "{+2<|end|>+}" in text and "\033" not in text
