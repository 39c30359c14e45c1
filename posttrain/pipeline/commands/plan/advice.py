"""Find settings that lower a run's memory, by estimating the run with each change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from posttrain.errors import ModelError, ParamsError
from posttrain.files import format_size
from posttrain.pipeline.commands.plan.memory_estimate import Demand
from posttrain.sampling.engines import SLEEP

Planned = Callable[[Mapping[str, Any]], Demand]
"""Returns the plan of the run with a change of its settings."""
LESS = 0.95
"""A change is suggested if at most this share of the total remains."""
NAMED = 2
"""The most suggested changes of each kind, best first."""
OTHER_RESULTS = ("adapter", "device.precision", "reference")
"""Settings that change what a run learns or measures by more than rounding."""
TRAINING: tuple[Mapping[str, Any], ...] = (
    {"activations": "recompute"},
    {"activations": "offload"},
    {"adapter": {"type": "lora"}},
    {"adapter": {"type": "qlora"}},
    {"micro_tokens": 1024},
)
TOGETHER: tuple[Mapping[str, Any], ...] = tuple(
    {"adapter": {"type": kind}, "activations": "recompute", "device": {"precision": "bf16"}}
    for kind in ("lora", "qlora")
)
"""Changes that are tried together if a run does not fit."""
ONLINE = ("online@", "distill@")
SAMPLING = ("data_samples@", "completions@", "completions_runs@", "evaluate_runs@")


def what_lowers(stage: str, planned_now: Demand, planned: Planned) -> str:
    """Return the changes that lower a stage's total memory, and the new total for each.

    'activations: recompute (12.7 GB); other results: adapter: lora (20.1 GB)'
    """
    left: dict[str, float] = {}
    for change in _changes(stage, planned_now):
        try:
            demand = planned(change)
        except (ModelError, ParamsError):  # the run or its model cannot have it
            continue
        if demand.taken <= LESS * planned_now.taken and demand.total not in left.values():
            left[_named(change)] = demand.total
    best = sorted(left, key=left.__getitem__)
    other = [name for name in best if name.startswith(OTHER_RESULTS)]
    kinds = {"": [name for name in best if name not in other], "other results: ": other}
    listed = [
        head + ", ".join(f"{name} ({format_size(left[name])})" for name in kind[:NAMED])
        for head, kind in kinds.items()
        if kind
    ]
    return "; ".join(listed) or ("-" if planned_now.fits else "a smaller model")


def _changes(stage: str, demand: Demand) -> Iterator[Mapping[str, Any]]:
    yield {"device": {"precision": "bf16"}}
    if not stage.startswith(SAMPLING):
        yield from TRAINING
        yield {"processes": 2 * demand.processes}
        yield from () if demand.fits else TOGETHER
    elif stage.startswith("completions@"):
        yield {"reference": "none"}
    if demand.servers is not None and demand.servers.asleep < demand.servers.awake and stage.startswith(ONLINE):
        yield {"rollout": {"engine_args": {SLEEP: True}}}
    held = demand.sampling.get("keys and values", 0.0) + demand.states.get("engine", 0.0)
    if held:
        half_gb = max(round(held / 2e9, 1), 0.1)
        for sampling in ({"kv_gb": half_gb}, {"rows": 64}):
            yield {"rollout": {"sampling": sampling}} if stage.startswith(ONLINE) else {"sampling": sampling}


def _named(change: Mapping[str, Any]) -> str:
    """Return a change as a params.yaml line: {"rollout": {"sampling": {"rows": 64}}} -> rollout.sampling.rows: 64."""
    named = []
    for key, value in change.items():
        if not isinstance(value, Mapping):
            named.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value}")
        else:
            named.append(f"{key}: {value['type']}" if "type" in value else f"{key}.{_named(value)}")
    return " + ".join(named)
