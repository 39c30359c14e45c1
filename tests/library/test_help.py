"""`--help` of every command: an example, and a sentence for each argument."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import pytest

import flows.deploy
import flows.pipeline
import flows.server
import flows.sweep
import flows.workers
import posttrain.arguments

PARSERS = (
    posttrain.arguments.parser,
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


def test_the_help_of_checkpoints_names_its_actions() -> None:
    (group,) = [one for one in posttrain.arguments.parser()._actions if isinstance(one, argparse._SubParsersAction)]
    (action,) = [one for one in group.choices["checkpoints"]._actions if isinstance(one, argparse._SubParsersAction)]
    (shown,) = [one.help or "" for one in group._choices_actions if one.dest == "checkpoints"]
    assert all(name in shown for name in action.choices) and "remove" not in shown


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.__module__)
def test_every_command_has_an_example_and_every_argument_a_sentence(
    parser: Callable[[], argparse.ArgumentParser],
) -> None:
    found = list(commands(parser()))
    assert found
    for one in found:
        assert (one.epilog or "").startswith(f"example: {one.prog}"), one.prog
        missing = [action.dest for action in one._actions if not action.help and action.dest != "action"]
        assert not missing, f"{one.prog}: {missing}"
        assert one.format_help()
