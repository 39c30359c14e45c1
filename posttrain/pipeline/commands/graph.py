"""`posttrain graph`: draw the project's pipeline as text, or as a picture."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from posttrain.pipeline.commands.line import Document, as_json

EXAMPLE = "--svg graph.svg"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the option for a picture."""
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture to this file instead")


def run(arguments: Namespace) -> str:
    """Draw the graph from dvc.yaml and params.yaml, without running anything."""
    from posttrain.errors import ParamsError
    from posttrain.files import write_text
    from posttrain.pipeline.lineage.stage_graph import StageGraph
    from posttrain.pipeline.lock.graph import Pipeline
    from posttrain.pipeline.params.params_file import read

    graph = StageGraph.of(Pipeline(), read())
    if arguments.svg:
        if arguments.svg.suffix != ".svg":
            fix = f"Name it {arguments.svg.with_suffix('.svg')}"
            raise ParamsError(what=f"the file '{arguments.svg}' does not end in .svg", where="--svg", fix=fix)
        write_text(arguments.svg, graph.svg())
    if arguments.json:
        return Document(as_json({"stages": graph.inputs, "starts": graph.starts}))
    return f"wrote {arguments.svg}" if arguments.svg else graph.outline()
