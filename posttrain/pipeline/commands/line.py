"""The command line: the overview of all commands, and the arguments of the chosen command."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from posttrain.errors import ParamsError
from posttrain.measure.terminal import Coded, escaped_json, in_red
from posttrain.measure.text_table import FoldedHelp, folded
from posttrain.pipeline.commands.table import COMMANDS, RENAMED

DOES = {name: does for group in COMMANDS.values() for name, does in group.items()}


def parse(words: Sequence[str]) -> Namespace:
    """Parse a command line. Only the module of its command is imported."""
    if words and words[0] in RENAMED:
        fix = f"Use `posttrain {RENAMED[words[0]]}`"
        raise ParamsError(what=f"'{words[0]}' was renamed", where="posttrain", fix=fix)
    named = words[0] if words and (words[0] in DOES or words[0] in _plugins()) else None
    if words and named is None and not words[0].startswith("-"):
        from posttrain.settings.plugins import or_package

        near = get_close_matches(words[0], [*DOES, *_plugins()], n=1)
        fix = f"Did you mean '{near[0]}'?" if near else "`posttrain --help` lists the commands"
        raise ParamsError(what=f"unknown command '{words[0]:.80}'", where="posttrain", fix=or_package(fix))
    top = parser(named)
    arguments, odd = top.parse_known_args(words)
    if odd and "targets" in arguments and not any(word.startswith("-") for word in odd):
        # argparse takes targets that follow an option only if a command has no other positional argument
        arguments.targets, odd = [*arguments.targets, *odd], []
    if odd:  # of the parser of the whole line, which would print its own usage
        chosen = _chosen(top, words)
        message = f"unrecognized argument{'s' * (len(odd) > 1)}: {' '.join(odd)}"
        chosen.error(message + _near(odd[0].partition("=")[0], _options(chosen)))
    if arguments.command is None:
        print(overview())
        raise SystemExit(0)
    return arguments


class Document(str):
    """Output of a command that is already JSON."""


def run(arguments: Namespace) -> str:
    """Run the command and return its output. With `--json` the output is one document; all else goes to stderr."""
    module = _module(arguments.command)
    if not arguments.json:
        with _said_meanwhile(getattr(module, "DOING", "")):
            return module.run(arguments)  # type: ignore[no-any-return]
    with contextlib.redirect_stdout(sys.stderr):
        text = module.run(arguments)
    return text if isinstance(text, Document) else as_json({"command": arguments.command, "text": text})


@contextlib.contextmanager
def _said_meanwhile(doing: str) -> Iterator[None]:
    """Show on a terminal that a command is working until it prints, because imports alone take seconds."""
    if not doing or not sys.stderr.isatty():
        yield
        return
    sys.stderr.write(f"{doing} ...")
    sys.stderr.flush()
    try:
        yield
    finally:
        sys.stderr.write(Coded("\r\033[2K"))
        sys.stderr.flush()


def as_json(data: object) -> str:
    """Return a document as JSON text."""
    return escaped_json(json.dumps(data, indent=2, ensure_ascii=False))


def parser(*names: str | None) -> ArgumentParser:
    """Make the parser with the arguments of these commands. Other commands only get a help line."""
    top = _Parser(prog="posttrain", add_help=False, usage="posttrain COMMAND ...", epilog="example: posttrain check")
    top.add_argument("-h", "--help", action="store_const", const=None, dest="command", help="show all commands")
    top.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", prog="posttrain")
    for name in dict.fromkeys([*DOES, *filter(None, names)]):
        module = _module(name) if name in names else None
        does = DOES[name] if name in DOES else getattr(module, "DOES", name)
        shown = does[0].upper() + does[1:]
        command = commands.add_parser(name, description=f"{shown}.", formatter_class=FoldedHelp)
        if module is not None:
            command.epilog = f"example: posttrain {f'{name} {module.EXAMPLE}'.strip()}"
            module.add_arguments(command)
            command.set_defaults(json=False)
            _add_json(command, getattr(module, "JSON", "print JSON instead of text"))
    return top


def overview() -> str:
    """Return a list of all commands by occasion."""
    width = max(map(len, DOES))
    lines = ["usage: posttrain COMMAND ...", "`posttrain COMMAND --help` shows its arguments and an example"]
    for when, commands in COMMANDS.items():
        lines += ["", f"{when}:", *(folded(f"  {name.ljust(width)}  {does}") for name, does in commands.items())]
    if others := _plugins():
        from posttrain.pipeline.commands.plugins import origin

        lines += ["", "of plugins:", *(folded(f"  {name.ljust(width)}  {origin(name)}") for name in others)]
    return "\n".join(lines)


def _plugins() -> list[str]:
    """Return the commands of plugins. It is called only if no own command matches, because it reads all packages."""
    from posttrain.pipeline.commands.plugins import command_names

    return command_names()


def add_actions(parser: ArgumentParser, default: str | None = None) -> Any:
    """Add the actions of a command. `default`: the action if none is given."""
    actions = parser.add_subparsers(dest="action", required=default is None, metavar="ACTION")
    parser.set_defaults(action=default)  # after the actions, which would set it to None
    return actions


def add_action(actions: Any, command: str, name: str, does: str, example: str = "") -> ArgumentParser:
    """Add an action with its help and an example."""
    shown, line = does[0].upper() + does[1:], f"posttrain {command} {name} {example}".strip()
    action: ArgumentParser = actions.add_parser(
        name,
        help=does,
        description=f"{shown}.",
        epilog=f"example: {line}",
        formatter_class=FoldedHelp,
    )
    return action


def _add_json(command: ArgumentParser, does: str | None) -> None:
    """Add the option --json to a command and its actions. `does`: its help; None hides it if it is rejected."""
    command.add_argument("--json", action="store_true", default=SUPPRESS, help=does or SUPPRESS)
    for group in command._actions:
        for action in group.choices.values() if isinstance(group, _SubParsersAction) else ():
            _add_json(action, does)


def _chosen(top: ArgumentParser, words: Sequence[str]) -> ArgumentParser:
    """Return the parser of the command and action that were typed."""
    for group in top._actions:
        if isinstance(group, _SubParsersAction):
            for place, word in enumerate(words):
                if word in group.choices:
                    return _chosen(group.choices[word], words[place + 1 :])
    return top


def _options(of: ArgumentParser) -> list[str]:
    return [name for action in of._actions for name in action.option_strings]


def _near(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f". Did you mean '{near[0]}'?" if near else ""


class _Parser(ArgumentParser):
    """A parser that suggests the nearest name, and reports errors as JSON if --json is given."""

    def error(self, message: str) -> NoReturn:
        """Print the command's usage and the mistake in the command line."""
        if wrong := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)$", message):
            known = [name.strip(" '") for name in wrong[2].split(",")]
            message += _near(wrong[1], known)
        if "--json" in sys.argv:
            fix = f"`{self.prog} --help` shows its arguments"
            print(as_json({"error": {"code": "usage", "what": message, "where": self.prog, "fix": fix}}))
        self.print_usage(sys.stderr)
        sys.stderr.write(in_red(f"error: {self.prog}: {message}\n", "error:"))
        raise SystemExit(2)


class _Version(Action):
    """The option that prints the version. It is looked up only on use, because a checkout on PYTHONPATH has none."""

    def __call__(self, *_: Any) -> None:
        from posttrain import __version__

        print(f"posttrain {__version__}")
        raise SystemExit(0)


def _module(name: str) -> Any:
    if name in DOES:
        return import_module(f"posttrain.pipeline.commands.{name}")
    from posttrain.pipeline.commands.plugins import COMMANDS as OF_PLUGINS

    return OF_PLUGINS[name]
