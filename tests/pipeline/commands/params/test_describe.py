"""Algorithms in full, and what each setting of a run is."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.online.sampled import SAMPLED_ROWS
from posttrain.pipeline.commands.params import describe as module
from posttrain.pipeline.commands.params import named_run
from posttrain.pipeline.commands.params.describe import COSTS, FAMILIES, description, effective, shown

PARAMS = """
base: {scratch: {tiny: {data: a/corpus, steps: 40}}}
sft: {runs: {main: {start: base/tiny, data: a/chat, epochs: 3.0}, far: {start: base/far, data: a/chat}}}
evaluate: {policies: {sft: sft/main}}
"""


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMS)


def test_every_algorithm_has_a_line_and_a_page() -> None:
    described = description()
    lines = described["overview"].splitlines()
    assert lines[0] == "Policy objectives (online.runs.NAME.algorithm)" and lines[-1].startswith("  reward ")
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= {row for one in FAMILIES for row in one.rows}
    grpo = described["algorithms"]["grpo"].splitlines()
    assert grpo[:3] == [
        f"grpo: {POLICY_ROWS['grpo'].paper}",
        f"  {POLICY_ROWS['grpo'].formula}",
        "set as: online.runs.NAME.algorithm",
    ]
    assert grpo[5] == "settings (* differs from the default)" and len(grpo) > 10
    reward = described["algorithms"]["reward"].splitlines()
    assert reward[0].startswith("reward: Ouyang 2022") and reward[2] == "settings" and reward[3].startswith("   ")


def test_what_an_algorithm_needs_besides_the_policy() -> None:
    assert module._memory(frozenset()) == "the policy"
    assert module._memory(frozenset({"value", "reward"})) == f"the policy + {COSTS['value']}"
    pairs, best = (SAMPLED_ROWS[name].settings() for name in ("online_dpo", "raft") if name in SAMPLED_ROWS)
    assert "ref_logp" in module._sampled_needs(pairs)
    assert module._sampled_needs(best) == frozenset({"entropy"})
    options = dict(module._options(type(POLICY_ROWS["grpo"].settings().surrogate)))
    assert options and "type" not in options


def test_values_are_shown_as_in_params_yaml() -> None:
    values = [None, True, False, [1, 0.5, None], 1e-5, "a", 3]
    assert [shown(value) for value in values] == ["null", "true", "false", "[1, 0.5, null]", "1e-05", "a", "3"]


def test_a_run_is_found_by_any_of_its_names() -> None:
    assert [named_run(name) for name in ("sft.runs.main", "sft/main", "sft@main")] == [("sft.runs", "main")] * 3
    assert named_run("sft/other") is None and named_run("evaluate@sft") is None
    Path("params.yaml").unlink()
    assert named_run("sft/main") is None


def test_the_settings_of_a_run() -> None:
    lines = effective("sft.runs", "main").splitlines()
    assert lines[0] == "sft.runs.main   (* given in params.yaml; the others are defaults)"
    assert "* epochs: 3.0" in lines and "* start: base/tiny" in lines and "  seed: 0" in lines
    (rate,) = [line for line in lines if "optimizer.lr:" in line]
    assert rate == f"  optimizer.lr: null   ({module._default_rate('sft.runs', 'main')})"
    assert module._default_rate("sft.runs", "far").startswith("decided by the run's kind, its model's size")
    assert "the default for sft" in module._default_rate("sft.runs", "main")
