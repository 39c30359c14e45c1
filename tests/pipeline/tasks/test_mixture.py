"""Mixtures of tasks: shares by weight, rows of each part, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.toy_tasks.mixture import TASKS, MixtureParams
from posttrain.settings.params import check

SIZES = {"demonstrations": 6, "heldout_demonstrations": 2, "prompts": 6, "heldout_prompts": 2, "test_prompts": 4}


def params(**parts: Any) -> MixtureParams:
    return check(MixtureParams, {**SIZES, "parts": parts}, where="data.tasks.mixed")


def test_shares_follow_the_weights_and_add_up() -> None:
    given = params(a={"task": "sums", "weight": 2}, b={"task": "products"}, c={"task": "sums", "splits": ["test"]})
    assert given.shares("chat", "train") == {"a": 4, "b": 2}
    assert given.shares("prompts", "test") == {"a": 2, "b": 1, "c": 1}
    assert given.parts["a"].task_settings == {}


def test_tables_have_the_rows_of_each_part() -> None:
    given = params(a={"task": "sums", "weight": 2, "largest": 20}, b={"task": "products", "largest": 20})
    generator = TASKS["mixture"].generator
    assert generator is not None
    tables = generator.tables(given)
    prompts = tables["prompts"].filter(split="train")
    kinds = prompts["problem"].str.split(":").list.first().to_list()
    assert sorted(kinds) == ["product"] * 2 + ["sum"] * 4 and kinds != sorted(kinds, reverse=True)
    assert dict(tables["chat"].group_by("split").len().iter_rows()) == {
        "train": 6, "heldout": 2,
    }  # fmt: skip
    assert tables["prompts"].equals(generator.tables(given)["prompts"])


def test_what_is_refused() -> None:
    generator = TASKS["mixture"].generator
    assert generator is not None
    with pytest.raises(ParamsError, match="no part has rows in the split train"):
        generator.tables(params(a={"task": "sums", "splits": ["test"]}))
    with pytest.raises(ParamsError, match="nothing"):
        params(a={"task": "nothing"})
