"""`posttrain params`: describe the parameters of a section, an algorithm or a run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.line import Document

EXAMPLE = "online"
DOING = "reading the settings"
ALGORITHMS, METRICS = "algorithms", "metrics"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument: a name."""
    about = f"a section of params.yaml, e.g. online; an algorithm, e.g. grpo; `{ALGORITHMS}`; `{METRICS}`"
    run = "a run, e.g. online.runs.grpo or online/grpo: list all of its settings"
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of params.yaml for editors")
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"{about}; {run}; default: all sections")
    parser.add_argument("metric", nargs="?", metavar="METRIC", help=f"after `{METRICS}`: one metric, or a stage")


def run(arguments: Namespace) -> str:
    """Describe a section or an algorithm."""
    if arguments.schema:
        from posttrain.pipeline.checks.editor_schema import editor_schema

        return Document(editor_schema())
    name: str | None = arguments.name
    if name == METRICS:
        from posttrain.pipeline.metrics.catalog import listed

        return listed(arguments.metric)
    if arguments.metric:
        what, fix = f"'{arguments.metric}' follows '{name}'", f"Only `posttrain params {METRICS}` takes a second name"
        raise ParamsError(what=what, where="posttrain params", fix=fix)
    from posttrain.pipeline.checks.params_schema import describe_params
    from posttrain.pipeline.commands.params.describe import describe, effective, named_run
    from posttrain.pipeline.params.params_file import GROUPS

    if name is not None and (run_key := named_run(name)):
        return effective(*run_key)
    if name is None or name.partition(".")[0] in GROUPS:
        from posttrain.pipeline.lock.plugin_check import plugin_lines

        lines = plugin_lines() if name is None else []
        return "\n\n".join([describe_params(name), *(["\n".join(lines)] if lines else [])])
    return describe(None if name == ALGORITHMS else name)
