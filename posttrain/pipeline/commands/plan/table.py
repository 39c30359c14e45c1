"""`posttrain plan`: estimate stages from params.yaml and config.json, without loading weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from posttrain.errors import ModelError, ParamsError
from posttrain.files import format_size
from posttrain.measure.text_table import text_table
from posttrain.measure.timings import read_timings, timings_path
from posttrain.pipeline.commands.plan.advice import what_lowers
from posttrain.pipeline.commands.plan.memory_estimate import Demand, demand_of
from posttrain.pipeline.commands.plan.server_notes import server_notes
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.stage_table import STAGES, Stage, group_of
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import did_you_mean

OUTSIDE = {"external.runs": "the memory of your own trainer", "evaluate.lm_eval": "what lm-eval takes"}
"""Groups whose runs are computed by another program."""
GROUPS = (
    "base.scratch", "sft.runs", "data.samples", "reward.runs", "preference.runs", "online.runs", "distill.runs",
    "offline.runs", "evaluate.policies", "evaluate.runs", *OUTSIDE,
)  # fmt: skip
"""Groups whose runs train or sample."""
COLUMNS = (
    "stage", "total", "last run", "weights", "moments", "training", "KV cache", "decoding", "held-out", "rollouts",
    "checkpoints", "settings that lower it (to)",
)  # fmt: skip
NOTES = """
weights: including float32 copies of trained weights. training: gradients, activations, the head.
decoding: copies of weights, and one step or one prefill.
held-out: a pass over held-out rows. rollouts, checkpoints: disk.
total: peak device memory; {free} are free, and (!) marks a total above that. The peak is weights and moments, plus
the largest of training, sampling (KV cache and decoding) and held-out.
On a CPU the process itself needs about 0.7 GB more, and stages that run at the same time share the free memory.
{shared}All numbers are maxima, with prompts of {prompt} tokens (--prompt N) if the model's context allows them."""
SHARED = """of N processes: weights to total are per process. On a CPU, (!) compares the sum of this host's processes.
"""


def plan(stages: Sequence[str], model: str | None, prompt: int) -> str:
    """Return a table of the stages."""
    if prompt < 1:
        raise ParamsError(what=f"--prompt = {prompt}", where="plan", fix="Give at least 1")
    settings = read()
    known = {f"{_kind(stage, run_settings)}@{run}": (stage.group, run) for stage in STAGES if stage.group in GROUPS
             for run, run_settings in group_of(settings, stage.group).items()}  # fmt: skip
    chosen = [name for name in known if not stages or name in stages or name.partition("@")[0] in stages]
    families = {name.partition("@")[0] for name in known}
    for name in stages:
        if name not in known and name not in families:
            what = f"'{name}' is not a stage that trains or samples"
            raise ParamsError(what=what, where=PARAMS_FILE, fix=did_you_mean(name, list(known)))
    rows: list[tuple[str, ...]] = [COLUMNS]
    unknown, notes, free, shared = [], list[str](), "", ""
    for name in chosen:
        if known[name][0] in OUTSIDE:
            unknown.append(f"{name}: {OUTSIDE[known[name][0]]} is not known here")
            continue
        try:
            planned = partial(demand_of, *known[name], settings, prompt, model)
            demand = planned()
            rows.append((*_row(name, demand), what_lowers(name, demand, planned)))
            notes += server_notes(name, demand, planned)
            free = format_size(demand.free)
            shared = SHARED if demand.processes > 1 else shared
        except ModelError as error:
            unknown.append(f"{name}: {error}")
    if not free:
        return "\n".join(unknown)
    table = text_table(rows, left=range(len(COLUMNS)))
    return "\n".join([*table, *notes, *unknown, NOTES.format(free=free, prompt=prompt, shared=shared)])


def _row(name: str, demand: Demand) -> tuple[str, ...]:
    sampling, disk = demand.sampling, (demand.rollouts, demand.checkpoints)
    weights = demand.states["weights"] + demand.states.get("masters", 0.0)
    which = "the first" if demand.once else "each"
    each = f", {which} of {demand.processes} processes" if demand.processes > 1 else ""
    total = f"{format_size(demand.total)}{each}{'' if demand.fits else ' (!)'}"
    sizes = (
        weights, demand.states.get("moments", 0.0), sum(demand.training.values()),
        sampling.get("keys and values", 0.0), sampling.get("decoding", 0.0), demand.heldout,
    )  # fmt: skip
    return (name, total, _seconds(name), *map(_size, sizes), *map(_size, disk))


def _size(count: float) -> str:
    return format_size(count) if count else "-"


def _kind(stage: Stage, run: Any) -> str:
    """Return the stage of a run that loads its policy: of an evaluation by samples, the one that samples."""
    likelihood = isinstance(run, Mapping) and (
        run.get("by") == "likelihood" or str(run.get("data", "")).endswith(("/pairs", "/corpus"))
    )
    return stage.name if likelihood else stage.sampled_by or stage.name


def _seconds(stage: str) -> str:
    file = timings_path(stage)
    return f"{read_timings(file)['total']:,.0f} s" if file.is_file() else "unknown"
