"""Which results are out of date, and why."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from posttrain.pipeline.lock.reasons import Reasons
from posttrain.pipeline.report import stale_results as module
from posttrain.pipeline.report.stale_results import NOT_RUN, staleness
from posttrain.pipeline.workspace import failure_path
from tests.pipeline.lock.project import md5, put, put_lock

DVC_YAML = """
stages:
  sft: {cmd: make sft, outs: [models/sft]}
  evaluate:
    foreach: [sft]
    do: {cmd: evaluate, deps: [models/sft], outs: ['results/${item}/metrics.json']}
"""
PARAMS = """
evaluate: {settings: {data: a/prompts}, policies: {sft: sft/main}, ratings: {all: {}}}
reward: {runs: {r: {}, s: {}}}
"""


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(Path("dvc.yaml"), DVC_YAML)
    put(Path("params.yaml"), PARAMS)
    put(Path("models/sft"), "weights")
    put(Path("results/sft/metrics.json"), "{}")
    put(Path("metrics/reward/r.json"), "{}")
    weights, metrics = (
        {"path": path, "md5": md5(text)}
        for path, text in (("models/sft", "weights"), ("results/sft/metrics.json", "{}"))
    )
    stages = {
        "sft": {"cmd": "make sft", "outs": [weights]},
        "evaluate@sft": {"cmd": "evaluate", "deps": [weights], "outs": [metrics]},
    }
    put_lock(Path(), stages)


def reason() -> str:
    return module._reason("evaluate@sft", Path("results/sft/metrics.json"), Reasons(), ())


def test_current_results() -> None:
    assert staleness(["sft"]) == module.Staleness((), {})
    assert reason() == ""


def test_the_cause_furthest_upstream_is_named() -> None:
    put(Path("dvc.yaml"), DVC_YAML.replace("make sft", "make it"))
    why = "out of date: sft has to run again (its command changed)"
    assert reason() == why and staleness(["sft"]).reasons == {"sft": why}
    Path("results/sft/metrics.json").unlink()
    assert reason() == NOT_RUN
    put(failure_path("sft"), "the memory ran out\nmore\n")
    assert reason() == "failed: sft: the memory ran out"
    os.utime(failure_path("sft"), (1, 1))
    assert reason() == NOT_RUN, "params.yaml was edited since"


def test_a_running_stage_is_named() -> None:
    put(Path(".dvc/tmp/rwlock"), json.dumps({"write": {str(Path("models/sft").resolve()): {"pid": os.getpid()}}}))
    found = staleness(["sft"])
    assert found.running == ("sft",) and found.reasons == {"sft": "sft is running"}


def test_every_kind_of_result() -> None:
    settings = {
        "evaluate": {"policies": {"sft": "sft/main"}, "ratings": {"all": {}}}, "reward": {"runs": {"r": {}, "s": {}}},
    }  # fmt: skip
    assert module._results(settings) == {
        "sft": ("evaluate@sft", Path("results/sft/metrics.json")),
        "ratings/all": ("evaluate_ratings@all", Path("metrics/ratings/all.json")),
        "reward/r": ("reward@r", Path("metrics/reward/r.json")),
    }
