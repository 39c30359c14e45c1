"""`posttrain params`: describe the parameters of a section, an algorithm or a run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from posttrain.errors import ParamsError, PosttrainError
from posttrain.pipeline.commands.line import Document
from posttrain.pipeline.commands.params.stored import algorithm_text, section_text
from posttrain.pipeline.params.params_file import GROUPS, read
from posttrain.pipeline.params.stage_table import STAGES, group_of

EXAMPLE = "online"
DOING = "reading the settings"
ALGORITHMS, METRICS = "algorithms", "metrics"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument: a name."""
    about = f"a section of params.yaml, e.g. online; an algorithm, e.g. grpo; `{ALGORITHMS}`; `{METRICS}`"
    run = "a run, e.g. online.runs.grpo or online/grpo: list all of its settings"
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of params.yaml for editors")
    parser.add_argument("name", nargs="?", metavar="TOPIC", help=f"{about}; {run}; default: all sections")
    parser.add_argument("metric", nargs="?", metavar="METRIC", help=f"after `{METRICS}`: one metric, or a stage")


def run(arguments: Namespace) -> str:
    """Describe a section, an algorithm, a metric or the settings of a run."""
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
    if name is not None and (group_and_run := named_run(name)):
        from posttrain.pipeline.commands.params.describe import effective

        return effective(*group_and_run)
    if name is None:
        from posttrain.pipeline.lock.plugin_check import plugin_lines

        return "\n\n".join(filter(None, [section_text(None), "\n".join(plugin_lines())]))
    if name.partition(".")[0] in GROUPS:
        return section_text(name)
    return algorithm_text(None if name == ALGORITHMS else name)


def named_run(name: str) -> tuple[str, str] | None:
    """Return group and name of a run given as online.runs.grpo, online/grpo or online@grpo; None for anything else."""
    try:
        settings = read()
    except PosttrainError:  # without a project there are still sections and algorithms
        return None
    for stage in STAGES:
        for run in () if stage.shares_settings else group_of(settings, stage.group):
            if name in (f"{stage.group}.{run}", stage.output(run), f"{stage.name}@{run}"):
                return stage.group, run
    return None
