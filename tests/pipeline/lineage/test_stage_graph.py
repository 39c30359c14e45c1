"""The project's graph as an outline and as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from posttrain.pipeline.lineage.stage_graph import StageGraph

GRAPH = StageGraph(
    {
        "data@a": [],
        "base@b": ["data@a"],
        "sft@c": ["base@b", "data@a"],
        "reward@r": ["data@a"],
        "online@d": ["data@a", "reward@r", "sft@c"],
        "online@<e>": ["sft@c"],
        "report": ["online@<e>", "online@d", "reward@r"],
    },
    {"sft@c": "base@b", "online@d": "sft@c", "online@<e>": "sft@c"},
)
OUTLINE = """\
data@a
├─ base@b
│  └─ sft@c
│     ├─ online@d  + reward@r
│     └─ online@<e>
│        └─ report  + online@d
└─ reward@r"""


def test_each_stage_is_below_its_start_and_names_further_inputs() -> None:
    assert GRAPH.outline() == OUTLINE
    assert GRAPH.drawn("sft@c") == ["base@b"], "data@a is above base@b already"


def test_many_further_inputs_are_counted() -> None:
    ends = [f"evaluate@{number}" for number in range(6)]
    graph = StageGraph({**{end: [] for end in ends}, "report": ends}, {})
    assert "report  + evaluate@1, evaluate@2, evaluate@3 and 2 more" in graph.outline()


def test_a_column_is_ordered_so_that_few_lines_cross() -> None:
    crossed = StageGraph({"a": [], "b": [], "y": ["b"], "x": ["a"]}, {})
    assert crossed.columns() in ([["a", "b"], ["x", "y"]], [["b", "a"], ["y", "x"]])
    assert [len(column) for column in GRAPH.columns()] == [1, 2, 1, 2, 1]


def test_the_picture_is_valid_and_has_every_stage_and_line() -> None:
    picture = ET.fromstring(GRAPH.svg())
    space = "{http://www.w3.org/2000/svg}"
    assert [one.text for one in picture.iter(f"{space}text")].count("online@<e>") == 1
    assert len([*picture.iter(f"{space}text")]) == 7
    assert len([*picture.iter(f"{space}path")]) == sum(len(GRAPH.drawn(name)) for name in GRAPH.inputs)


def test_an_empty_project_has_an_empty_picture() -> None:
    empty = StageGraph({}, {})
    assert empty.outline() == "" and "The 0 stages" in empty.svg()
