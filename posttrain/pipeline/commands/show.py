"""`posttrain show`: show results of the last runs, on the terminal or as a page."""

from argparse import ArgumentParser, Namespace

from posttrain.pipeline.commands.line import Document, add_action, add_actions
from posttrain.pipeline.commands.plugins import add_plugins, plugin_action
from posttrain.pipeline.commands.target import target

EXAMPLE = "results --json"
DOING = "reading the results"
FIGURES = """
the metrics, all measured on prompts that are never used for training:
  setting               policies that differ only in their seeds
  score                 mean reward of the sampled completions [95 % interval over prompts, and over seeds if several]
  minus NAME            the paired difference to NAME on the same prompts, as `posttrain compare` tests it
  pass@1                the score, if every completion is right or wrong
  greedy                the score of the likeliest completion of each prompt
  truncated             share of completions that were cut at the maximum length
  length                mean number of tokens of a completion
  KL to NAME            distance of the policy from NAME, in nats per completion (k1)
  other columns         the mean of a metric or a part of the reward [95 %]; completions on which it failed are left
                        out and counted. Or a number from the task"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument: what to show. Default: the results."""
    actions = add_actions(parser, "results")
    parser.set_defaults(against=None, markdown=False)
    does = "show every setting with its metrics, best first, or why it has no metrics"
    results = add_action(actions, "show", "results", does, "--json")
    results.epilog = f"{results.epilog}\n{FIGURES}"
    base = "a setting, or one of its policies; default: the reference of evaluate.settings. For experiments use compare"
    results.add_argument("--against", metavar="NAME", help=base)
    markdown = "print the table in Markdown, for a pull request or a README"
    results.add_argument("--markdown", action="store_true", help=markdown)
    does = "write a page of the current results to logs/report.html, even if a run has failed"
    report = add_action(actions, "show", "report", does, "--to page.html")
    about = (
        "another file, e.g. to send; the page shows commit, date, machine, seeds and times; default: logs/report.html"
    )
    report.add_argument("--to", metavar="FILE", help=about)
    add_plugins(actions, "show")
    add_action(actions, "show", "timings", "show what each stage spent its time on in its last run")
    does = "show how long a table's rows are, in tokens of a model"
    tokens = add_action(actions, "show", "tokens", does, "mine/chat base/start")
    tokens.add_argument("table", metavar="TABLE", help="e.g. mine/chat for data/mine/chat.parquet")
    model = "a folder under models/, e.g. base/start, or any folder with a tokenizer"
    tokens.add_argument("model", metavar="MODEL", help=model)
    tokens.add_argument("--plot", metavar="FILE.json", help="write the histogram for `dvc plots show`")


def run(arguments: Namespace) -> str:
    """Show what the arguments select."""
    match arguments.action:
        case "timings":
            from posttrain.measure.timings import timings_table

            return timings_table()
        case "tokens":
            from posttrain.pipeline.runs.token_counts import token_counts

            plot = target(arguments.plot, "show tokens --plot", ".json") if arguments.plot else None
            return token_counts(arguments.table, arguments.model, plot)
        case action if command := plugin_action("show", action):
            return command.run(arguments)
        case action:
            if action == "report" and arguments.to:
                target(arguments.to, "show report --to", ".html")
            return _results(arguments, action)


def _results(arguments: Namespace, action: str) -> str:
    """Show the current results, or write the report. Print what is running."""
    from posttrain.pipeline.report.stale_results import staleness

    stale = staleness()
    if stale.running and not (arguments.json or arguments.markdown):
        are = "is" if len(stale.running) == 1 else "are"
        print(f"{', '.join(stale.running)} {are} running; of finished stages:\n", flush=True)
    from posttrain.pipeline.report import results

    if action == "report":
        return results.write_report(stale.reasons, arguments.to)
    if arguments.json:
        return Document(results.results_json(stale.reasons, arguments.against))
    shown = results.results_markdown if arguments.markdown else results.results_table
    return shown(stale.reasons, arguments.against)
