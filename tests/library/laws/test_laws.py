from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.laws.__main__ import main
from posttrain.laws.cases import Shape
from tests.library.laws.oracle_laws import LAWS
from tests.library.laws.subjects import subjects

SHAPES = st.builds(
    Shape,
    seed=st.integers(0, 2**31),
    groups=st.integers(1, 4),
    size=st.integers(2, 4),
    longest=st.integers(1, 7),
    binary=st.booleans(),
)

OWN = """
from posttrain.losses import Options, Surrogate

plain = Surrogate(Options, lambda tokens, options: tokens.ratio * tokens.advantage, "r A")
"""

each_law = pytest.mark.parametrize("law", list(LAWS))
each_subject = pytest.mark.parametrize("subject", list(subjects()))


def error_of(law: str, subject: str, shape: Shape) -> float:
    """By how much a law is missed; 0 where it does not apply."""
    return LAWS[law].check(subjects()[subject](), shape) or 0.0


# `given` stands on functions of their own: on a test with parameters pytest's plugin puts settings into settings with
# each case, until Python's stack has no room for them.


@settings(max_examples=4, deadline=None, derandomize=True, database=None)
@given(shape=SHAPES)
def holds(law: str, subject: str, shape: Shape) -> None:
    assert error_of(law, subject, shape) <= LAWS[law].tolerance, LAWS[law].text


@settings(max_examples=60, deadline=None, database=None)
@given(shape=SHAPES)
def holds_widely(law: str, subject: str, shape: Shape) -> None:
    assert error_of(law, subject, shape) <= LAWS[law].tolerance, LAWS[law].text


@each_law
@each_subject
def test_every_row_keeps_every_law(law: str, subject: str) -> None:
    holds(law, subject)


@pytest.mark.slow
@each_law
@each_subject
def test_every_row_keeps_every_law_widely(law: str, subject: str) -> None:
    holds_widely(law, subject)


def test_the_command_ends_with_1_where_it_finds_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/laws_of_ours.py").write_text(OWN, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["laws", "laws_of_ours", "--json"])
    assert main() == 0
    assert json.loads(capsys.readouterr().out)
    monkeypatch.setattr(sys, "argv", ["laws", "not_there"])
    assert main() == 1
    assert capsys.readouterr().err.startswith("error: laws: custom/not_there.py not found")
