"""What `plan` says of the servers of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.plan.advice import what_lowers
from posttrain.pipeline.commands.plan.memory_estimate import Demand, ServerMemory
from posttrain.pipeline.commands.plan.server_notes import server_notes

GB = 1e9


def demand(free: float, *, sleeps: bool, ahead: int = 0) -> Demand:
    servers = ServerMemory(12 * GB, 2 * GB, sleeps, ahead)
    found = Demand(free * GB, {"weights": 4 * GB}, {"head": 10 * GB}, servers=servers)
    if sleeps:
        return replace(found, states={**found.states, "engine": 2 * GB}, sampling={"engine": 10 * GB})
    return replace(found, states={**found.states, "engine": 12 * GB})


def planned(free: float) -> Any:
    def after(change: Mapping[str, Any]) -> Demand:
        if change != {
            "rollout": {"engine_args": {"sleep": change.get("rollout", {}).get("engine_args", {}).get("sleep")}}
        }:
            raise ParamsError(what="not here", where="params.yaml", fix="Remove it")
        return demand(free, sleeps=bool(change["rollout"]["engine_args"]["sleep"]))

    return after


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize(("free", "said"), [(40, "awake is faster, since both fit"), (20, "they do not fit awake")])
def test_both_memories_and_which_is_faster(free: float, said: str, sleeps: bool) -> None:
    [line] = server_notes("online@grpo", demand(free, sleeps=sleeps), planned(free))
    assert "take 12 GB of the training's device; 2 GB while" in line and f"(now {str(sleeps).lower()})" in line
    assert "Estimated from these sizes" in line and said in line
    assert demand(20, sleeps=True).fits and not demand(20, sleeps=False).fits


def test_sleep_is_named_where_it_lowers_the_total() -> None:
    assert (
        what_lowers("online@grpo", demand(20, sleeps=False), planned(20)) == "rollout.engine_args.sleep: true (16 GB)"
    )


def test_servers_on_their_own_devices_may_sample_ahead() -> None:
    own = replace(demand(40, sleeps=False), servers=ServerMemory(0, 0, False, 0))
    [line] = server_notes("online@grpo", own, lambda _: own)
    assert line.endswith("With rollout.ahead: 1 they sample while it trains")
    assert not [*server_notes("online@grpo", own, planned(40))], "the run cannot sample ahead"
    assert not [*server_notes("online@grpo", replace(own, servers=ServerMemory(0, 0, False, 1)), lambda _: own)]


def test_others_have_nothing_to_say() -> None:
    found = demand(40, sleeps=False)
    assert not [*server_notes("evaluate@sft", found, planned(40))]
    assert not [*server_notes("online@grpo", replace(found, servers=None), planned(40))]
    assert not [*server_notes("online@grpo", demand(40, sleeps=False, ahead=1), planned(40))]
    on_cpu = replace(found, servers=ServerMemory(12 * GB, 12 * GB, False, 0))
    assert not [*server_notes("online@grpo", on_cpu, planned(40))]
