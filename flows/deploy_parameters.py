"""The flow and the parameters of a deployment, from the command line, checked before the deployment is created."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.errors import ParamsError

from . import arguments, environment
from .graph import GraphReader, find_root
from .sweep import FOLDER, once, values_of
from .sweep_config import Trial, check_sweep, check_trials, checked_sweep_name, read_sweep, trials
from .sweep_plan import check_free


class Deployed(NamedTuple):
    """A flow of `deployed.py` and its parameters."""

    flow: str
    parameters: dict[str, Any]


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that select the flow and its parameters."""
    command.add_argument("targets", nargs="*", metavar="TARGET", help="stages, as for `posttrain flow`; default: all")
    command.add_argument(
        "-S",
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="run an experiment with this setting of params.yaml; with --sweep VALUE,VALUE",
    )
    command.add_argument("--sweep", metavar="NAME", help="run a sweep: the file sweeps/NAME.yaml, or the values of -S")
    command.add_argument("--seeds", **arguments.NUMBERS, help="with --sweep: its seeds")
    command.add_argument("--jobs", type=arguments.count, metavar="N", help="with --sweep: run N experiments at once")
    command.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=SOURCE",
        help="a variable of the runs from Prefect's server: secret/BLOCK or variable/NAME",
    )


def deployed(options: argparse.Namespace) -> Deployed:
    """Return the deployment's flow and parameters. Reject wrong settings. Call it in the project's folder."""
    env = dict(_split(word, "--env") for word in options.env)
    environment.check(env)
    checked_name(options.name)
    _ = GraphReader(find_root(Path.cwd()), options.targets).stages  # rejects unknown targets
    shared = {"targets": options.targets, **({"env": env} if env else {})}
    if options.sweep is None:
        for name in ("seeds", "jobs"):
            if getattr(options, name):
                raise ParamsError(what=f"--{name} needs --sweep", where="deploy", fix="Add --sweep NAME")
        settings = once(_setting(word) for word in options.set)
        if settings:
            _check_one(Trial(options.name, settings))
        return Deployed("pipeline", {**shared, **({"set": settings} if settings else {})})
    name, grid = checked_sweep_name(options.sweep), once(values_of(word) for word in options.set)
    check_free(find_root(Path.cwd()), name)
    data = {key: value for key, value in {"seeds": options.seeds, "targets": options.targets}.items() if value}
    file = FOLDER / f"{name}.yaml"
    if not grid and not options.seeds and not file.is_file():
        fix = "Write the file, or give the values: -S online.runs.grpo.kl.beta=0.02,0.1 --seeds 1,2,3"
        raise ParamsError(what="file not found", where=str(file), fix=fix)
    read = not grid and file.is_file()
    sweep = read_sweep(file, data) if read else check_sweep({**data, "grid": grid}, "the command line")
    check_trials(trials(name, sweep))
    more = {"set": grid, "seeds": options.seeds, "jobs": options.jobs}
    return Deployed("sweep", {"name": name, **shared, **{key: value for key, value in more.items() if value}})


def _check_one(trial: Trial) -> None:
    """Check a single experiment. Values of a sweep get a hint, because -S without --sweep takes one value."""
    try:
        check_trials([trial], "deploy")
    except ParamsError as error:
        several = [key for key, value in trial.overrides.items() if isinstance(value, str) and "," in value]
        if not several:
            raise
        fix = f"For several values of {several[0]} add --sweep NAME. {error.fix}".strip()
        raise ParamsError(what=error.what, where=error.where, fix=fix) from error


def checked_name(name: str, what: str = "deployment", where: str = "--name", example: str = "--name nightly") -> str:
    """Return the name of a deployment or pool. Reject characters that are not allowed in Prefect's addresses."""
    if not name.strip() or any(letter in name for letter in "/%&><"):
        fix = f"Use letters, digits, - and _, e.g. {example}"
        raise ParamsError(what=f"'{name}' is not a valid name for a {what}", where=where, fix=fix)
    return name


def _setting(word: str) -> tuple[str, Any]:
    """Return `KEY=VALUE` with the value parsed as YAML, where one list is one value."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    key, text = _split(word, "-S")
    try:
        return key, YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        what = f"'{word}' has a value that is not valid YAML"
        raise ParamsError(what=what, where="-S", fix="Write KEY=VALUE") from error


def _split(word: str, where: str) -> tuple[str, str]:
    name, equals, text = word.partition("=")
    if not (name and equals and text):
        raise ParamsError(what=f"'{word}' is not NAME=VALUE", where=where, fix="Write NAME=VALUE")
    return name, text
