"""Commands from plugins: `NAME` is a command, and `show.NAME` an action of `posttrain show`.

A command is a module or an object with `EXAMPLE`, `DOES`, `add_arguments(parser)` and `run(arguments)`, which returns
the output. It is imported only on use, so that a broken plugin does not stop other commands.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any, Final, Protocol

from posttrain.measure.text_table import FoldedHelp
from posttrain.settings import plugins
from posttrain.settings.listing import Listing, with_methods

GROUP: Final = "commands"


class Command(Protocol):
    """The interface of a command."""

    EXAMPLE: str
    """Example arguments after `posttrain NAME`."""
    DOES: str
    """One line about its purpose."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add its arguments."""

    def run(self, arguments: Namespace) -> str:
        """Run it and return its output."""


COMMANDS: Final[Listing[Command]] = Listing("", "", group=GROUP, adopt=with_methods(Command))
"""Name -> command."""


def origin(name: str) -> str:
    """Return a command's origin as text, without importing the command."""
    return ", ".join(f"{plugin.distribution} {plugin.version}".strip() for plugin in plugins.registered(GROUP)[name])


def say_gone() -> None:
    """Print one line on stderr about posttrain's plugins that are registered but missing."""
    if gone := [f"{plugin.group} {plugin.name}" for plugin in plugins.every() if plugin.is_ours and plugin.is_gone]:
        print(f"note: registered plugins are gone, and all else works: {', '.join(gone)}", file=sys.stderr)


def plugin_action(command: str, action: str) -> Command | None:
    """Return the plugin for this action of a command; None if there is none."""
    return COMMANDS.get(f"{command}.{action}")


def add_plugins(actions: Any, command: str) -> None:
    """Add the actions of plugins to a command. Their arguments are added when they are chosen."""
    for name in COMMANDS:
        above, _, action = name.rpartition(".")
        if above == command:
            usual, actions._parser_class = actions._parser_class, LateParser
            late: LateParser = actions.add_parser(
                action, help=f"a command of {origin(name)}", formatter_class=FoldedHelp
            )
            late.epilog = f"example: {late.prog}"
            late.command, actions._parser_class = name, usual


def command_names() -> list[str]:
    """Return the commands of plugins, except actions of other commands and names of posttrain's commands."""
    from posttrain.pipeline.commands.line import DOES

    return [name for name in COMMANDS if "." not in name and name not in DOES]


class LateParser(ArgumentParser):
    """The parser of a plugin's command. It imports the plugin only when it parses."""

    command = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.command:
            command, self.command = COMMANDS[self.command], ""
            self.description = f"{command.DOES[0].upper()}{command.DOES[1:]}."
            self.epilog = f"example: {self.prog} {command.EXAMPLE}"
            command.add_arguments(self)
        return super().parse_known_args(args, namespace)
