"""The trials of a sweep."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.sweep_config import (
    Random,
    Range,
    Sweep,
    Trial,
    _check_key,
    _draw,
    _name,
    _plain,
    _random_settings,
    _section,
    check_trials_here,
    checked_sweep_name,
    described,
    main,
    placed,
    read_sweep,
    trials,
)
from posttrain.errors import ParamsError, PipelineError

LR, BETA = "online.runs.grpo.optimizer.lr", "online.runs.grpo.kl.beta"
STEPS = "base.scratch.tiny.steps"


def test_a_range_is_ordered_and_a_sweep_has_something_to_run() -> None:
    assert Range(low=0.1, high=1.0) == Range.model_validate({"low": 0.1, "high": 1.0, "scale": "log"})
    assert Range(low=-1.0, high=1.0, scale="linear").low == -1.0
    for low, high in ((1.0, 1.0), (0.0, 1.0)):
        with pytest.raises(ValueError, match="low must be below high"):
            Range(low=low, high=high)
    with pytest.raises(ValueError, match="nothing to run"):
        Sweep()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"grid": {LR: [0.1, 0.1]}}, f"{LR} has the value 0.1 twice"),
        ({"seeds": [1, 2, 1]}, "seeds has the value 1 twice"),
        ({"grid": {LR: [], BETA: [1]}}, f"{LR} has no values"),
        ({"random": {"draws": 1, "over": {LR: []}}}, f"{LR} has no values"),
    ],
)
def test_values_that_are_given_twice_or_not_at_all_are_an_error(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Sweep(**values)


@pytest.mark.parametrize("key", ["seed", "online.runs.grpo.seed"])
def test_seeds_are_given_once(key: str) -> None:
    with pytest.raises(ParamsError, match=f"'{key}' is varied, and there are seeds for it too"):
        trials("s", Sweep(grid={key: [1, 2]}, seeds=[3]))
    assert len(trials("s", Sweep(grid={key: [1, 2]}))) == 2


def test_a_sweep_file_without_values(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    with pytest.raises(ParamsError, match=r"holds no sections\. It needs grid, settings, random or seeds"):
        read_sweep(tmp_path / "empty.yaml", {})
    (tmp_path / "seed.yaml").write_text("seed: 1\n")
    with pytest.raises(ParamsError, match=r"sweep: seed: unknown key\. Did you mean 'seeds' or 'random\.seed'"):
        read_sweep(tmp_path / "seed.yaml", {})


def test_the_keys_that_vary() -> None:
    over = {"c": [1], LR: Range(low=1e-5, high=1e-3)}
    sweep = Sweep(grid={"a": [1]}, settings=[{"b": 1}, {"a": 2}], random=Random(draws=1, over=over))
    assert sweep.swept == ["a", "b", "c", LR]
    assert Sweep(seeds=[1]).swept == []


def test_a_sweep_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "lr.yaml"
    file.write_text(f"grid: {{{LR}: [0.1, 0.2]}}\nseeds: [1]\n")
    assert read_sweep(file, {}) == Sweep(grid={LR: [0.1, 0.2]}, seeds=[1])
    assert read_sweep(file, {"seeds": [7]}).seeds == [7]


def test_the_name_of_a_sweep() -> None:
    assert checked_sweep_name("lr_2") == "lr_2"
    with pytest.raises(PipelineError, match="'a-b' is not a valid name for a sweep"):
        checked_sweep_name("a-b")


def test_every_setting_has_every_seed() -> None:
    found = trials("lr", Sweep(grid={LR: [0.1, 0.2]}, settings=[{BETA: 1}], seeds=[3, 4]))
    seeds = [{"online.runs.grpo.seed": seed} for seed in (3, 4)]
    settings = ({LR: 0.1}, {LR: 0.2}, {BETA: 1})
    assert [trial.overrides for trial in found] == [{**setting, **seed} for setting in settings for seed in seeds]
    assert [trial.overrides for trial in trials("s", Sweep(seeds=[1, 2]))] == [{"seed": 1}, {"seed": 2}]
    assert [trial.overrides for trial in trials("s", Sweep(seeds=[1], seed_keys=["a.seed"]))] == [{"a.seed": 1}]


def test_random_settings_repeat_with_their_seed() -> None:
    over = {LR: Range(low=1e-5, high=1e-3), BETA: Range(low=0, high=1, scale="linear"), "a": ["x", "y"]}
    drawn = _random_settings(Random(draws=50, seed=1, over=over))
    assert _random_settings(None) == []
    assert drawn == _random_settings(Random(draws=50, seed=1, over=over)) and len(drawn) == 50
    assert all(1e-5 <= one[LR] <= 1e-3 and 0 <= one[BETA] <= 1 for one in drawn)
    assert {one["a"] for one in drawn} == {"x", "y"}
    assert all(len(f"{one[BETA]:.3g}") >= len(str(one[BETA])) for one in drawn), "three digits"


def test_a_draw_is_on_its_scale() -> None:
    class Middle:
        """Draws the first value, and the middle of each range."""

        def choice(self, values: list[object]) -> object:
            return values[0]

        def uniform(self, low: float, high: float) -> float:
            return (low + high) / 2

    rng: object = Middle()
    assert _draw(["x", "y"], rng) == "x"
    assert _draw(Range(low=0, high=3, scale="linear"), rng) == 1.5
    assert _draw(Range(low=0.001, high=10), rng) == 0.1


def test_names_say_the_settings() -> None:
    name = "lr-textx_y.z-lr0.1-c7ad5e"
    assert _name("lr", {LR: 0.1, "a.text": "x y..z"}) == name == _name("lr", {"a.text": "x y..z", LR: 0.1})
    assert _name("lr", {}) == "lr--44136f"
    assert _name("lr", {LR: 0.1}) != _name("lr", {BETA.replace("beta", "lr"): 0.1})
    assert _plain(0.0001) == "0.0001" and _plain("a/b") == "a_b" and _plain(1e-5) == "1e-05" and _plain([1]) == "_1_"
    assert described(Trial("a", {LR: 0.1, "b": "c"})) == f"{LR}=0.1 b=c"


def test_keys() -> None:
    assert placed({}, "a.b.c", 1) == {"a": {"b": {"c": 1}}} and placed({"a": 2, "d": 3}, "a", {}) == {"a": {}, "d": 3}
    reward = {"a": {"reward": {"correct": 1, "format": 0.2}, "kl": 0}}
    assert placed(reward, "a.reward", {"correct": 2}) == {"a": {"reward": {"correct": 2}, "kl": 0}}, "set, not merged"
    assert placed(reward, "a.reward.correct", 2) == {"a": {"reward": {"correct": 2, "format": 0.2}, "kl": 0}}
    assert reward == {"a": {"reward": {"correct": 1, "format": 0.2}, "kl": 0}}
    with pytest.raises(ParamsError, match="Write it without"):
        _check_key(f"+{LR}", {})
    assert _section(LR) == "online.runs.grpo" and _section("evaluate.settings.samples") == "evaluate.settings"
    params = {"online": {"runs": {"grpo": {}}}}
    for key in (LR, "evaluate.settings.samples", "seed"):
        _check_key(key, params)
    for key in ("online.runs.gpro.kl", "online.runs.grpo", "online"):
        with pytest.raises(ParamsError, match="is not a setting of a run of params"):
            _check_key(key, params)


def test_trials_are_checked_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good, bad = [Trial("good", {STEPS: 50})], [Trial("bad", {STEPS: "x"})]
    check_trials_here(bad)  # another pipeline than posttrain's
    Path("dvc.yaml").write_text("stages: {base_scratch: {foreach: '${base.scratch}', do: {cmd: 'true'}}}\n")
    Path("params.yaml").write_text(
        "data: {tasks: {two_step: {task: two_step}}}\nbase: {scratch: {tiny: {data: two_step/corpus, steps: 40}}}\n"
    )
    Path("custom").mkdir()
    check_trials_here(good)
    with pytest.raises(ParamsError, match=rf"bad \({STEPS}=x\): {STEPS}"):
        check_trials_here(bad)
    for trial, code in ((good[0], 0), (bad[0], 1)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps([[trial.name, trial.overrides]])))
        assert main() == code
        assert ("error" in json.loads(capsys.readouterr().out)) == bool(code)
