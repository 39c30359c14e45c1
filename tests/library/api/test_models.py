"""Calls do what a stage does: adapters, held-out curves, a reward model, several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import posttrain
from posttrain.api.models import _critic
from posttrain.errors import DataError, ParamsError, TrainingError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rollout import Rollout
from tests.library.models.tiny import tiny_folder

PROMPTS = [f"{number}+1" for number in range(6)]
HELDOUT = [f"{number}+2" for number in range(4)]
ROWS = [{"prompt": f"{number}+1", "completion": str(number + 1)} for number in range(12)]
ROLLOUT = {"rounds": 2, "prompts": 3, "group_size": 4, "sampling": {"max_tokens": 8}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("loaded"))


def short(rollouts: Sequence[Rollout]) -> list[float]:
    return [-float(len(rollout.text)) for rollout in rollouts]


def grpo(**settings: Any) -> posttrain.OnlineConfig:
    return posttrain.OnlineConfig.preset("grpo", **{"reward": {"format": 1.0}, **settings})


def test_an_adapter_is_trained_and_saved(folder: Path, tmp_path: Path) -> None:
    config = posttrain.SftConfig(epochs=1, batch=4, adapter={"type": "lora", "rank": 4})  # type: ignore[arg-type]
    models = posttrain.load_models(folder, config)
    frozen = {name: part.clone() for name, part in models.policy.named_parameters() if not part.requires_grad}
    trained = posttrain.train_model(models, None, ROWS, config=config, output=tmp_path)
    assert trained.steps == 3 and trained[-1]["loss"] < trained[0]["loss"]
    after = dict(models.policy.named_parameters())
    assert frozen and all((after[name] == part).all() for name, part in frozen.items())
    assert (tmp_path / "model/adapter_config.json").is_file()


def test_a_model_of_the_callers_takes_no_setting_of_loading(folder: Path) -> None:
    config = posttrain.SftConfig(adapter="lora")  # type: ignore[arg-type]
    with pytest.raises(ParamsError, match=r"settings\.adapter.*posttrain\.load_models"):
        posttrain.train_model(*posttrain.load_model(folder), ROWS, config=config)


def test_heldout_prompts_are_watched(folder: Path) -> None:
    model, tokenizer = posttrain.load_model(folder)
    settings = {"rollout": {**ROLLOUT, "rounds": 3}, "canaries": 0}
    trained = posttrain.train_online(model, tokenizer, PROMPTS, short, settings=settings, heldout=HELDOUT)
    measured = [row["step"] for row in trained if "heldout_true" in row]
    assert measured[0] == 0 and measured[-1] == trained.steps == len(trained) - 1
    assert trained.kept["kept_step"] == trained.steps
    watch = {"every": 3, "reward": {"format": 1.0}}
    other = posttrain.train_online(
        model, tokenizer, PROMPTS, short, settings={**settings, "watch": watch}, heldout=HELDOUT
    )
    assert [row["step"] for row in other if "heldout_true" in row] == [0, 3, 6]


@pytest.mark.parametrize("given", [{"heldout": HELDOUT}, {"watch": True}])
def test_a_watch_needs_prompts_and_prompts_a_watch(folder: Path, given: dict[str, Any]) -> None:
    config = grpo(rollout=ROLLOUT, reward={"format": 1.0}, **({"watch": {}} if "watch" in given else {}))
    with pytest.raises(DataError, match="Give both `heldout` and the setting `watch`"):
        posttrain.train_online(*posttrain.load_model(folder), PROMPTS, config=config, heldout=given.get("heldout", ()))


def test_a_reward_model_scores_the_samples(folder: Path, tmp_path: Path) -> None:
    scorer = posttrain.reward_model(posttrain.load_model(folder)[0])
    tokenizer = posttrain.load_model(folder)[1]
    pairs = [{"prompt": f"{n}+1", "chosen": str(n), "rejected": "no"} for n in range(8)]
    posttrain.train_model(scorer, tokenizer, pairs, "reward", optimizer={"lr": 1e-3}, output=tmp_path)
    settings = {"rollout": ROLLOUT, "canaries": 0}
    given = {"reward": {"model": 1.0}, "reward_model": tmp_path / "model", "settings": settings}
    trained = posttrain.train_online(*posttrain.load_model(folder), PROMPTS, **given)
    assert len({row["reward_model"] for row in trained}) > 1
    with pytest.raises(ParamsError, match="needs a reward model"):
        posttrain.train_online(*posttrain.load_model(folder), PROMPTS, {"model": 1.0}, settings=settings)


def test_the_limit_of_memory_holds_in_a_call(folder: Path) -> None:
    settings = {"rollout": ROLLOUT, "limits": {"memory": 1e-9}}
    with pytest.raises(TrainingError, match="training needs at least"):
        posttrain.train_online(*posttrain.load_model(folder), PROMPTS, short, settings=settings)


def test_a_call_has_its_settings_once(folder: Path) -> None:
    with pytest.raises(ParamsError, match="config already contains all settings"):
        posttrain.train_online(*posttrain.load_model(folder), PROMPTS, short, config=grpo(reward={"format": 1.0}))
    with pytest.raises(ParamsError, match="config already contains all settings"):
        posttrain.train_model(*posttrain.load_model(folder), ROWS, config=posttrain.SftConfig(), optimizer={"lr": 1.0})


def test_processes_without_torchrun_are_an_error(folder: Path) -> None:
    with pytest.raises(ParamsError, match="torchrun --nproc-per-node 2"):
        posttrain.load_models(folder, posttrain.SftConfig(processes=2))


SHARED = """
import sys
import posttrain
posttrain.fix_numerics()
folder, output, processes = sys.argv[1:]
config = posttrain.SftConfig(epochs=2, batch=4, processes=int(processes), optimizer={"lr": 1e-3})
rows = [{"prompt": f"{number}+1", "completion": str(number + 1)} for number in range(12)]
posttrain.train_model(posttrain.load_models(folder, config), None, rows, config=config, output=output)
"""


def test_two_processes_share_a_call(folder: Path, tmp_path: Path) -> None:
    """Started by torchrun; their sums are added in another order, so the metrics differ by rounding alone."""
    script = tmp_path / "shared.py"
    script.write_text(SHARED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for start, processes in (([sys.executable], 1), (torchrun, 2)):
        command = [*start, str(script), str(folder), str(tmp_path / str(processes)), str(processes)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = (pl.read_csv(tmp_path / f"{processes}/metrics.csv") for processes in (1, 2))
    assert one.shape == two.shape and one["loss"].to_list() == pytest.approx(two["loss"].to_list(), rel=1e-4)
    assert (tmp_path / "2/model/model.safetensors").stat().st_size == (
        tmp_path / "1/model/model.safetensors"
    ).stat().st_size


def test_an_adapter_on_a_folder_without_a_manifest_is_saved_and_read(folder: Path, tmp_path: Path) -> None:
    """As transformers writes a folder."""
    model, tokenizer = posttrain.load_model(folder)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain/manifest.json").exists()
    config = posttrain.SftConfig(epochs=1, batch=4, adapter={"type": "lora", "rank": 4})  # type: ignore[arg-type]
    trained = posttrain.train_model(
        posttrain.load_models(tmp_path / "plain", config), None, ROWS, config=config, output=tmp_path / "out"
    )
    read, _ = posttrain.load_model(tmp_path / "out/model")
    ids = tokenizer("1+1", return_tensors="pt").input_ids
    ours = trained.models.policy
    ours.set_attn_implementation("eager")
    assert (read(ids).logits - ours(ids).logits).abs().max() < 1e-4
    weights = next((tmp_path / "plain").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(posttrain.PosttrainError, match="has changed since the adapter was trained"):
        posttrain.load_model(tmp_path / "out/model")


LORA: Any = {"type": "lora", "rank": 4}


@pytest.mark.parametrize(
    ("loaded", "trained", "because"),
    [
        (
            posttrain.SftConfig(),
            posttrain.SftConfig(adapter=LORA),
            "loaded with adapter none, but the settings have lora",
        ),
        (
            posttrain.SftConfig(adapter=LORA),
            posttrain.SftConfig(),
            "loaded with adapter lora, but the settings have none",
        ),
        (
            posttrain.SftConfig(),
            posttrain.PreferenceTraining.preset("dpo"),
            "the settings need models that are not loaded: a reference",
        ),
        (
            posttrain.SftConfig(),
            posttrain.RewardTraining(),
            "the settings need models that are not loaded: a head that scores",
        ),
        (posttrain.SftConfig(), grpo(), "it is a OnlinePolicyConfig, but train_model expects a SupervisedConfig"),
        (posttrain.SftConfig(), {"epochs": 1}, "it is a dict, but train_model expects"),
    ],
)
def test_models_and_settings_must_fit(folder: Path, loaded: Any, trained: Any, because: str) -> None:
    models = posttrain.load_models(folder, loaded)
    with pytest.raises(ParamsError, match=because):
        posttrain.train_model(models, None, ROWS, config=trained)


@pytest.mark.parametrize(
    "over", [{"epochs": 7}, {"batch_size": 4}, {"seed": 5}, {"evaluate_every": 2}, {"micro_tokens": 128}]
)
def test_a_number_next_to_a_config_is_an_error(folder: Path, over: dict[str, Any]) -> None:
    with pytest.raises(ParamsError, match=f"{next(iter(over))} would be ignored"):
        posttrain.train_model(*posttrain.load_model(folder), ROWS, config=posttrain.SftConfig(), **over)


def test_beginners_mistakes_are_named(folder: Path) -> None:
    model, tokenizer = posttrain.load_model(folder)
    config = posttrain.SftConfig()
    with pytest.raises(ParamsError, match="model: it is a str"):
        posttrain.train_model(str(folder), tokenizer, ROWS)
    with pytest.raises(ParamsError, match="needs its tokenizer"):
        posttrain.train_model(model, None, ROWS)
    with pytest.raises(ParamsError, match="already have a tokenizer"):
        posttrain.train_model(posttrain.load_models(folder, config), tokenizer, ROWS, config=config)
    with pytest.raises(DataError, match="this is one string, not rows"):
        posttrain.train_model(model, tokenizer, "rows.jsonl")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="an interval needs at least 2 rows"):
        posttrain.train_model(model, tokenizer, ROWS, heldout=ROWS[:1])
    with pytest.raises(DataError, match="they are only used with the setting `watch"):
        posttrain.train_model(model, tokenizer, ROWS, config=config, heldout=ROWS[:2])
    watched = posttrain.SftConfig(watch={"reward": {"format": 1.0}})  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"heldout_table: watch\.reward samples"):
        posttrain.train_model(model, tokenizer, ROWS, config=watched, heldout=ROWS[:2])
    with pytest.raises(ParamsError, match="It is an algorithm of train_model"):
        posttrain.train_online(model, tokenizer, PROMPTS, short, "dpo")
    with pytest.raises(ParamsError, match="It is an algorithm of train_online"):
        posttrain.PreferenceTraining.preset("grpo")
    trained = posttrain.train_model(model, tokenizer, ROWS)
    with pytest.raises(ParamsError, match="Give the call an `output`"):
        trained.save(folder / "saved")


def test_a_config_takes_functions_as_rewards(folder: Path) -> None:
    config = grpo(reward={"short": short}, rollout=ROLLOUT, watch={"every": 2, "reward": {"brief": short}})
    models = posttrain.load_models(folder, config)
    trained = posttrain.train_online(models, None, PROMPTS, config=config, heldout=HELDOUT)
    assert "reward_short" in trained[0] and "heldout_true" in trained[-1]


def test_an_output_of_another_call_is_replaced_with_a_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rate in (1e-4, 1e-4, 1e-3):
        posttrain.train_model(*posttrain.load_model(folder), ROWS, optimizer={"lr": rate}, output=tmp_path)
    assert capsys.readouterr().err.count("contains the model of another call, which this call replaces") == 1


def test_models_that_were_trained_before_resume_no_checkpoint_of_others(folder: Path, tmp_path: Path) -> None:
    config = posttrain.SftConfig(epochs=1, batch=4)
    steps: list[list[int]] = []
    for epochs in (1, 2):
        first = posttrain.SftConfig(epochs=epochs, batch=4)
        models = posttrain.load_models(folder, first)
        posttrain.train_model(models, None, ROWS, config=first)
        steps.append([])
        posttrain.train_model(
            models, None, ROWS, config=config, output=tmp_path, on_step=lambda step, _: steps[-1].append(step)
        )
    assert steps == [[0, 1, 2], [0, 1, 2]]


def _wrapped(model: Any, how: str) -> Any:
    """Return a model with an adapter, as a user of peft or transformers adds it."""
    from peft import LoraConfig, get_peft_model, inject_adapter_in_model

    targets = ["q_proj", "embed_tokens"] if how == "tied" else ["q_proj", "up_proj"]
    options = LoraConfig(r=4, target_modules=targets, use_dora=how == "dora")
    if how == "add_adapter":
        model.add_adapter(options)
        return model
    if how == "inject":
        return inject_adapter_in_model(options, model)
    return get_peft_model(model, options, adapter_name="mine" if how == "named" else "default")


@pytest.mark.parametrize("how", ["peft", "named", "dora", "tied", "add_adapter", "inject"])
def test_the_output_of_a_model_in_peft_s_wrapper_is_read(folder: Path, tmp_path: Path, how: str) -> None:
    model, tokenizer = posttrain.load_model(folder)
    start = {name: part.clone() for name, part in model.named_parameters()}
    model = _wrapped(model, how)
    for name, part in model.named_parameters():
        if name.endswith("layers.0.input_layernorm.weight"):  # a weight of the model's own that is trained too
            part.requires_grad_(requires_grad=True)
    trained = {name for name, part in model.named_parameters() if part.requires_grad}
    (tmp_path / "model").mkdir()
    (tmp_path / "model/adapter_config.json").write_text("{}")  # of an earlier output
    posttrain.train_model(model, tokenizer, ROWS, epochs=3, optimizer={"lr": 3e-2}, output=tmp_path)
    read, _ = posttrain.load_model(tmp_path / "model")
    ids = tokenizer("1+1", return_tensors="pt").input_ids
    assert (read(ids).logits - model(ids).logits).abs().max() < 1e-4
    assert (read(ids).logits - posttrain.load_model(folder)[0](ids).logits).abs().max() > 1e-2
    kept = {name.replace(".base_layer", "").removeprefix("base_model.model."): part for name, part in
            model.named_parameters()}  # fmt: skip
    moved = {name for name, part in start.items() if name in kept and not torch.equal(kept[name], part)}
    assert moved == {"model.layers.0.input_layernorm.weight"}, "the rest of the base stays as it is"
    assert trained == {name for name, part in model.named_parameters() if part.requires_grad}
    assert bool([*tmp_path.glob("adapter/**/adapter_config.json")]) == (how != "inject")


def test_the_output_of_train_online_with_peft_is_read(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = posttrain.load_model(folder)
    model = _wrapped(model, "peft")
    settings = {"rollout": ROLLOUT, "canaries": 0, "optimizer": {"lr": 1e-2}}
    posttrain.train_online(model, tokenizer, PROMPTS, short, settings=settings, output=tmp_path)
    ids = tokenizer("1+1", return_tensors="pt").input_ids
    assert (posttrain.load_model(tmp_path / "model")[0](ids).logits - model(ids).logits).abs().max() < 1e-4


def test_a_reward_model_in_peft_s_wrapper_is_read(folder: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model, tokenizer = posttrain.load_model(folder)
    wanted = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["score"])
    scorer = get_peft_model(posttrain.reward_model(model), wanted)
    pairs = [{"prompt": f"{n}+1", "chosen": str(n), "rejected": "no"} for n in range(8)]
    posttrain.train_model(scorer, tokenizer, pairs, "reward", optimizer={"lr": 1e-2}, output=tmp_path)
    row = [{"prompt": "1+1", "completion": "2"}]
    read, _ = posttrain.load_reward_model(tmp_path / "model")
    scores = [posttrain.score(one, tokenizer, row)[0] for one in (read, scorer)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5) and scores[0] != 0


def test_an_adapter_that_cannot_be_merged_fails_before_the_training(folder: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, PromptTuningConfig, get_peft_model

    model, tokenizer = posttrain.load_model(folder)
    options = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", alora_invocation_tokens=[1, 2])
    wrapped = get_peft_model(model, options)
    steps = list[int]()
    with pytest.raises(posttrain.PosttrainError, match="peft cannot merge its adapter into it"):
        posttrain.train_model(wrapped, tokenizer, ROWS, output=tmp_path, on_step=lambda step, _: steps.append(step))
    assert not steps
    model = posttrain.load_model(folder)[0]
    prompted = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(posttrain.PosttrainError, match="PROMPT_TUNING adds virtual tokens"):
        posttrain.train_model(prompted, tokenizer, ROWS)


def test_a_critic_is_a_copy_with_a_scalar_head(folder: Path) -> None:
    model = posttrain.load_model(folder)[0]
    critic = _critic(model, Runtime(DeviceParams(device="cpu")))
    assert critic.score.out_features == 1 and critic.model is not model.model
    assert torch.equal(critic.model.norm.weight, model.model.norm.weight)
