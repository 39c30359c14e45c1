"""external: one run of `external.runs`, a model that a command of yours trains, checked before it counts."""

from __future__ import annotations

import codecs
import os
import re
import shutil
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from posttrain.errors import DataError, ParamsError, PipelineError
from posttrain.isolation.command import run_command
from posttrain.measure.stage_log import log_path
from posttrain.models.files.import_model import fetch_model
from posttrain.params.params import PARAMS_FILE, Params, load
from posttrain.params.slots import model_slot, needed_model, table_of, table_slot
from posttrain.processes.stage import run_named_stage
from posttrain.tables.curve import read_curve
from posttrain.tables.sources import USER_KINDS
from posttrain.workspace import atomic_path, is_outside, metrics_path, model_path, plot_path, write_json, write_text

VARIABLE: Final = "POSTTRAIN_"
PASSED: Final = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)  # fmt: skip
"""Variables that every command gets; results should depend on no others that a run does not name."""
LAST_LINES: Final = 5
"""Lines of the output that an error has."""


class ExternalRun(Params):
    """One run of `external.runs`: a trainer of your own, as a command."""

    makes: Literal["model"] = Field("model", description="what the command writes into {out}")
    command: str | list[str] = Field(
        min_length=1,
        description="a line for the shell, or a list of words; {start}, {data}, {out}, {seed} are filled in",
    )
    script: str = Field(
        min_length=1, description="the file or folder that the command runs: a change makes the run stale"
    )
    start: str = model_slot("the model it starts from")
    data: str = table_slot(*USER_KINDS, description="the table that it reads", optional=True)
    env: list[str] = Field(
        [], description="names of environment variables that the command gets too; their values are stored nowhere"
    )
    seed: int = Field(0, ge=0, description="what the command gets as its seed")


def main(run: str) -> None:
    """Writes models/external/RUN, metrics/external/RUN.json and plots/external/RUN.csv."""
    name, section = f"external@{run}", f"external.runs.{run}"
    params = load(ExternalRun, section)
    if is_outside(params.script):
        where = f"{section}.script = {params.script} ({PARAMS_FILE})"
        raise ParamsError(what="it is outside the workspace", where=where, fix="Copy it into the workspace")
    scratch = model_path(name).with_name(f".{run}.scratch.tmp")
    shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed together with its keeper
    out, measured = scratch / "model", scratch / "metrics.csv"
    out.mkdir(parents=True)
    table = table_of(params.data)
    given = {
        "start": str(needed_model(params.start, f"{section}.start")),
        "data": "" if table is None else str(table),
        "out": str(out),
        "seed": str(params.seed),
    }
    try:
        _run(params, given | {"metrics": str(measured)}, section, log_path(name))
        _save_metrics(name, measured, params)
        fetch_model(str(out), None, model_path(name))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{name}: what `{params.script}` wrote was checked and saved in {model_path(name)}")


def _run(params: ExternalRun, given: Mapping[str, str], section: str, log: Path) -> None:
    """Run the command and print what it prints; raise with its last lines if it fails."""
    where = f"{section}.command ({PARAMS_FILE})"
    decoder, last = codecs.getincrementaldecoder("utf-8")("replace"), deque[str](maxlen=LAST_LINES)
    rest = ""

    def show(part: bytes, *, final: bool = False) -> None:
        nonlocal rest
        # whole lines, as the values of secrets are hidden in each text that is printed
        *lines, rest = re.split(r"(?<=[\r\n])", rest + decoder.decode(part, final))
        lines += [rest + "\n"] if final and rest else []
        print(*lines, sep="", end="", flush=True)
        last.extend(line.strip() for line in lines if line.strip())

    words = ["sh", "-c", params.command] if isinstance(params.command, str) else params.command
    environment, folder = _environment(params, given, section), Path(given["out"]).parent
    status = run_command([_filled(word, given) for word in words], environment, folder, show)
    show(b"", final=True)
    if status:
        said = "".join(f"\n  {text}" for text in last) or " nothing"
        fix = f"Fix the command or {params.script}; {log} has all that it printed"
        raise PipelineError(what=f"exit status {status}. It printed last:{said}\n", where=where, fix=fix)


def _filled(word: str, given: Mapping[str, str]) -> str:
    """Return a word with the places filled in; other braces stay, as a shell or a JSON has them."""
    return re.sub(r"\{(start|data|out|seed)\}", lambda found: given[found[1]], word)


def _environment(params: ExternalRun, given: Mapping[str, str], section: str) -> dict[str, str]:
    missing = [name for name in params.env if name not in os.environ]
    if missing:
        where = f"{section}.env ({PARAMS_FILE})"
        fix = "Set it where you start the pipeline, or remove it there"
        raise ParamsError(what=f"the environment variable {missing[0]} is not set", where=where, fix=fix)
    kept = {name: os.environ[name] for name in (*PASSED, *params.env) if name in os.environ}
    own = {f"{VARIABLE}{name.upper()}": value for name, value in given.items()}
    return {**kept, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", **own}


def _save_metrics(name: str, written: Path, params: ExternalRun) -> None:
    """Save the metrics per step that the command wrote, if it wrote any, and the last value of each."""
    columns = read_curve(written) if written.is_file() else {}
    steps = columns.get("step", [])
    if columns and (not steps or None in steps):
        fix = "Write a column `step` with a number in each row"
        raise DataError(what="the metrics have rows without a step", where="POSTTRAIN_METRICS", fix=fix)
    if columns:
        with atomic_path(plot_path(name)) as file:
            shutil.copyfile(written, file)
    else:
        write_text(plot_path(name), "step,loss\n")
    measured = {key: [value for value in column if value is not None] for key, column in columns.items()}
    last = {key: values[-1] for key, values in measured.items() if values and key != "step"}
    write_json(metrics_path(name), {"script": params.script, "steps": len(steps), **last})


if __name__ == "__main__":
    run_named_stage(main)
