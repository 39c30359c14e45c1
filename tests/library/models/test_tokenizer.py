"""The tokenizer of an imported model: its end token, its pad token and its chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ModelError
from posttrain.models.files.store import load_tokenizer
from posttrain.models.files.tokenizer import (
    TEMPLATE,
    _missing,
    _read_template,
    _stated_ends,
    check_template,
    complete_tokenizer,
    template_fault,
    written_template,
)
from tests.library.models.imported_models import CHATML, INST, PLAIN, edited, policy_folder, scorer_folder

FAULT = "UndefinedError('list object has no element 9') (line 1 of the template)"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy without a template, and a scorer."""
    place = tmp_path_factory.mktemp("tokenizers")
    policy_folder(place / "policy", template=None, ends=[0])
    scorer_folder(place / "scorer")
    return place


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("custom").mkdir()
    Path("custom/own.jinja").write_text(CHATML, encoding="utf-8")
    return Path(shutil.copytree(made / "policy", tmp_path / "model"))


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    return found


def test_what_chat_training_needs_is_added(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    complete_tokenizer(folder, Path("files"))
    found = config_of(Path("files"))
    assert (found["pad_token"], found["eos_token"]) == ("<|endoftext|>", "<|endoftext|>")
    assert found["chat_template"] == TEMPLATE
    assert capsys.readouterr().out == (
        f"{folder}: the tokenizer has no pad token, so the end token <|endoftext|> serves as one; it has no chat "
        "template, so a turn is written as its role, a line break, its text and <|endoftext|>\n"
    )


def test_entries_that_are_missing(folder: Path, made: Path) -> None:
    added, messages = _missing(folder, folder, None)
    assert added == {"pad_token": "<|endoftext|>", "chat_template": TEMPLATE} and len(messages) == 2
    added, messages = _missing(folder, folder, CHATML)
    assert added == {"pad_token": "<|endoftext|>", "chat_template": CHATML} and len(messages) == 1
    scorer = made / "scorer"
    assert _missing(scorer, scorer, None)[0] == {"pad_token": "</s>"}


def test_the_end_token_of_the_config_stands_in_for_one_that_is_missing(folder: Path) -> None:
    edited(folder / "tokenizer_config.json", eos_token=None)
    added, _ = _missing(folder, folder, CHATML)
    assert added["eos_token"] == "<|endoftext|>"
    for name in ("config.json", "generation_config.json"):
        edited(folder / name, eos_token_id=None)
    with pytest.raises(ModelError, match="the tokenizer has no end token"):
        _missing(folder, folder, CHATML)


@pytest.mark.parametrize(
    ("config", "ends"),
    [
        ({"eos_token_id": 2}, [2]),
        ({"eos_token_id": [2, 1]}, [2, 1]),
        ({"eos_token_id": None, "text_config": {"eos_token_id": 1}}, [1]),
        ({"eos_token_id": None}, [0]),
    ],
)
def test_end_tokens_are_stated_in_either_file(folder: Path, config: dict[str, Any], ends: list[int]) -> None:
    edited(folder / "config.json", **config)
    assert list(_stated_ends(folder)) == ends


def test_the_token_that_a_template_writes_after_an_answer_ends_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complete_tokenizer(folder, Path("files"), "custom/own.jinja")
    assert check_template(folder, Path("files"), "custom/own.jinja", scores=False) == (0, 2)
    assert json.loads(Path("files/generation_config.json").read_text(encoding="utf-8")) == {"eos_token_id": [0, 2]}
    said = "custom/own.jinja ends an answer with <|im_end|>, so <|im_end|> becomes an end token\n"
    assert capsys.readouterr().out.endswith(f"{folder}: {said}")


def test_a_template_that_ends_with_a_known_token_adds_none(folder: Path) -> None:
    complete_tokenizer(folder, Path("files"))
    assert check_template(folder, Path("files"), "its template", scores=False) == (0,)
    assert not Path("files/generation_config.json").exists()


def test_the_template_of_a_scorer_needs_no_answer_to_open(made: Path, folder: Path) -> None:
    Path("custom/plain.jinja").write_text(PLAIN, encoding="utf-8")
    complete_tokenizer(made / "scorer", Path("files"), "custom/plain.jinja")
    assert check_template(made / "scorer", Path("files"), "custom/plain.jinja", scores=True) == ()


@pytest.mark.parametrize(("template", "fault"), [(CHATML, None), (INST, None), ("{{ messages[9].content }}", FAULT)])
def test_a_template_is_tried_without_a_tokenizer(tmp_path: Path, template: str, fault: str | None) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(template, encoding="utf-8")
    assert template_fault(file) == fault


def test_where_a_template_is_written(folder: Path) -> None:
    root = Path.cwd()
    assert written_template(root, None, "custom/own.jinja") == CHATML
    assert written_template(root, Path("model"), "custom/none.jinja") is None
    assert written_template(root, None, None) is None
    config = (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    assert written_template(root, Path("model"), None) == config
    (folder / "chat_template.jinja").write_text("{{ 1 }}", encoding="utf-8")
    assert written_template(root, Path("model"), None) == f"{{{{ 1 }}}}\n{config}"
    assert written_template(root, Path("other"), None) is None


def test_a_template_is_read_from_custom(folder: Path) -> None:
    assert _read_template("custom/own.jinja") == CHATML
    with pytest.raises(ModelError, match="the chat template lies outside custom/"):
        _read_template("custom/../own.jinja")
    with pytest.raises(ModelError, match="cannot be read"):
        _read_template("custom/none.jinja")


def test_an_older_layout_is_converted(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), encoding="utf-8")
    (folder / "tokenizer.json").unlink()
    edited(folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer", unk_token="<|endoftext|>")
    complete_tokenizer(folder, Path("files"))
    text = "12+3=15 so the answer"
    assert load_tokenizer(Path("files"))(text)["input_ids"] == tokenizer(text)["input_ids"]
