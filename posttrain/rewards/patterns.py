"""The user's regular expressions on model texts, where a match may take exponential time."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import regex
from pydantic import AfterValidator, Field

from posttrain.errors import excerpt
from posttrain.rewards.reward import rule
from posttrain.rollout import Rollout, Score
from posttrain.settings.params import Params

SECONDS: Final = 1.0
"""CPU seconds that one match may take. The package `regex` can be interrupted; the standard library's `re` cannot."""
LONGEST: Final = 10_000
"""Maximum number of characters of a pattern."""
MOST: Final = 100_000
"""Maximum number of characters of a pattern with its repeats written out.

The package takes about 300 bytes for each.
"""
_TOKEN: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|(?P<open>\()|(?P<close>\))|\{(?P<least>\d+)(?:,\d*)?\}|(?P<other>[*+?|])|.",
    re.DOTALL,
)
"""The parts of a pattern. An escape or a set counts as one character."""
Match = Literal["search", "full"]


def matches(pattern: str, text: str, match: Match) -> bool:
    """Tell whether the pattern is found in the text or matches all of it.

    Raise TimeoutError if that takes too long.
    """
    compiled = _compiled(pattern)
    try:
        method = compiled.search if match == "search" else compiled.fullmatch
        return method(text, timeout=SECONDS) is not None
    except TimeoutError as error:
        what = f"matching {excerpt(pattern)} takes over {SECONDS:g} s of CPU time; avoid nested repetition"
        raise TimeoutError(what) from error


def pattern_score(pattern: str, text: str, match: Match) -> Score:
    """Return 1 if the pattern matches, else 0. A completion with a timeout also scores 0."""
    try:
        return Score(float(matches(pattern, text, match)))
    except TimeoutError as error:
        return Score(0.0, "unparseable", str(error))


def valid_pattern(pattern: str) -> str:
    """Return the pattern if it is a valid regular expression."""
    if len(pattern) > LONGEST:
        raise ValueError(f"{excerpt(pattern)} has {len(pattern):,} characters. Write at most {LONGEST:,}")
    if (size := written_out(pattern)) > MOST:
        what = f"{excerpt(pattern)} is {size:,} characters long when its repeats are expanded"
        raise ValueError(f"{what}, which takes gigabytes. Repeat at most {MOST:,} in all, or use + and *")
    try:
        _compiled(pattern)
    except (regex.error, RecursionError) as error:
        raise ValueError(f"{excerpt(pattern)} is not a regular expression ({error})") from error
    return pattern


def written_out(pattern: str) -> int:
    """Return the pattern's approximate length after each {n} is written out n times, as the package compiles it."""
    outer, size, last = list[int](), 0, 0
    for token in _TOKEN.finditer(pattern):
        if token["open"]:
            outer.append(size)
            size = last = 0
        elif token["close"]:
            last = max(size, 1)
            size = last + (outer.pop() if outer else 0)
        elif token["least"]:
            times = max(int(token["least"][:9]), 1)
            size, last = size + last * (times - 1), last * times
        elif not token["other"]:
            size, last = size + 1, 1
    return size


@lru_cache
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern)


class PatternOptions(Params):
    """The pattern, and the kind of match."""

    pattern: Annotated[str, AfterValidator(valid_pattern)] = Field(
        description="a regular expression, e.g. '(?i)step 1'"
    )
    match: Match = Field("search", description="search: found anywhere; full: matches the whole completion")


@rule(PatternOptions, shaping=True)
def has_pattern(rollout: Rollout, options: PatternOptions) -> Score:
    """Return 1 if the completion matches the pattern."""
    return pattern_score(options.pattern, rollout.text, options.match)


REWARDS = {"regex": has_pattern}
