"""Errors as other code sees them: bases of the standard library, and through pickle as Ray and Dask send them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain import errors
from posttrain.errors import excerpt, shortened
from tests.workspace import ROOT, environment

KINDS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.PosttrainError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickle_with_all_that_it_says(kind: type[errors.PosttrainError]) -> None:
    error = kind(what="it is empty", where="a.parquet, row 3", fix="Fill it")
    sent = pickle.loads(pickle.dumps(error))
    assert type(sent) is kind
    assert (sent.what, sent.where, sent.fix, str(sent)) == (error.what, error.where, error.fix, str(error))


@pytest.mark.parametrize(
    ("kind", "base"),
    [(errors.ParamsError, ValueError), (errors.DataError, ValueError), (errors.TrainingError, RuntimeError)],
)
def test_an_error_is_caught_by_the_base_that_python_would_raise(
    kind: type[errors.PosttrainError], base: type[Exception]
) -> None:
    with pytest.raises(base):
        raise kind(what="it is empty", where="a.parquet", fix="Fill it")


@pytest.mark.parametrize("command", ["posttrain check", "stages.sft main", "flows.pipeline"])
def test_a_python_without_the_packages_ends_with_one_line(command: str) -> None:
    """As where .venv is not activated; -S leaves out the packages of this one."""
    bare = [sys.executable, "-S", "-m", *command.split()]
    done = subprocess.run(bare, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "Run `source .venv/bin/activate` first" in line


def test_a_text_is_cut_before_a_word_and_never_inside_a_number() -> None:
    text = "32% of the last\n550 are more than max_failed = 0.1. Fix it"
    assert shortened(text, 100) == "32% of the last 550 are more than max_failed = 0.1. Fix it"
    assert shortened(text, 51) == "32% of the last 550 are more than max_failed = ..."
    assert (
        shortened("1" * 20 + "a" * 20, 30) == "1" * 20 + "a" * 6 + " ..." and shortened("a" + "12" * 40, 30) == "a ..."
    )
    assert all(len(shortened(text, most)) <= most for most in range(8, 80))


def test_a_text_that_is_cut_keeps_both_quotes() -> None:
    assert excerpt("short") == "'short'"
    assert excerpt("Ticket 0: it's broken", 16) == "'Ticket 0: i...'"
    assert excerpt(["a", "b", "c", "d"], 10) == "['a', '..."


RAISING = """
import re
from posttrain.rewards.reward import raised


def brief(rollouts):
    return [1 / len(rollouts)]


def pattern(rollouts):
    return re.compile("(")


for reward in (brief, pattern):
    try:
        reward([])
    except Exception as error:
        print(raised(error).reason)
"""


def test_a_reward_that_raises_names_its_file_and_line(tmp_path: Path) -> None:
    """As a script, a module that the script imports, and code that was typed; re is Python's own."""
    (tmp_path / "script.py").write_text(RAISING)
    (tmp_path / "importing.py").write_text("import script\n")
    commands = {("script.py",): "script.py", ("importing.py",): "script.py", ("-c", RAISING): "<string>"}
    for words, file in commands.items():
        variables = {**environment(), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == [
            f"it raised ZeroDivisionError: division by zero ({file} line 7)",
            f"it raised PatternError: missing ), unterminated subpattern at position 0 ({file} line 11)"
            if sys.version_info >= (3, 13)
            else f"it raised error: missing ), unterminated subpattern at position 0 ({file} line 11)",
        ]
