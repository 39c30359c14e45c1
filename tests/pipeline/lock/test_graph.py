"""The stages of dvc.yaml, with values from params.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.lock import graph as module
from posttrain.pipeline.lock.graph import Pipeline, changed, value_at
from tests.pipeline.lock.project import put


def test_stages_and_their_order(made: Path) -> None:
    found = Pipeline()
    assert list(found.stages) == ["raw", "mine@main", "last"] and found.order() == ["raw", "mine@main", "last"]
    mine = found.declared("mine@main")
    assert (mine.cmd, mine.params) == ("make mine main", {"params.yaml": ("mine.runs.main",)})
    assert mine.deps == ("data/raw.txt", "code/mine/main.json")
    assert found.declared("last").uncached == ("last.txt",)
    assert found.makers["models/mine/main"] == "mine@main" and found.makers["data/raw.txt"] == "raw"
    assert found.upstream == {"raw": (), "mine@main": ("raw",), "last": ("mine@main",)}
    assert found.above("last") == ["raw", "mine@main", "last"] and found.above("raw") == ["raw"]
    assert list(found.behind("models/mine")) == ["mine@main"] and list(found.behind("data/raw.txt/x")) == ["raw"]
    with pytest.raises(PipelineError, match="no stage none"):
        found.declared("none")


def test_cycles_and_broken_files_are_named(made: Path) -> None:
    put(made / "dvc.yaml", "stages: {a: {cmd: a, deps: [b], outs: [a]}, b: {cmd: b, deps: [a], outs: [b]}}\n")
    with pytest.raises(PipelineError, match="cycle: "):
        Pipeline().order()
    put(made / "dvc.yaml", "stages: {a: {outs: [a]}}\n")
    with pytest.raises(PipelineError, match="it is not a graph of DVC's"):
        Pipeline()


def test_every_item_of_a_list_or_a_matrix_is_a_stage(made: Path) -> None:
    put(
        made / "dvc.yaml",
        "vars: [{n: 3}, params.yaml:mine]\nstages: {a: {foreach: [x, true], do: {cmd: 'a ${item} ${n}'}}}\n",
    )
    found = Pipeline()
    assert {name: one.cmd for name, one in found.stages.items()} == {"a@x": "a x 3", "a@true": "a true 3"}
    assert found._with_vars({"k": 1}, {"vars": [{"n": 2}]}) == {"k": 1, "n": 2}
    put(made / "dvc.yaml", "stages: {a: {matrix: {k: [1, 2], l: [{z: 1}]}, cmd: 'a ${item.k}'}}\n")
    assert {name: one.cmd for name, one in Pipeline().stages.items()} == {"a@1-l0": "a 1", "a@2-l0": "a 2"}


def test_values_are_filled_in() -> None:
    values, unknown = {"a": {"b": [1, {"c": True}]}, "t": "x"}, list[str]()
    assert (
        module._filled("${a.b[1].c}", values, unknown) is True
        and module._filled("n ${a.b[1].c}", values, unknown) == "n true"
    )
    assert module._filled(["${t}", {"k": "${t}"}, 3, r"\${t}"], values, unknown) == ["x", {"k": "x"}, 3, "${t}"]
    assert unknown == [] and module._filled("${none}", values, unknown) is None and unknown == ["none"]
    assert module._text(False) == "false" and module._text(1.5) == "1.5"
    assert value_at(values, "a.b.0") == 1 and value_at(values, "a.c") is None and value_at(values, "t.x") is None


def test_places_where_settings_differ() -> None:
    found = list(changed({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}, "none"))
    assert found == [(("a", "c"), 2, 4), (("d",), 3, "none"), (("e",), "none", 5)]
    assert module._parents("a/b/c") == ["a/b", "a"] and module._parents("a") == []
    assert module._is_uncached({"a": {"cache": False}}) is True and module._is_uncached({"a": {"cache": True}}) is False
    assert module._is_uncached("a") is False
    assert list(module._paths(["a/", {"b": {"cache": False}}], {}, [])) == ["a", "b"]
