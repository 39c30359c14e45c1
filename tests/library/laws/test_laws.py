from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
