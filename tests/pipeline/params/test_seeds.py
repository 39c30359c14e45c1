"""The top-level `seed` of params.yaml: which runs take it, and that each of them is stale when it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.sweep_config import Sweep, trials
from posttrain.errors import ParamsError
from posttrain.measure.provenance import code_differences
from posttrain.pipeline.lock.code_manifest import read_code as read
from posttrain.pipeline.lock.code_manifest import write_code
from posttrain.pipeline.params.params_file import at
from posttrain.pipeline.params.params_file import read as read_settings
from posttrain.pipeline.params.seeds import shared_seed, with_seed
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE

PARAMS = """
seed: {seed}
data: {{tasks: {{two_step: {{task: two_step}}}}}}
base: {{scratch: {{tiny: {{data: two_step/corpus}}}}}}
sft:
  runs:
    main: {{start: base/tiny, data: two_step/chat}}
    own: {{start: base/tiny, data: two_step/chat, seed: 7}}
evaluate: {{settings: {{data: two_step/prompts, reference: none, reward_model: none}}, policies: {{sft: sft/main}}}}
"""


def write(seed: object) -> None:
    Path("params.yaml").write_text(PARAMS.format(seed=seed), encoding="utf-8")


def test_runs_that_train_take_it_and_data_and_evaluation_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(3)
    settings = read_settings()
    assert at(settings, "base.scratch.tiny.seed") == at(settings, "sft.runs.main.seed") == 3
    assert at(settings, "sft.runs.own.seed") == 7
    assert "seed" not in at(settings, "data.tasks.two_step") and "seed" not in at(settings, "evaluate.settings")
    raw = read_yaml(PARAMS_FILE)
    assert [shared_seed(raw, "sft.runs", name) for name in ("main", "own")] == [3, None]


@pytest.mark.slow
def test_another_seed_changes_the_code_file_of_each_run_that_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(0)
    write_code()
    before: dict[Path, Any] = {path: read(path) for path in Path("code").rglob("*.json")}
    write(1)
    changed = write_code()
    assert sorted(map(str, changed)) == ["code/base_scratch/tiny.json", "code/sft/main.json"]
    after = read(changed[0])
    assert after is not None and code_differences(before[changed[0]], after) == ["seed 0 -> 1"]


@pytest.mark.parametrize("seed", ["-1", "1.5", "true", "many", 2**32, "[1]"])
def test_what_is_not_a_seed_is_refused(seed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(seed)
    with pytest.raises(ParamsError, match=r"seed = .* is not a seed"):
        read_settings()


def test_a_sweep_of_seeds_alone_sets_that_of_all_runs() -> None:
    assert [one.overrides for one in trials("s", Sweep(seeds=[1, 2]))] == [{"seed": 1}, {"seed": 2}]


def test_without_a_seed_the_sections_stay_as_they_are() -> None:
    run = {"sft": {"runs": {"a": {"x": 1}, "b": {"seed": 2}}}}
    assert with_seed(run) == run
    assert with_seed({"seed": 5, **run}) == {"sft": {"runs": {"a": {"seed": 5, "x": 1}, "b": {"seed": 2}}}}
