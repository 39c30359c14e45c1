"""`posttrain reward`: try a reward on rows, or compare a judge with labels."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from posttrain.pipeline.commands.line import add_action, add_actions

EXAMPLE = "test format --table mine/prompts"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: an action with its own arguments."""
    actions = add_actions(parser)
    does = "show the score, status and time of each row, and the traceback if the reward fails"
    test = add_action(actions, "reward", "test", does, "format --table mine/prompts")
    test.add_argument("name", metavar="NAME", help="a reward as in params.yaml: its name, or MODULE:NAME of custom/")
    table = "results/LABEL/rollouts.parquet, NAME/prompts, or a file with prompt, completion, answer and info"
    test.add_argument("--table", required=True, metavar="T", help=f"{table}; without completions, examples are scored")
    test.add_argument("--options", nargs="+", default=[], metavar="KEY=VALUE", help="options of the reward")
    test.add_argument(
        "--run", metavar="RUN", help="use the options, tokenizer and models of a run, e.g. online.runs.grpo"
    )
    test.add_argument("--separator", metavar="C", help='the separator between cells of a csv file, e.g. ";"')
    test.add_argument("--encoding", metavar="E", help="the encoding of a csv file, e.g. cp1252 or utf-16")
    test.add_argument("-n", "--rows", type=int, default=20, metavar="N", help="the number of rows; default: 20")
    does = "measure the agreement of the reward `judge` with labels: Cohen's kappa and its interval"
    example = "results/grpo/rollouts.parquet online.runs.grpo.reward.judge"
    agreement = add_action(actions, "reward", "agreement", does, example)
    table = "a table of completions with labels: NAME/feedback, or results/NAME/rollouts.parquet"
    agreement.add_argument("table", metavar="TABLE", help=table)
    agreement.add_argument("judge", metavar="SETTINGS", help="the key of the judge in params.yaml")
    label = "the rollouts' reward that serves as the label; default: correct"
    agreement.add_argument("--reward", default="correct", metavar="NAME", help=label)
    most = "number of rows, drawn at random; each row costs a request; default: 200"
    agreement.add_argument("--rows", type=int, default=200, metavar="N", help=most)
    least = "verdicts >= this count as right; default: 0.5"
    agreement.add_argument("--threshold", type=float, default=0.5, metavar="X", help=least)


def run(arguments: Namespace) -> str:
    """Run the action."""
    if arguments.action == "test":
        from posttrain.pipeline.commands.reward.rows import csv_dialect
        from posttrain.pipeline.commands.reward.trial import reward_test

        dialect = csv_dialect(arguments.separator, arguments.encoding)
        given = arguments.name, arguments.table, arguments.options, arguments.run, arguments.rows
        return reward_test(*given, dialect)
    from posttrain.pipeline.commands.reward.agreement import judge_agreement

    return judge_agreement(arguments.table, arguments.judge, arguments.reward, arguments.rows, arguments.threshold)
