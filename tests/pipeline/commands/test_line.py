"""The command line: the overview, the arguments of a command, and its output."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import ModuleType

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands import line as module
from posttrain.pipeline.commands.line import (
    DOES,
    Document,
    add_action,
    add_actions,
    as_json,
    overview,
    parse,
    parser,
    run,
)
from tests.distributions import install
from tests.pipeline.commands.test_plugins import HELLO


def test_a_command_is_parsed_with_its_arguments() -> None:
    found = parse(["clean", "--list"])
    assert (found.command, found.list, found.action, found.json) == ("clean", True, "runs", False)
    assert parse(["show", "results", "--json"]).json is True
    for words, said in ((["cleen"], "Did you mean 'clean'"), (["zzzz"], "`posttrain --help` lists the commands")):
        with pytest.raises(ParamsError, match=said):
            parse(words)


def test_without_a_command_the_overview_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([])
    shown = capsys.readouterr().out
    assert shown == f"{overview()}\n" and shown.startswith("usage: posttrain COMMAND ...\n`posttrain COMMAND --help`")
    assert overview().splitlines()[-1].strip() and all(f"  {name} " in shown for name in DOES)
    with pytest.raises(SystemExit):
        parse(["--version"])
    assert capsys.readouterr().out.startswith("posttrain ")


def test_commands_of_plugins_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "hello" not in module._plugins()
    install(monkeypatch, tmp_path, "hello-plugin", {"commands hello": "HELLO"}, HELLO)
    assert "hello" in module._plugins() and overview().splitlines()[-1].startswith("  hello ")
    assert module._module("hello").EXAMPLE == "--to me"
    assert run(parse(["hello"])) == "hello you"
    assert isinstance(module._module("clean"), ModuleType) and module._module("clean").EXAMPLE == "--list"


def test_the_output_is_text_or_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(parse(["checkpoints"])) == "no checkpoints"
    said = run(parse(["checkpoints", "--json"]))
    assert json.loads(said) == {"command": "checkpoints", "text": "no checkpoints"}
    monkeypatch.setattr("posttrain.pipeline.commands.checkpoints.run", lambda _: Document('{"a": 1}'))
    assert run(parse(["checkpoints", "--json"])) == '{"a": 1}'
    assert as_json({"a": ["ä", 1]}) == '{\n  "a": [\n    "ä",\n    1\n  ]\n}'


def test_parsers_are_made_for_the_named_commands_alone() -> None:
    top = parser("clean", None)
    (group,) = [one for one in top._actions if isinstance(one, argparse._SubParsersAction)]
    assert group.choices["clean"].epilog == "example: posttrain clean --list" and group.choices["check"].epilog is None
    assert group.choices.keys() == DOES.keys() and top.prog == "posttrain"


def test_actions_have_help_and_an_example() -> None:
    command = argparse.ArgumentParser(prog="posttrain x")
    actions = add_actions(command, "list")
    action = add_action(actions, "x", "go", "do it", "there")
    assert (action.description, action.epilog) == ("Do it.", "example: posttrain x go there")
    assert command.parse_args([]).action == "list" and command.parse_args(["go"]).action == "go"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["params", "--shcema"], "posttrain params: unrecognized argument: --shcema. Did you mean '--schema'?"),
        (["show", "resluts"], "Did you mean 'results'?"),
        (["show", "results", "--jsn"], "posttrain show results: unrecognized argument: --jsn. Did you mean '--json'?"),
        (["compare", "--agianst=grpo"], "unrecognized argument: --agianst=grpo. Did you mean '--against'?"),
        (["--foo"], "posttrain: unrecognized argument: --foo\n"),
    ],
)
def test_the_usage_of_the_typed_command_and_the_nearest_name(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(words)
    shown = capsys.readouterr().err
    assert said in shown
    typed = " ".join(word for word in words[:-1] if not word.startswith("-"))
    assert shown.startswith(f"usage: posttrain {typed}".rstrip())


def test_targets_may_follow_the_options() -> None:
    for words in (["cpu", "report", "--name", "k"], ["cpu", "--name", "k", "report"]):
        found = parse(["deploy", "pool", *words])
        assert (found.pool, found.targets, found.name) == ("cpu", ["report"], "k")
    with pytest.raises(SystemExit):
        parse(["deploy", "pool", "cpu", "--nam", "k", "--odd", "report"])
