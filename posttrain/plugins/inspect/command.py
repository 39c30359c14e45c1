"""`posttrain show inspect`: write results and rollouts as logs of Inspect AI."""

from argparse import ArgumentParser, Namespace

EXAMPLE = "grpo online/grpo"
DOES = "write results, or rollouts of runs, as logs of Inspect AI, for its viewer and its scanners"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: policies and runs, and the folder for the logs."""
    named = "a policy, or a run with rollouts; default: all policies"
    parser.add_argument("names", metavar="NAME", nargs="*", help=named)
    parser.add_argument("--to", metavar="FOLDER", default="inspect", help="where they are written; default: inspect")


def run(arguments: Namespace) -> str:
    """Write the logs."""
    from posttrain.pipeline.commands.target import folder_target
    from posttrain.plugins.inspect.inspect_logs import write_logs

    return write_logs(arguments.names, folder_target(arguments.to, "show inspect --to"))
