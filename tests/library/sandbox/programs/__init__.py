"""Tests as people write them, in the styles of HumanEval, MBPP and LeetCode."""

from __future__ import annotations

from tests.library.sandbox.programs import classes, containers, functions, in_place, names, refused
from tests.library.sandbox.programs.case import Case

WORK: tuple[Case, ...] = (
    *(*in_place.IN_PLACE, *in_place.NUMBERS_AND_DATES, *containers.CONTAINERS),
    *(*classes.CLASSES, *classes.SETUPS),
    *(*functions.FUNCTIONS, *names.EXCEPTIONS, *names.MODULES),
)
CASES = (*WORK, *refused.CANNOT)
