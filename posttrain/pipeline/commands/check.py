"""`posttrain check`: check params.yaml as a whole, the first rows of its files, and its models."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

EXAMPLE = ""
DOING = "reading params.yaml, its files and models"


def add_arguments(_: ArgumentParser) -> None:
    """Add no arguments."""


def run(_: Namespace) -> str:
    """Check packages and plugins first, then everything that a run would read."""
    from posttrain.pipeline.lock.package_pin import check_installed

    check_installed()
    from posttrain.pipeline.commands.plugins import say_gone
    from posttrain.pipeline.lock.plugin_check import check_plugins, missing_in_records, plugin_lines

    say_gone()
    check_plugins()
    from posttrain.errors import ParamsError
    from posttrain.pipeline.checks.check_models import check_models
    from posttrain.pipeline.checks.check_rows import check_rows
    from posttrain.pipeline.checks.params_schema import check_params
    from posttrain.pipeline.lineage.kept_inputs import kept_note
    from posttrain.pipeline.lock.check_inputs import refuse_pipes
    from posttrain.pipeline.lock.repair_dvc import OUTPUTS
    from posttrain.settings.plain import CUSTOM

    refuse_pipes([CUSTOM, *map(Path, OUTPUTS)])  # before own code is imported
    try:
        reports = [check_params(), check_rows(), check_models(), kept_note()]
    except ParamsError as error:  # an unknown name may be that of a plugin which was there when a run was made
        if not (missing := missing_in_records()):
            raise
        raise ParamsError(what=error.what, where=error.where, fix=f"{error.fix}. {missing}") from error
    return "\n".join(filter(None, [*reports, *plugin_lines()]))
