"""`plan`: what stages take, known before any model exists, and the same as what the stages themselves find."""

from __future__ import annotations

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.errors import ModelError, ParamsError
from posttrain.files import format_size, write_json
from posttrain.measure.phases import NAMES, OTHER
from posttrain.measure.timings import timings_path
from posttrain.models.device import Runtime
from posttrain.models.files.store import load_policy
from posttrain.models.memory import byte_count, decoding_bytes
from posttrain.pipeline.checks.meta_models import config_source
from posttrain.pipeline.commands import line
from posttrain.pipeline.commands.plan.memory_estimate import demand_of
from posttrain.pipeline.commands.plan.table import plan
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.runs.typed import load_settings
from posttrain.sampling.vllm.engine import OWN_BYTES
from posttrain.train.estimate import training_parts
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import tiny_folder

GRPO = {
    "algorithm": "grpo", "start": "sft/main", "data": "d/prompts", "corpus": "none", "reward_model": "none",
    "kl": {"beta": 0.1}, "rollout": {"prompts": 4, "group_size": 3, "sampling": {"max_tokens": 20}},
}  # fmt: skip


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose models do not exist yet: one of a folder, one from scratch, one of the Hub."""
    monkeypatch.chdir(tmp_path)
    tiny_folder(tmp_path / "my")
    dpo = {"algorithm": "dpo", "start": "sft/main", "data": "d/pairs", "batch": 4, "max_tokens": 64}
    settings: dict[str, Any] = {
        "base": {
            "folders": {"own": {"path": "my/model"}},
            "scratch": {"new": {"data": "d/corpus", "shape": {"layers": 2}}},
            "hub": {"far": {"name": "Qwen/Qwen3-0.6B", "revision": "0" * 40}},
        },
        "sft": {"runs": {
            "main": {"start": "base/own", "data": "d/chat"},
            "scratch": {"start": "base/new", "data": "d/chat"},
            "hub": {"start": "base/far", "data": "d/chat"},
        }},
        "preference": {"runs": {"dpo": dpo}},
        "online": {"runs": {"grpo": GRPO, "ppo": {**GRPO, "algorithm": "ppo", "activations": "recompute"}}},
    }  # fmt: skip
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"format": 2, **settings}), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_it_is_the_estimate_of_the_stage(params: Path) -> None:
    """A run two stages from a model on disk, against the models that its stage would load."""
    dpo = load_settings("preference.runs", "dpo")
    models = ModelSet.load(Runtime(dpo.device), params / "my/model", PreferenceObjective(dpo).needs, dpo)
    expected = training_parts(models, 4 * 2 * 64, "keep")
    found = demand_of("preference.runs", "dpo", read(), 512, None)
    assert found.states | found.training == expected
    assert found.total == sum(expected.values()) and found.states["weights"] == 2 * byte_count(
        models.policy.parameters()
    )


def test_a_model_of_earlier_settings_is_not_what_is_planned(params: Path) -> None:
    """Enlarge base.scratch after it ran: the new shape counts, for the runs that start from it too."""
    file, runs = params / "params.yaml", {"base_scratch@new": "base/new", "sft@scratch": "sft/scratch"}
    for model in (*runs.values(), "base/far"):
        shutil.copytree(params / "my/model", params / "models" / model)

    def record() -> None:
        """Write dvc.lock as of the present settings."""
        settings = read()
        sections = {
            "base_scratch@new": "base.scratch.new",
            "sft@scratch": "sft.runs.scratch",
            "base_hub@far": "base.hub.far",
        }
        made = {name: {"params": {"params.yaml": {key: at(settings, key)}}} for name, key in sections.items()}
        (params / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": made}))

    def sources() -> list[Any]:
        return [config_source(model, read()) for model in runs.values()]

    assert all(not isinstance(source, Path) for source in sources()), "what has made them is not known"
    record()
    assert sources() == [Path("models", model) for model in runs.values()]
    before = demand_of("sft.runs", "scratch", read(), 512, None).total
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("layers: 2", "layers: 3\n        width: 512"), encoding="utf-8")
    assert [source.shape.width for source in sources()] == [512, 512]
    assert demand_of("sft.runs", "scratch", read(), 512, None).total > 2 * before
    file.write_text(text.replace("'0000", "'1111"), encoding="utf-8")
    with pytest.raises(
        ModelError, match=r"models/base/far: its config.json is of other settings. Run `dvc repro base_hub@far`"
    ):
        demand_of("sft.runs", "hub", read(), 512, None)


def test_a_pass_over_held_out_rows_may_take_the_most(params: Path) -> None:
    """A step of few tokens ends with moments there, and passes of `micro_tokens` over what is held out."""
    change = {"batch": 1, "max_tokens": 64}
    found = [
        demand_of("sft.runs", "main", read(), 512, None, {**change, "heldout_rows": rows}) for rows in (1, 16, 64, 1000)
    ]
    assert found[0].total < found[1].total < found[2].total < found[3].total
    assert found[3].total == sum(found[3].states.values()) + found[3].heldout
    assert demand_of("online.runs", "grpo", read(), 512, None).heldout == 0.0


def test_more_pretraining_is_planned_by_its_windows(params: Path) -> None:
    """`window` decides, and `max_tokens`, which does not count for a corpus, changes nothing."""
    sft = {"data": "d/corpus", "batch": 4, "window": 64}
    found = [
        sum(demand_of("sft.runs", "main", read(), 512, None, {**sft, **change}).training.values())
        for change in ({}, {"max_tokens": 128}, {"window": 128})
    ]
    assert found[0] == found[1] < found[2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "dora", "qlora"])
def test_a_run_with_an_adapter_is_planned_as_it_is_loaded(params: Path, kind: str) -> None:
    """Frozen weights once, also with a reference and a critic; no gradients and moments of them."""
    file = params / "params.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    for group, name in (("preference", "dpo"), ("online", "ppo")):
        settings[group]["runs"][name]["adapter"] = {"type": kind, "rank": 4}
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    dpo, ppo = load_settings("preference.runs", "dpo"), load_settings("online.runs", "ppo")
    needs = {"dpo": PreferenceObjective(dpo).needs, "ppo": ppo.objective().needs}
    for group, run in (("preference.runs", dpo), ("online.runs", ppo)):
        name = group.partition(".")[0].replace("preference", "dpo").replace("online", "ppo")
        models = ModelSet.load(Runtime(run.device), params / "my/model", needs[name], run)
        found = demand_of(group, name, read(), 30, None)
        trained = byte_count(models.trained_parameters().values())
        every = [one for one in (models.policy, models.reference, models.critic) if one is not None]
        assert found.states["weights"] == byte_count(part for one in every for part in one.parameters())
        assert found.states["moments"] == 2 * trained < found.states["weights"]


@pytest.mark.slow
def test_a_run_that_samples_needs_its_keys_and_values_as_well(params: Path) -> None:
    grpo, ppo = (demand_of("online.runs", name, read(), 30, None) for name in ("grpo", "ppo"))
    expected = decoding_bytes(load_policy(params / "my/model"), 12, 4, 30, 20, bf16=False)
    assert (grpo.sampling["keys and values"], grpo.sampling["decoding"]) == expected
    assert ppo.states["moments"] > 1.5 * grpo.states["moments"], "the critic is trained too"
    assert ppo.training["activations"] < grpo.training["activations"], "layers are computed again"
    assert grpo.rollouts > 0 and grpo.checkpoints > 3 * grpo.states["moments"]


def teach(params: Path, sets: dict[str, Any], **runs: dict[str, Any]) -> None:
    """Add sets of models, and runs that learn from them."""
    file = params / "params.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    shared = {
        "algorithm": "gkd", "start": "sft/main", "data": "d/prompts", "reward_model": "none",
        "demonstrations": "d/chat", "rollout": GRPO["rollout"],
    }  # fmt: skip
    settings["reward"] = {"sets": sets}
    settings["distill"] = {"runs": {name: {**shared, **run} for name, run in runs.items()}}
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")


@pytest.mark.slow
def test_every_teacher_of_a_set_has_its_weights(params: Path) -> None:
    endpoint = {"url": "http://127.0.0.1:1/v1", "model": "m"}
    sets = {
        "two": {"first": "preference/dpo", "second": "base/own"},
        "three": {"first": "reward/two", "second": "online/grpo"},
    }
    runs: dict[str, dict[str, Any]] = {
        "one": {"teacher": "base/own"},
        "two": {"teacher": "reward/two"},
        "three": {"teacher": "reward/three", "served": {"far": endpoint, "near": endpoint}},
        "none": {"teacher": "none", "served": endpoint},
    }
    teach(params, sets, **runs)
    found = {name: demand_of("distill.runs", name, read(), 30, None) for name in runs}
    model = byte_count(load_policy(params / "my/model").parameters())
    weights = {name: demand.states["weights"] - found["none"].states["weights"] for name, demand in found.items()}
    assert weights == {"none": 0, "one": model, "two": 2 * model, "three": 3 * model}
    assert all(demand.training["head"] > 0 for demand in found.values())
    assert found["three"].total > found["two"].total > found["one"].total > found["none"].total
    assert all(f"distill@{name} " in plan(["distill"], None, 30) for name in runs)


@pytest.mark.slow
@pytest.mark.parametrize("second", ["reward/itself", "reward/other"])
def test_a_set_that_holds_itself_has_no_models_to_plan(params: Path, second: str) -> None:
    """`check` refuses it; a plan ends, too."""
    sets = {
        "itself": {"first": "base/own", "second": second},
        "other": {"first": "base/own", "second": "reward/itself"},
    }
    teach(params, sets, taught={"teacher": "reward/itself"})
    assert "distill@taught: " in plan(["distill"], None, 30)
    with pytest.raises(ModelError, match=r"it has no config.json yet"):
        demand_of("distill.runs", "taught", read(), 30, None)


@pytest.mark.slow
def test_the_table_has_every_stage_and_says_what_is_not_known_yet(params: Path) -> None:
    write_json(timings_path("sft@main"), {
        "stage": "sft@main", "seconds": dict.fromkeys((*NAMES, OTHER), 1.0),
        "total": 1234.0, "peak_mb": 1.0,
    })  # fmt: skip
    lines = plan([], None, 512).splitlines()
    shown = {line.split()[0]: line for line in lines if "@" in line.split(" ")[0]}
    assert {"base_scratch@new", "sft@main", "sft@scratch", "preference@dpo", "online@grpo"} <= shown.keys()
    assert "1,234 s" in shown["sft@main"] and "unknown" in shown["preference@dpo"]
    assert "dvc repro base_hub@far" in shown["sft@hub:"]


@pytest.mark.slow
def test_another_model_can_be_planned_with(params: Path) -> None:
    table = plan(["sft@hub", "online"], "my/model", 512)
    assert "sft@hub " in table and "online@ppo" in table and "sft@main" not in table


@pytest.mark.slow
def test_processes_on_a_cpu_share_the_free_memory(params: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says of what a row is; with memory for two of the processes only, four do not fit."""
    file = params / "params.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    settings["sft"]["runs"]["main"] |= {"processes": 4, "device": {"device": "cpu"}}
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    found = demand_of("sft.runs", "main", read(), 512, None)
    assert (found.processes, found.in_one_memory) == (4, 4)
    for free, mark in ((4.1 * found.total, False), (2 * found.total, True)):
        monkeypatch.setattr("posttrain.pipeline.commands.plan.memory_estimate.free_bytes", lambda _, free=free: free)
        table = plan(["sft@main"], None, 512)
        assert f"each of 4 processes{' (!)' if mark else '  '}" in table and "of N processes: " in table
    assert "processes" not in plan(["preference@dpo"], None, 512)


@pytest.mark.slow
def test_the_settings_that_lower_a_total_are_named_with_what_is_left(
    params: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is the plan of the run with that setting; those that gain nothing on a CPU are not named."""
    file = params / "params.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))

    def named(stage: str, **run: Any) -> dict[str, str]:
        group, _, name = stage.partition("@")
        changed = copy.deepcopy(settings)
        changed[group]["runs"][name] |= {"heldout_rows": 1, **run}
        file.write_text(yaml.safe_dump(changed), encoding="utf-8")
        last = plan([stage], None, 512).splitlines()[1].split("  ")[-1]
        return dict(re.findall(r"([\w.]+: [\w.]+) \(([^)]+)\)", last))

    settings["sft"]["runs"]["main"]["heldout_rows"] = 1  # else the pass over these takes the most
    whole = named("sft@main")
    assert whole.keys() == {"micro_tokens: 1024", "activations: recompute", "device.precision: bf16"}
    for change, left in whole.items():
        key, value = change.split(": ")
        nested = {"device": {"precision": value}} if key == "device.precision" else {key: yaml.safe_load(value)}
        settings["sft"]["runs"]["main"] |= nested
        assert format_size(demand_of("sft.runs", "main", settings, 512, None).total) == left
        assert change not in named("sft@main")
        for one in nested:
            del settings["sft"]["runs"]["main"][one]
    assert not any(one.startswith("activations") for one in named("sft@main", activations="recompute"))
    monkeypatch.setattr("posttrain.pipeline.commands.plan.memory_estimate.free_bytes", lambda _: 1.0)
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert "adapter: lora + activations: recompute + device.precision: bf16 (" in plan(["sft@main"], None, 512)


@pytest.mark.slow
def test_a_run_with_an_engine_names_what_lowers_it(params: Path) -> None:
    file = params / "params.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    rollout = {**GRPO["rollout"], "engine": "vllm"}  # type: ignore[dict-item]
    settings["online"]["runs"]["grpo"] |= {
        "rollout": rollout, "correction": "truncate", "processes": 2, "device": {"device": "cpu"},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    found = demand_of("online.runs", "grpo", read(), 512, None)
    assert found.once == found.states["engine"], "the first process alone has a server"
    (row,) = [line for line in plan(["online@grpo"], None, 512).splitlines() if line.startswith("online@grpo")]
    assert "the first of 2 processes" in row and row.endswith("  -"), "the server's own memory is most"

    def taken(servers: Any) -> float:
        change = {"rollout": {"engine_servers": servers}}
        return demand_of("online.runs", "grpo", read(), 512, None, change).states.get("engine", 0.0)

    weights = taken(2) - taken(1) - OWN_BYTES
    assert weights > 0 and taken(3) - taken(2) == pytest.approx(weights + OWN_BYTES)
    assert taken([[0], [1]]) == 0, "GPUs are not the memory of this machine, which trains on its CPUs"
    evaluated = {"settings": {"data": "d/prompts", "reference": "none", "reward_model": "none"}}
    evaluated["policies"] = {"sft": "sft/main"}
    for engine in ("builtin", "vllm"):
        found = demand_of("evaluate.policies", "sft", {**read(), "evaluate": evaluated}, 512, None, {"engine": engine})
        assert ("engine" in found.states, "decoding" in found.sampling) == (engine == "vllm", engine == "builtin")


@pytest.mark.usefixtures("params")
def test_a_stage_that_is_not_there_is_named() -> None:
    with pytest.raises(ParamsError, match="Did you mean 'sft@main'"):
        plan(["sft@mian"], None, 512)


@pytest.mark.usefixtures("params")
def test_the_command_gives_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.pipeline.commands.plan.memory_estimate.free_bytes", lambda _: 16e9)
    words = ["plan", "base_scratch@new", "--prompt", "64"]
    assert line.run(line.parse(words)) == plan(["base_scratch@new"], None, 64)
