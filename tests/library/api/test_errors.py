"""Errors as other code sees them: bases of the standard library, and through pickle as Ray and Dask send them."""

from __future__ import annotations

import pickle
import subprocess
import sys

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
