"""`--help` of every command: an example, and a sentence for each argument."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest

import flows.deploy
import flows.pipeline
import flows.server
import flows.sweep
import flows.workers
from posttrain.errors import ParamsError
from posttrain.pipeline.commands.line import DOES, overview, parse
from posttrain.pipeline.commands.line import parser as posttrain_parser
from posttrain.pipeline.commands.table import RENAMED


def every_command() -> argparse.ArgumentParser:
    return posttrain_parser(*DOES)


PARSERS = (
    every_command,
    flows.deploy.parser,
    flows.pipeline.parser,
    flows.server.parser,
    flows.sweep.parser,
    flows.workers.parser,
)


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, or the parsers of its commands."""
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for group in groups:
        for inner in group.choices.values():
            yield from commands(inner)
    if not any(group.required for group in groups):
        yield parser


def test_a_renamed_command_is_answered_with_its_new_name() -> None:
    for old, new in RENAMED.items():
        assert old not in DOES and new.split()[0] in DOES
        with pytest.raises(ParamsError, match=re.escape(f"Use `posttrain {new}`")):
            parse([old, "--json"])


def test_a_command_without_its_action_means_the_default() -> None:
    assert (parse(["show"]).action, parse(["checkpoints"]).action) == ("results", "list")


def test_the_overview_lists_every_command_and_its_file_exists() -> None:
    shown = overview()
    assert all(f"\n  {name} " in shown for name in DOES)
    assert all(find_spec(f"posttrain.pipeline.commands.{name}") for name in DOES)


@pytest.mark.slow
def test_help_loads_no_library_behind_a_command() -> None:
    for words in (["--help"], ["check", "--help"], ["replay", "--help"]):
        code = f"import sys; sys.argv = ['posttrain', *{words}]\nfrom posttrain.__main__ import main\n"
        code += "try:\n    main()\nexcept SystemExit:\n    pass\n"
        code += "sys.exit(bool({'torch', 'pydantic', 'polars', 'dvc'} & set(sys.modules)))"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0, words


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__module__)
def test_every_command_has_an_example_and_every_argument_a_sentence(
    parser: Callable[[], argparse.ArgumentParser],
) -> None:
    found = list(commands(parser()))
    assert found
    for one in found:
        assert (one.epilog or "").startswith(f"example: {one.prog}"), one.prog
        choices = ("action", "command")
        missing = [action.dest for action in one._actions if not action.help and action.dest not in choices]
        assert not missing, f"{one.prog}: {missing}"
        assert one.format_help()
