"""Settings that lower the memory of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.plan.advice import _changes, _named, what_lowers
from posttrain.pipeline.commands.plan.memory_estimate import Demand


def demand(gigabytes: float, free: float = 100.0, **more: Any) -> Demand:
    return Demand(free * 1e9, {"weights": gigabytes * 1e9}, **more)


def test_changes_that_lower_the_total_are_named_best_first() -> None:
    def planned(change: Mapping[str, Any]) -> Demand:
        if change.get("processes"):
            raise ParamsError(what="no", where="a", fix="b")
        kind = change.get("activations") or change.get("adapter", {}).get("type") or ""
        return demand({"recompute": 10, "offload": 12, "lora": 15, "qlora": 5}.get(str(kind), 20))

    own = "activations: recompute (10 GB), activations: offload (12 GB)"
    said = f"{own}; other results: adapter: qlora (5 GB), adapter: lora (15 GB)"
    assert what_lowers("sft@a", demand(20), planned) == said


def test_without_such_a_change_a_smaller_model_is_needed() -> None:
    assert what_lowers("sft@a", demand(20), lambda _: demand(20)) == "-"
    assert what_lowers("sft@a", demand(20, free=1), lambda _: demand(20, free=1)) == "a smaller model"


def test_which_changes_are_tried() -> None:
    def keys(stage: str, found: Demand) -> list[str]:
        return [_named(change) for change in _changes(stage, found)]

    assert "processes: 2" in keys("sft@a", demand(1)) and "reference: none" not in keys("sft@a", demand(1))
    assert keys("completions@a", demand(1)) == ["device.precision: bf16", "reference: none"]
    cached = demand(1, sampling={"keys and values": 4e9})
    assert keys("online@a", cached)[-2:] == ["rollout.sampling.kv_gb: 2.0", "rollout.sampling.rows: 64"]
    assert keys("data_samples@a", cached)[-2:] == ["sampling.kv_gb: 2.0", "sampling.rows: 64"]
    assert any(" + " in key for key in keys("sft@a", demand(20, free=1)))


def test_changes_are_named_as_in_params_yaml() -> None:
    assert _named({"rollout": {"sampling": {"rows": 64}}}) == "rollout.sampling.rows: 64"
    assert _named({"adapter": {"type": "lora"}, "activations": "recompute"}) == "adapter: lora + activations: recompute"
