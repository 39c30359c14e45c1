"""`posttrain run`: run one stage in this process."""

import argparse

from posttrain.errors import ParamsError

EXAMPLE = "sft main"
JSON = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: a stage and its own arguments."""
    parser.add_argument("stage", metavar="STAGE", help="its name in dvc.yaml")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="[RUN]", help="the run's name in params.yaml")


def run(arguments: argparse.Namespace) -> str:
    """Run the stage in this process."""
    from posttrain.pipeline.by_name import run_stage
    from posttrain.pipeline.params.stage_table import STAGES
    from posttrain.settings.params import did_you_mean

    if arguments.json or "--json" in arguments.words:
        fix = "Remove it: metrics/ and records/ contain the results as JSON"
        raise ParamsError(what="`posttrain run` does not print JSON", where="--json", fix=fix)
    names = ["code", "report", *(name for stage in STAGES for name in (stage.sampled_by, stage.name) if name)]
    if arguments.stage not in names:
        fix = did_you_mean(arguments.stage, names)
        raise ParamsError(what=f"no stage '{arguments.stage}'", where="posttrain run", fix=fix)
    run_stage(arguments.stage, arguments.words)
    return ""
