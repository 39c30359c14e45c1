"""The page about recipes has the figures of the recipes as they are today."""

from __future__ import annotations

import pytest

from benchmarks.recipes import PAGE, RECIPES, kept, scores
from docs.make.recipes import page


@pytest.mark.parametrize("name", RECIPES)
def test_the_figures_are_of_the_recipe_as_it_is(name: str) -> None:
    assert sorted(kept().get(name, {"seeds": {}})["seeds"]) == sorted(map(str, RECIPES[name])), (
        f"run: python -m benchmarks.recipes {name}"
    )


def test_the_page_is_what_the_results_say() -> None:
    written = page({name: scores(result["seeds"]) for name, result in kept().items()}, "")
    assert PAGE.read_text(encoding="utf-8").startswith(written.partition("`python -m")[0]), (
        "run: python -m benchmarks.recipes --table"
    )


def test_seeds_of_a_setting_are_grouped_where_one_base_is_shared() -> None:
    runs = {"ppo_1": {"score": 0.1}, "ppo_2": {"score": 0.2}, "sft": {"score": 0.0}}
    assert [len(found) for found in scores({"0": runs}).values()] == [2, 1]
    assert [*scores({"0": runs, "1": runs})] == ["ppo_1", "ppo_2", "sft"]
