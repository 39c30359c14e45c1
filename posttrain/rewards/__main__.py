"""`python -m posttrain.rewards test MODULE:NAME --table rows.jsonl`: try a reward on the rows of a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from posttrain.errors import DataError, ParamsError, PosttrainError, from_system

EXAMPLE = "python -m posttrain.rewards test working:true_equations --table tried.jsonl"


def main(words: Sequence[str] | None = None) -> int:
    """Score the rows of a file. Exit with 1 if the reward fails on a row."""
    arguments = _parser().parse_args(words)
    try:
        print(reward_test(arguments.name, Path(arguments.table), arguments.options, arguments.rows))
    except (PosttrainError, OSError) as error:
        shown = from_system(error, arguments.table) if isinstance(error, OSError) else error
        print(f"error: {shown}", file=sys.stderr)
        return 1
    return 0


def reward_test(name: str, table: Path, options: Sequence[str], count: int) -> str:
    """Print the score of each row and return the summary."""
    from posttrain.models.device import DeviceParams, Runtime
    from posttrain.rewards.reward import Context
    from posttrain.rewards.trial import Subject, given_rows, reward_report, subject_term

    if count < 1:
        raise ParamsError(what=f"-n = {count}", where="reward test", fix="Give the number of rows, 1 or more")
    term = subject_term(name, dict(map(_option, options)), "reward test", "command line")
    subject = Subject(name, term, Context(Runtime(DeviceParams()), "reward test"))
    return reward_report(subject, given_rows(islice(_lines(table), count), str(table), subject.examples))


def _lines(table: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line and its object, or a text that says why the line cannot be read."""
    if table.suffix.lower() not in (".jsonl", ".ndjson"):
        fix = "Give a .jsonl file with one JSON object on each line"
        raise DataError(what=f"{table.suffix or 'no suffix'} cannot be read", where=str(table), fix=fix)
    with table.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                yield number, f"it is not valid JSON ({error})"
                continue
            yield number, row if isinstance(row, dict) else "it is not a JSON object"


def _option(text: str) -> tuple[str, Any]:
    """Return `KEY=VALUE` as a pair. A value that is valid JSON is parsed; any other value is a text."""
    key, equals, value = text.partition("=")
    if not equals:
        fix = 'Write KEY=VALUE, e.g. after=#### or \'tags=["think", "answer"]\''
        raise ParamsError(what=f"'{text:.80}' has no '='", where="--options", fix=fix)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m posttrain.rewards", description="Try a reward on rows of a file.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    does = "show the score, status and time of each row, and the traceback where the reward fails"
    test = actions.add_parser("test", help=does, description=does, epilog=f"example: {EXAMPLE}")
    test.add_argument("name", metavar="NAME", help="a reward of the library, or MODULE:NAME for custom/MODULE.py")
    table = "a .jsonl file with prompt, completion, answer and info; without completions examples are scored"
    test.add_argument("--table", required=True, metavar="FILE", help=table)
    test.add_argument("--options", nargs="+", default=[], metavar="KEY=VALUE", help="the reward's own options")
    test.add_argument("-n", "--rows", type=int, default=20, metavar="N", help="the number of rows; default: 20")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
