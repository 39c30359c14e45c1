"""`--json` of every command: one document on stdout, also for an error; and the codes of errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain import errors
from posttrain.__main__ import main
from posttrain.pipeline.commands.line import DOES, parser
from posttrain.pipeline.params.yaml_files import AliasError
from tests.pipeline.commands.test_help import commands
from tests.workspace import ROOT, environment


def ran(where: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "posttrain", *words]
    settings = {**environment(), "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=where, env=settings, capture_output=True, text=True, check=False)


def said(
    words: list[str], where: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command in this process."""
    monkeypatch.chdir(where)
    monkeypatch.setattr(sys, "argv", ["posttrain", *words])
    try:
        code = main()
    except SystemExit as end:
        code = int(end.code or 0)
    return code, *capsys.readouterr()


def test_every_command_and_action_takes_it_and_lists_it_where_it_prints_json() -> None:
    found = [one for one in commands(parser(*DOES)) if one.prog != "posttrain"]
    assert len(found) > len(DOES)
    assert [one.prog for one in found if "--json" not in one._option_string_actions] == []
    silent = {one.prog.split()[1] for one in found if "--json" not in one.format_help()}
    assert silent == {"run", "flow", "server", "deploy", "workers"}


@pytest.mark.parametrize(
    "words",
    [
        ["run", "sft", "main"],
        ["flow"],
        ["server"],
        ["deploy", "serve"],
        ["workers"],
        ["sweep", "kl", "-S", "online.runs.grpo.kl.beta=0.02,0.5"],
    ],
)
def test_a_command_without_json_says_so_as_json(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = said([*words, "--json"], tmp_path, capsys, monkeypatch)
    assert code == 1 and "does not print JSON" in json.loads(out)["error"]["what"]


@pytest.mark.parametrize("words", [["show", "--json", "results"], ["show", "results", "--json"], ["show", "--json"]])
def test_it_may_stand_before_or_after_an_action(words: list[str]) -> None:
    assert parser("show").parse_args(words).json is True
    assert parser("show").parse_args(["show", "results"]).json is False


def test_a_text_becomes_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # a document is not folded
    code, out, _ = said(["params", "grpo", "--json"], tmp_path, capsys, monkeypatch)
    document = json.loads(out)
    assert code == 0 and document["command"] == "params"
    assert document["text"] + "\n" == said(["params", "grpo"], tmp_path, capsys, monkeypatch)[1]


def test_an_error_is_a_document_and_what_was_printed_before_it_is_not_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/bad.py").write_text(
        "from posttrain.losses import Options, Surrogate\n"
        "bad = Surrogate(Options, lambda t, _: -t.ratio * t.advantage, 'bad')\n"
    )
    done = ran(tmp_path, "laws", "bad", "--json")
    document = json.loads(done.stdout)
    error, failing = document["error"], [one["law"] for one in document["laws"] if one["holds"] is False]
    assert done.returncode == 1 and "bad:bad" in done.stderr
    assert "on-policy" in failing and len(failing) == document["failed"]
    assert (error["code"], error["what"], error["where"]) == (
        "params",
        "laws fail for 1 of 1 surrogates and losses: bad",
        "bad.py",
    )
    assert error["fix"] in done.stderr


@pytest.mark.parametrize("words", [["run", "--json", "sft", "main"], ["run", "sft", "main", "--json"]])
def test_a_stage_that_prints_no_document_refuses_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = said(words, tmp_path, capsys, monkeypatch)
    assert code == 1 and json.loads(out)["error"]["what"] == "`posttrain run` does not print JSON"


def test_arguments_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = said(["laws", "--json"], tmp_path, capsys, monkeypatch)
    assert code == 2 and json.loads(out)["error"]["code"] == "usage"
    assert "MODULE" in json.loads(out)["error"]["what"]


def test_a_secret_in_an_error_is_masked(tmp_path: Path) -> None:
    secret = "a-secret-of-the-environment"
    done = ran(tmp_path, secret, "--json", HF_TOKEN=secret)
    assert done.returncode == 1 and secret not in done.stdout + done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "params"


def test_codes_are_those_of_the_page() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__base__ is not object]
    made = {kind(what="a", where="b", fix="c").code for kind in kinds if kind is not errors.PosttrainError}
    page = (ROOT / "docs/README.md").read_text(encoding="utf-8").split("| `code` | what is wrong |")[1]
    assert made == set(re.findall(r"\| `(\w+)` \|", page)) and len(made) == 11
    assert AliasError(what="a", where="b", fix="c").code == "params"


def test_the_schema_is_a_document_without_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = said(["params", "--schema"], tmp_path, capsys, monkeypatch)
    assert code == 0 and "online" in json.loads(out)["properties"]
