"""`posttrain compare`: find which setting is better on the same held-out prompts."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Collection
from dataclasses import replace

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.line import Document, as_json
from posttrain.pipeline.commands.target import target

EXAMPLE = "dpo grpo"
DOING = "comparing prompt by prompt"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: names, and how to compare them."""
    names = "a policy, an experiment, a sweep (all its experiments), a commit or 'workspace'; default: all policies"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    policy = "the policy of each experiment, e.g. grpo or online/grpo; default: of those that differ the last one"
    parser.add_argument("--policy", metavar="NAME", help=policy)
    parser.add_argument("--against", metavar="NAME", help="compare each with this one only; default: all pairs")
    parser.add_argument("--task", action="append", default=[], metavar="NAME", help="use only prompts of this task")
    table = "without names: the policies that are evaluated on this table; default: that of evaluate.settings"
    parser.add_argument("--table", metavar="NAME/KIND", help=table)
    page = "write a page: a row for each setting, with the parameters that vary as columns, the best first"
    parser.add_argument("--to", metavar="FILE", help=page)
    metric = "compare a metric, or a part of the reward, instead of the score: a name of evaluate.settings.metrics"
    parser.add_argument("--metric", metavar="NAME", help=metric)
    parser.add_argument("--greedy", action="store_true", help="compare the greedy completions, not the sampled ones")
    tokens = "of two policies: how the second one ranks each token of the first one's greedy answers"
    parser.add_argument("--tokens", action="store_true", help=tokens)


def run(arguments: Namespace) -> str:
    """Compare the settings."""
    if arguments.tokens:
        return _tokens(arguments)
    if arguments.names and arguments.table:
        fix = "Remove it, or the names: then all policies of that table are compared"
        raise ParamsError(what="--table is read only without names", where="compare --table", fix=fix)
    page = target(arguments.to, "compare --to", ".html") if arguments.to else None
    from posttrain.pipeline.compare.comparison import compare
    from posttrain.pipeline.compare.guards import by_metric, without_value
    from posttrain.pipeline.compare.paired import Score
    from posttrain.pipeline.compare.selection import select
    from posttrain.pipeline.compare.text import as_data, as_text

    score: Score = "greedy" if arguments.greedy else "sampled"
    chosen = select(arguments.names, arguments.policy, score, arguments.task, arguments.table)
    notes = _not_current([one.policy for one in chosen if not one.weights])
    if arguments.metric:
        notes += without_value(chosen, arguments.metric)
        chosen = [by_metric(one, arguments.metric) for one in chosen]
    found = compare(chosen, arguments.against)
    found = replace(found, notes=[*notes, *found.notes])
    if page:
        from posttrain.files import write_text
        from posttrain.pipeline.report.comparison_page import comparison_page

        write_text(page, comparison_page(found, _typed(arguments), score, arguments.against, arguments.metric))
    return Document(as_json(as_data(found))) if arguments.json else as_text(found, score, arguments.metric)


def _typed(arguments: Namespace) -> str:
    """Return the names and options of the comparison as typed on the command line."""
    options = {name: getattr(arguments, name) for name in ("policy", "against", "table", "metric")}
    pairs = [*((name, given) for name, given in options.items() if given), *(("task", one) for one in arguments.task)]
    words = [word for name, given in pairs for word in (f"--{name}", given)]
    return shlex.join(["compare", *arguments.names, *words, *["--greedy"] * arguments.greedy])


def _not_current(labels: Collection[str]) -> list[str]:
    """Return a note for each policy whose results are out of date for its model, settings or code."""
    from posttrain.pipeline.report.stale_results import staleness

    if not labels:
        return []
    return [f"{label}: its results are not current ({why})" for label, why in staleness(labels).reasons.items()]


def _tokens(arguments: Namespace) -> str:
    """Compare the tokens of two policies. The CPU instructions are set before torch is imported."""
    from dataclasses import asdict

    from posttrain.numerics import set_numerics

    set_numerics()
    from posttrain.pipeline.compare.token_shift import token_shift

    others = [
        name for name in ("policy", "against", "task", "table", "to", "metric", "greedy") if getattr(arguments, name)
    ]
    if others:
        what, fix = f"--{others[0]} is not read with --tokens", f"Remove --{others[0]}"
        raise ParamsError(what=what, where="compare", fix=fix)
    found = token_shift(arguments.names)
    return Document(as_json(asdict(found))) if arguments.json else str(found)
