"""`posttrain replay RUN`: train again on the stored rollouts, and compare each step with the original."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import polars as pl

from posttrain.errors import ParamsError, PipelineError
from posttrain.files import format_age
from posttrain.measure.record import cpu_isa, read_record, record_path, versions
from posttrain.measure.timings import read_timings, timings_path
from posttrain.pipeline.lock.digests import Digests, recorded
from posttrain.pipeline.lock.run_records import RunRecords
from posttrain.pipeline.params.named_runs import load_run
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import group_of
from posttrain.pipeline.runs.distill import DISTILL
from posttrain.pipeline.runs.online import ONLINE, online_run
from posttrain.pipeline.runs.stage_checkpoints import nearest_checkpoint
from posttrain.pipeline.runs.stored_rollouts import StoredGroups, StoredRollouts
from posttrain.pipeline.runs.teachers import distill_run
from posttrain.pipeline.runs.training import RunInputs
from posttrain.pipeline.workspace import PARAMS_FILE, VERIFY, rollouts_path
from posttrain.settings.params import did_you_mean
from posttrain.train import randomness
from posttrain.train.checkpoint import CheckpointData, NoCheckpoints
from posttrain.train.loop import section_of, training_loop
from posttrain.train.metrics import NoRecorder

FAMILIES: Final = {"online": (ONLINE, online_run), "distill": (DISTILL, distill_run)}
COMPARED: Final = ("loss", "grad_norm")

T = TypeVar("T")


def replay(run: str, step: int | None) -> str:
    """Train the run again up to a step. Raise at the first step with a different loss or gradient norm."""
    family, name = _named(run)
    model = f"{family}/{name}"
    _check_unedited(f"{family}@{name}", rollouts_path(model))
    stored = StoredRollouts(rollouts_path(model), "replay")
    expected = stored.steps
    if step is not None and not 0 <= step < len(expected):
        what, fix = f"the run has the steps 0 to {len(expected) - 1}", "Name one of them"
        raise ParamsError(what=what, where=f"--step {step}", fix=fix)
    end = len(expected) if step is None else step + 1
    if shared := read_record(record_path(f"{family}@{name}")).get("processes"):
        what = f"it was trained by {shared} processes, which add up gradients in a different order than one process"
        raise PipelineError(
            what=what, where=f"{family}/{name}", fix="Only runs with one process can be replayed exactly"
        )
    (algorithms, load), stage = FAMILIES[family], f"{family}@{name}"
    params: Any = load_run(section_of(stage), algorithms)
    reads = RunInputs(stage, params)
    given = load(reads)
    training = given.training(StoredGroups(stored), given.rewards(), params.monitor(section_of(stage)))
    settings = reads.checkpoint_settings(given.models)
    saved = nearest_checkpoint(training.name, settings, reads.inputs, end - 1)
    first = 0 if saved is None else saved.step
    print(_cost(training.name, stored, first, end), flush=True)

    randomness.seed(params.seed)
    log = training_loop(training, _Nearest(saved), NoRecorder(), end)
    return _verdict(training.name, expected, log.rows, first)


@dataclass
class _Nearest(NoCheckpoints):
    """Resumes from one checkpoint and saves none."""

    saved: CheckpointData | None

    def resume(self, restore: Callable[[CheckpointData], T]) -> T | None:
        return None if self.saved is None else restore(self.saved)


def _named(run: str) -> tuple[str, str]:
    """Return the family and name of a run: `online/grpo`, or `grpo` if only one family has it."""
    settings = read()
    runs = [(family, name) for family in FAMILIES for name in group_of(settings, f"{family}.runs")]
    matches = [pair for pair in runs if run in ("/".join(pair), "@".join(pair), pair[1])]
    if len(matches) != 1:
        names = ["/".join(pair) for pair in runs]
        what = f"{run} is in {' and '.join(family for family, _ in matches)}" if matches else f"no run '{run}' samples"
        fix = f"Name one of {', '.join(names)}" if matches else did_you_mean(run, names) or "Name a run of online.runs"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
    return matches[0]


def _cost(name: str, stored: StoredRollouts, first: int, end: int) -> str:
    """Return a line with the rollouts of the replay and their approximate training time in the original run."""
    used = pl.col("step").is_between(first, end - 1)
    tokens = (pl.col("prompt_ids").list.len() + pl.col("completion_ids").list.len()).filter(used)
    sums = [stored.figures(part, used.sum(), tokens.sum().alias("tokens")).row(0) for part in stored.parts]
    count, total = (sum(column) for column in zip(*sums, strict=True))
    start = f"the checkpoint at step {first}" if first else "the start"
    cost = f"replay {name}: {end - first} steps from {start} on {count:,} rollouts, {total:,} tokens"
    if not timings_path(name).is_file():
        return f"{cost}; the time is not known, as the run was not timed here"
    spent = read_timings(timings_path(name))["seconds"]
    seconds = (spent["train"] + spent.get("reference", 0.0)) * (end - first) / len(stored.steps)
    return f"{cost}; about {format_age(max(seconds, 2))} and the time to load"


def _verdict(name: str, expected: Sequence[dict[str, float]], rows: Sequence[dict[str, float]], first: int) -> str:
    """Return one line if all replayed steps are bit-identical; else raise an error with the first that differs."""
    for step in range(first, len(rows)):
        old, new = expected[step], rows[step]
        for key in (key for key in COMPARED if key in old):
            if old[key] != new.get(key):
                what = f"step {step} differs: {key} is {new.get(key)!r} but was {old[key]!r}"
                if step > first:
                    what += f"; the {step - first} steps before it are equal"
                raise PipelineError(what=what, where=name, fix=_reason(name))
    steps = f"the steps {first} to {len(rows) - 1}"
    return f"replay {name}: loss and gradient norm of {steps} are those of the run, bit for bit"


def _check_unedited(stage: str, folder: Path) -> None:
    """Reject rollouts that differ from what the run wrote. An edit in place changes DVC's copy of a file too."""
    entry = recorded().get(stage, {})
    digest = next((out.get("md5") for out in entry.get("outs", ()) if out["path"] == str(folder)), None)
    if digest is not None and Digests().of(str(folder)) not in (digest, None):
        raise PipelineError(
            what="it differs from the run's output that dvc.lock records", where=str(folder), fix=VERIFY
        )
    if wrong := RunRecords().contradictions(stage, entry):
        fix = "Run `posttrain repair`, then `dvc repro`"
        raise PipelineError(what=f"dvc.lock does not match the run: {'; '.join(wrong)}", where=stage, fix=fix)


def _reason(name: str) -> str:
    """Return a possible cause of a difference."""
    record: dict[str, Any] = read_record(record_path(name))
    now = {**versions(), "cpu_isa": cpu_isa()}
    then = {**record.get("versions", {}), "cpu_isa": record.get("cpu_isa")}
    changed = [f"{key} {then[key]} -> {now[key]}" for key in now if key in then and then[key] != now[key]]
    if changed:
        return f"It was made with other packages or CPU instructions: {', '.join(changed)}"
    return "`posttrain status` names changed code, parameters and inputs; another CPU may round differently"
