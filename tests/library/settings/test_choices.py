"""Settings that choose an entry of a table."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from posttrain.settings.choices import OneOf, Option, Options, choices_of, merge_settings
from posttrain.settings.params import Params


class Speed(Options):
    """How fast."""

    speed: int = 3
    limit: int = Field(description="a number, e.g. 9")


CHOICE: OneOf[Option] = OneOf({"none": Option(Options, "nothing"), "fast": Option(Speed, "fast")}, "none")


class Settings(Params):
    """Settings with a choice."""

    how: Annotated[Options, CHOICE] = Field(CHOICE.chosen, description="how")
    other: int = 1


def test_a_choice_is_a_name_or_a_mapping() -> None:
    assert Settings.model_validate({}).how == Options(type="none")
    assert Settings.model_validate({"how": {"type": "fast", "limit": 9}}).how == Speed(type="fast", limit=9)
    assert Settings(how=Speed(type="fast", limit=1)).how == Speed(type="fast", limit=1)
    assert Settings(how=Speed(type="fast", limit=1)).model_dump()["how"] == {"type": "fast", "speed": 3, "limit": 1}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (3, "expected one of none, fast, or"),
        ("fats", "unknown type 'fats'.*fast"),
        ("fast", "missing. Write a number, e.g. 9"),
        (
            {"type": "none", "speed": 1},
            "not an option of type none. It belongs to type fast. Write how: {type: fast, spe",
        ),
        ({"type": "fast", "limit": 1, "sped": 1}, "unknown key. Did you mean 'speed'?"),
        ({"type": "none", "x": 1}, "unknown key. Type none has no options"),
    ],
)
def test_what_is_refused(given: object, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason.replace("?", r"\?").replace("{", r"\{")):
        Settings.model_validate({"how": given})


def test_plain_and_merged() -> None:
    assert CHOICE.plain("fast", "none") == {"type": "fast"} and CHOICE.plain({"a": 1}, "none") == {
        "type": "none",
        "a": 1,
    }
    assert CHOICE.plain(3, "none") == 3
    base = {"type": "fast", "limit": 1}
    assert CHOICE.merged(base, {"speed": 2}) == {"type": "fast", "limit": 1, "speed": 2}
    assert CHOICE.merged(base, "none") == {"type": "none"} and CHOICE.merged(None, "none") == {"type": "none"}
    assert CHOICE.entry("fast").formula == "fast" and CHOICE.chosen == "none"


def test_merge_settings() -> None:
    assert dict(choices_of(Settings)) == {"how": CHOICE}
    found = merge_settings(Settings, {"how": {"type": "fast", "limit": 1}, "other": 2}, {"how": {"speed": 5}})
    assert found == {"how": {"type": "fast", "limit": 1, "speed": 5}, "other": 2}
