"""The page on coverage names recipes, rows and settings that exist, and is the one that its program writes."""

from __future__ import annotations

import re

from docs.make.coverage import ITEMS, PAGE, page
from posttrain.commands.params.describe import FAMILIES
from tests.architecture.sources import ROOT

WHERE = [where for items in ITEMS.values() for where in items.values()]


def named(kind: str) -> set[str]:
    """The names in backquotes after a word, or in a list after its plural."""
    lists = [found for where in WHERE for found in re.findall(rf"\b{kind}s? ((?:`[\w.]+`(?:, )?)+)", where)]
    return {name for some in lists for name in re.findall(r"`([\w.]+)`", some)}


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m docs.make.coverage"


def test_recipes_rows_and_settings_exist() -> None:
    recipes, rows, settings = named("recipe"), named("row"), named("setting")
    assert len(recipes) > 8 and len(rows) > 3 and len(settings) > 6
    assert all((ROOT / f"recipes/{name}.yaml").is_file() for name in recipes)
    assert rows <= {name for family in FAMILIES for name in family.rows}
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "posttrain").rglob("*.py"))
    last = {setting.split(".")[-1] for setting in settings}
    assert all(re.search(rf"^    {name}: .* = ", sources, re.MULTILINE) for name in last)
