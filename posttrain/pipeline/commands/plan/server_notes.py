"""Lines of `plan` about a run's vLLM servers: memory awake and asleep, and when to sample one round ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from posttrain.errors import ParamsError
from posttrain.files import format_size
from posttrain.pipeline.commands.plan.advice import ONLINE, Planned
from posttrain.pipeline.commands.plan.memory_estimate import Demand
from posttrain.sampling.engines import SLEEP

AHEAD: Mapping[str, object] = {"rollout": {"ahead": 1}}


def server_notes(stage: str, demand: Demand, planned: Planned) -> Iterator[str]:
    """Yield lines about the servers of a stage that trains."""
    if demand.servers is None or not stage.startswith(ONLINE):
        return
    awake, asleep, sleeps, ahead = demand.servers
    if not awake:
        if not ahead and _accepted(planned):
            yield f"{stage}: its servers have devices of their own. With rollout.ahead: 1 they sample while it trains"
        return
    if ahead or asleep == awake:  # they cannot sleep
        return
    fits = (planned({"rollout": {"engine_args": {SLEEP: False}}}) if sleeps else demand).fits
    line = f"{stage}: vLLM's servers take {format_size(awake)} of the training's device; {format_size(asleep)} while "
    line += (
        f"it trains with rollout.engine_args.{SLEEP}: true (now {str(sleeps).lower()}). Estimated from these sizes: "
    )
    why = f"both fit, and a server that sleeps has to take {format_size(awake - asleep)} again in each round"
    yield line + (f"awake is faster, since {why}" if fits else "they do not fit awake, so let them sleep")


def _accepted(planned: Planned) -> bool:
    """Tell whether the run may sample ahead."""
    try:
        planned(AHEAD)
    except ParamsError:
        return False
    return True
