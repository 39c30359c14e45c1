"""`posttrain compare`: find which setting is better on the same held-out prompts."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.line import Document, as_json
from posttrain.pipeline.commands.target import target

if TYPE_CHECKING:
    from posttrain.pipeline.compare.planned import Planned
    from posttrain.pipeline.compare.selection import Selection

EXAMPLE = "dpo grpo"
DOING = "comparing prompt by prompt"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: names, and how to compare them."""
    names = "a policy, an experiment, a sweep (all its experiments), a commit or 'workspace'; default: all policies"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    policy = "the policy of each experiment, e.g. grpo or online/grpo; default: the last policy that differs"
    parser.add_argument("--policy", metavar="NAME", help=policy)
    against = "compare each setting only with this one; default: all pairs. With --factor: the level to compare with"
    parser.add_argument("--against", action="append", default=[], metavar="NAME", help=against)
    factor = (
        "a planned question: the effect of this setting, e.g. kl, averaged over all other varied settings; repeatable"
    )
    parser.add_argument("--factor", action="append", default=[], metavar="NAME", help=factor)
    parser.add_argument("--task", action="append", default=[], metavar="NAME", help="use only prompts of this task")
    table = "without names: compare the policies evaluated on this table; default: the table of evaluate.settings"
    parser.add_argument("--table", metavar="NAME/KIND", help=table)
    page = "write a page with a row for each setting, best first, and the varied parameters as columns"
    parser.add_argument("--to", metavar="FILE", help=page)
    metric = "compare a metric, or a part of the reward, instead of the score: a name of evaluate.settings.metrics"
    parser.add_argument("--metric", metavar="NAME", help=metric)
    parser.add_argument("--greedy", action="store_true", help="compare greedy completions instead of samples")
    tokens = "for two policies: show how the second policy ranks each token of the first policy's greedy answers"
    parser.add_argument("--tokens", action="store_true", help=tokens)


def run(arguments: Namespace) -> str:
    """Compare the settings."""
    if arguments.tokens:
        return _tokens(arguments)
    if arguments.names and arguments.table:
        fix = "Remove --table, or remove the names to compare all policies of that table"
        raise ParamsError(what="--table cannot be used with names", where="compare --table", fix=fix)
    if len(arguments.against) > 1 and not arguments.factor:
        fix = "Give one baseline. With --factor you can give one for each factor"
        raise ParamsError(what="--against was given twice", where="compare --against", fix=fix)
    page = target(arguments.to, "compare --to", ".html") if arguments.to else None
    from posttrain.pipeline.compare.comparison import compare
    from posttrain.pipeline.compare.guards import by_metric, without_value
    from posttrain.pipeline.compare.paired import Score
    from posttrain.pipeline.compare.selection import selected
    from posttrain.pipeline.compare.text import as_data, as_text

    score: Score = "greedy" if arguments.greedy else "sampled"
    selection = selected(arguments.names, arguments.policy, score, arguments.task, arguments.table)
    chosen = selection.policies
    notes = [f"no result of {name}: it still runs, or it failed (.sweeps/{name}.log)" for name in selection.unfinished]
    notes += selection.notes
    outdated = _not_current({one.policy: one.name for one in chosen if not one.weights})
    notes += outdated.values()
    chosen = [replace(one, is_current=bool(one.weights) or one.policy not in outdated) for one in chosen]
    if arguments.metric:
        notes += without_value(chosen, arguments.metric)
        chosen = [by_metric(one, arguments.metric) for one in chosen]
    answers = _planned(arguments, replace(selection, policies=chosen), notes)
    if answers is None or page:
        against = arguments.against[0] if arguments.against and answers is None else None
        comparison = compare(chosen, against)
        comparison = replace(comparison, notes=[*notes, *comparison.notes])
    if page:
        from posttrain.files import write_text
        from posttrain.pipeline.compare.importance import importance
        from posttrain.pipeline.report.comparison_page import comparison_page

        mattered = importance(chosen, answers.questions if answers else ())
        typed = _typed(arguments)
        write_text(page, comparison_page(comparison, typed, score, against, arguments.metric, answers, mattered))
        print(f"page written: {page}", file=sys.stderr)
    if answers is not None:
        from posttrain.pipeline.compare.planned_text import planned_data, planned_text

        return (
            Document(as_json(planned_data(answers)))
            if arguments.json
            else planned_text(answers, score, arguments.metric)
        )
    return Document(as_json(as_data(comparison))) if arguments.json else as_text(comparison, score, arguments.metric)


def _planned(arguments: Namespace, selection: Selection, notes: Sequence[str]) -> Planned | None:
    """Return the answers to the planned questions; None if none was asked."""
    if not arguments.factor:
        return None
    if not arguments.names:
        print("no sweep is named, so the runs of params.yaml are compared (posttrain compare SWEEP)", file=sys.stderr)
    from posttrain.pipeline.compare.planned import planned

    # the levels of one policy in several experiments are those of the whole file; else of each run itself
    one_policy = len({policy.policy for policy in selection.policies}) == 1
    home = selection.home if one_policy else {}
    answers = planned(selection.policies, arguments.factor, arguments.against, selection.left_out, home)
    return replace(answers, notes=[*notes, *answers.notes])


def _typed(arguments: Namespace) -> str:
    """Return the names and options of the comparison as typed on the command line."""
    options = {name: getattr(arguments, name) for name in ("policy", "factor", "against", "table", "metric", "task")}
    lists = {name: given if isinstance(given, list) else [given] for name, given in options.items() if given}
    pairs = [(name, one) for name, given in lists.items() for one in given]
    words = [word for name, given in pairs for word in (f"--{name}", given)]
    return shlex.join(["compare", *arguments.names, *words, *["--greedy"] * arguments.greedy])


def _not_current(names: Mapping[str, str]) -> dict[str, str]:
    """Return a note for each policy of the workspace whose results are out of date for its model, settings or code.

    `names`: policy -> its name in the table, which is `workspace` next to commits and experiments.
    """
    from posttrain.pipeline.report.stale_results import staleness

    if not names:
        return {}
    return {
        label: f"{names.get(label, label)}: its results are not current ({why})"
        for label, why in staleness(names.keys()).reasons.items()
    }


def _tokens(arguments: Namespace) -> str:
    """Compare the tokens of two policies. The CPU instructions are set before torch is imported."""
    from dataclasses import asdict

    from posttrain.numerics import set_numerics

    set_numerics()
    from posttrain.pipeline.compare.token_shift import token_shift

    others = [
        name
        for name in ("policy", "against", "factor", "task", "table", "to", "metric", "greedy")
        if getattr(arguments, name)
    ]
    if others:
        what, fix = f"--{others[0]} is not read with --tokens", f"Remove --{others[0]}"
        raise ParamsError(what=what, where="compare", fix=fix)
    shift = token_shift(arguments.names)
    return Document(as_json(asdict(shift))) if arguments.json else str(shift)
