"""Tables that are the listing of a folder."""

from __future__ import annotations

import ast

import pytest

from posttrain.errors import ParamsError
from posttrain.isolation.library import LIBRARY
from posttrain.settings.listing import (
    Listing,
    instance,
    listed_modules,
    looked_up,
    module_file,
    row_modules,
    tables,
    usable,
    why_unknown,
    with_methods,
)

LOSSES: Listing[object] = Listing("posttrain.algorithms.preference", "LOSSES", lambda name, row: (name, row))


def test_rows_are_imported_when_they_are_looked_up() -> None:
    name, _ = LOSSES["aot_unpaired"]  # type: ignore[misc]
    assert name == "aot_unpaired" and LOSSES.modules["aot_unpaired"] == "posttrain.algorithms.preference.aot"
    assert "dpo" in LOSSES and "nothing" not in LOSSES and len(LOSSES) == len(list(LOSSES)) > 10


def test_without_plugins_nothing_is_foreign() -> None:
    assert not LOSSES.is_foreign("dpo") and not LOSSES.is_foreign("own:loss")
    grouped: Listing[object] = Listing("posttrain.algorithms.preference", "LOSSES", group="algorithms.losses")
    assert grouped.is_foreign("own:loss") and not grouped.is_foreign("dpo") and "dpo" in dict(usable(grouped))


def test_looked_up() -> None:
    assert looked_up(LOSSES, "dpo", "loss") == LOSSES["dpo"]
    with pytest.raises(ParamsError, match="'dpp' is unknown"):
        looked_up(LOSSES, "dpp", "loss")
    what, fix = why_unknown(LOSSES, "zzzzzz")
    assert what == "'zzzzzz' is unknown" and "aot, aot_unpaired, apo_down" in fix


def test_what_adopts_an_object() -> None:
    class Both:
        def run(self) -> None:
            pass

    both = Both()
    assert instance(int, str)("a", 3) == 3 and with_methods(Both)("a", both) is both
    with pytest.raises(TypeError, match="it is a float, and has to be a int or str"):
        instance(int, str)("a", 3.0)
    with pytest.raises(TypeError, match="it lacks the methods of Both: run"):
        with_methods(Both)("a", 3)


def test_modules_and_tables() -> None:
    assert listed_modules("") == [] and "posttrain.algorithms.preference.dpo" in listed_modules("posttrain.algorithms")
    assert listed_modules("posttrain.errors") == ["posttrain.errors"]
    assert row_modules("posttrain.algorithms.preference.dpo", "LOSSES") == {
        "dpo": "posttrain.algorithms.preference.dpo"
    }
    assert module_file("posttrain.errors") == LIBRARY / "posttrain/errors.py"
    found = tables(ast.parse('A = {"a": 1}\nB: dict = {"b": 2, **A}\nC: dict = {"c": 3}\nd = 1'))
    assert {name: list(rows) for name, rows in found.items()} == {"A": ["a"], "C": ["c"]}
