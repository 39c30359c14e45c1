"""Adapters: only they are trained and saved, the frozen model keeps its bits, and the wrong one is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import posttrain
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import ModelError, ParamsError
from posttrain.models.adapters import ADAPTER, adapted_layers, merged_weight, share_tensors
from posttrain.models.decoder.step import backend_of, supports_decoder_step
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_model, load_policy, load_scorer, load_tokenizer, save_model
from posttrain.models.forward.activations import Activations, set_activations
from posttrain.models.forward.forward import packed_states, score_tokens
from posttrain.models.master_weights import frozen_on, master_of, round_masters
from posttrain.models.nf4 import Nf4Linear, dequantise, quantise, round_model
from posttrain.pipeline.outside.evaluators import whole
from posttrain.rollout import token_rows
from posttrain.settings.params import check
from posttrain.text.packing import pack
from posttrain.train.loop import TrainingParams, adamw
from posttrain.train.model_set import ModelSet
from posttrain.train.routing import RouterParams, routers_of
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.families import FAMILIES, hub_folder
from tests.library.models.tiny import random_rows, tiny_folder

CPU = Runtime(DeviceParams(threads=1))
ROWS = token_rows(*random_rows(6))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_folder(tmp_path)


def settings(kind: str = "lora", **options: Any) -> TrainingParams:
    return check(TrainingParams, {"adapter": {"type": kind, "rank": 4, "alpha": 8, **options}}, where="test")


def adapted(folder: Path, needs: frozenset[str] = frozenset(), runtime: Runtime = CPU, **options: Any) -> ModelSet:
    """The models of a run whose adapter is no longer zero."""
    models = ModelSet.load(runtime, folder, needs, settings(**options))
    with torch.no_grad():
        for name, parameter in models.trained_parameters().items():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
            elif "magnitude" in name:
                parameter.mul_(1.1)
    round_masters(models.policy.parameters())
    return models


def logps(model: Any) -> Tensor:
    with torch.no_grad():
        return score_tokens(model, pack(ROWS))[0]


def dense(linear: Any) -> Tensor:
    return linear.dense_weight() if isinstance(linear, Nf4Linear) else linear.weight


def merged_twin(model: Any) -> Any:
    """The model with its adapters merged into matrices of its own."""
    whole = share_tensors(model)
    for name, layer in list(adapted_layers(whole)):
        linear = nn.Linear(layer.in_features, layer.out_features, bias=False)
        linear.weight = nn.Parameter(merged_weight(layer))
        whole.set_submodule(name, linear)
    return whole


KINDS = pytest.mark.parametrize("kind", ["lora", "dora", "qlora"])


def frozen(folder: Path, kind: str) -> Any:
    """The model of a folder as it is under the adapter."""
    model = load_model(folder)
    if kind == "qlora":
        round_model(model)
    return model


@pytest.mark.slow
@KINDS
def test_the_reference_is_the_start_model_bit_for_bit(folder: Path, kind: str) -> None:
    models = adapted(folder, frozenset({"ref_logp"}), kind=kind)
    assert torch.equal(logps(models.reference), logps(frozen(folder, kind)))
    assert not torch.allclose(logps(models.policy), logps(models.reference)), "the adapter changes nothing"


@KINDS
def test_training_starts_from_the_start_model(folder: Path, kind: str) -> None:
    models = ModelSet.load(CPU, folder, frozenset(), settings(kind))
    torch.testing.assert_close(
        logps(models.policy), logps(frozen(folder, kind)), rtol=0, atol=1e-5 if kind == "dora" else 0
    )


def test_all_models_of_a_run_share_the_frozen_weights(folder: Path) -> None:
    needs = frozenset({"ref_logp", "value", "kl_old"})
    models = adapted(folder, needs)
    whole = sum(part.numel() for part in load_model(folder).parameters())
    storages = {
        part.untyped_storage().data_ptr(): part.numel()
        for model in (models.policy, models.reference, models.critic, models.old)
        for part in (model.parameters() if model is not None else ())
    }
    trained = sum(part.numel() for part in models.trained_parameters().values())
    copied = sum(part.numel() for part in models.own_parameters(models.old).values())
    assert sum(storages.values()) == whole + trained + copied


@pytest.mark.slow
@KINDS
def test_in_bf16_the_frozen_model_is_bf16_alone_and_the_adapter_has_masters(folder: Path, kind: str) -> None:
    """The reference is then still the start model as it computes in bf16, bit for bit."""
    runtime = Runtime(DeviceParams(device="cpu", precision="bf16", threads=1))
    models = adapted(folder, frozenset({"ref_logp"}), runtime, kind=kind)
    scales = {layer.scales for layer in models.policy.modules() if isinstance(layer, Nf4Linear)}
    assert len(scales) == (14 if kind == "qlora" else 0)
    for part in (*models.policy.parameters(), *models.reference.parameters()):
        assert part.dtype in (torch.bfloat16, torch.uint8) or part in scales
        assert (master_of(part) is not part) == part.requires_grad
    assert all(part.dtype == torch.float32 for part in models.trained_parameters().values())
    alone = frozen_on(frozen(folder, kind), runtime)
    assert torch.equal(logps(models.reference), logps(alone))


def test_a_step_trains_the_adapter_alone(folder: Path) -> None:
    models = adapted(folder, frozenset({"value"}))
    names = set(models.trained_parameters())
    assert names and all("lora_" in name for name in names - {"critic.score.weight"})
    objective = LikelihoodObjective(LikelihoodConfig())
    batch = make_batch(ROWS)
    step = batch.with_prepared(objective.prepare(batch.columns, {}).step)
    StepClosure(objective, models, step)()
    got = {name for name, part in models.policy.named_parameters() if part.grad is not None}
    assert {f"policy.{name}" for name in got} == {name for name in names if name.startswith("policy.")}


@KINDS
@pytest.mark.parametrize("objective", ["tokens", "pairs"])
def test_gradients_are_those_of_the_merged_weight(folder: Path, kind: str, objective: str) -> None:
    """On both paths of the loss: dB = s dW A^T for LoRA, by autograd through the merged weight for DoRA."""
    models = adapted(folder, frozenset({"ref_logp"}), kind=kind, targets=["down_proj"])
    one: Any = LikelihoodObjective(LikelihoodConfig())
    batch = make_batch(ROWS)
    if objective == "pairs":
        one = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings())
        batch = make_batch(ROWS, {"side": torch.tensor([1.0, -1.0] * 3)}, items=torch.arange(3).repeat_interleave(2))
    batch = models.add_scored_columns(batch, one.needs)
    step = batch.with_prepared(one.prepare(batch.columns, one.initial_state()).step)
    StepClosure(one, models, step)()

    whole = merged_twin(models.policy)
    layers = dict(adapted_layers(models.policy))
    StepClosure(one, replace(models, policy=whole), step)()
    for name, layer in layers.items():
        a, b = (part[ADAPTER].weight.detach().requires_grad_() for part in (layer.lora_A, layer.lora_B))
        weight = dense(layer.base_layer) + 2.0 * b @ a
        if kind == "dora":
            magnitude = layer.lora_magnitude_vector[ADAPTER].weight.detach()
            weight = weight * (magnitude / weight.norm(dim=1).detach())[:, None]  # DoRA: no gradient through the norm
        wanted = torch.autograd.grad(weight, (a, b), whole.get_submodule(name).weight.grad)
        found = (layer.lora_A[ADAPTER].weight.grad, layer.lora_B[ADAPTER].weight.grad)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@KINDS
def test_decoding_uses_the_adapter_and_leaves_the_frozen_weights(folder: Path, kind: str) -> None:
    models = adapted(folder, kind=kind)
    before = {name: part.clone() for name, part in models.policy.named_parameters()}
    assert supports_decoder_step(models.policy), "the slow path would decode"
    prompt, token = [5, 6, 7], torch.tensor([9])
    with torch.inference_mode():
        decoder = backend_of(models.policy, 3, 2)
        decoder.admit([], [prompt], [0])
        decoder.append_tokens(token, torch.tensor([3]))
        packed = pack(token_rows([[*prompt, 9]], [[]]))
        wanted = packed_states(models.policy, packed)[-1:] @ models.policy.get_output_embeddings().weight.T
        torch.testing.assert_close(decoder.next_logits(), wanted, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(part, before[name]) for name, part in models.policy.named_parameters())


@KINDS
def test_a_saved_adapter_is_merged_when_it_is_loaded(folder: Path, tmp_path: Path, kind: str) -> None:
    models = adapted(folder, kind=kind)
    save_model(models.policy, tmp_path / "adapter", folder)
    assert sorted(load_file(tmp_path / "adapter" / "adapter_model.safetensors"))[0].startswith(
        "base_model.model.model."
    )
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    again = load_policy(tmp_path / "adapter")
    torch.testing.assert_close(logps(again), logps(models.policy), rtol=1e-5, atol=1e-5)
    assert torch.equal(logps(again), logps(merged_twin(models.policy)))


@KINDS
def test_peft_reads_a_saved_adapter(folder: Path, tmp_path: Path, kind: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    models = adapted(folder, kind=kind)
    save_model(models.policy, tmp_path / "adapter", folder)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if kind == "qlora":
        round_model(whole)
    theirs = PeftModel.from_pretrained(whole, tmp_path / "adapter")
    ids = torch.tensor([[5, 6, 7, 9]])
    mine = models.policy
    mine.set_attn_implementation("eager")
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, mine(ids).logits, rtol=1e-5, atol=1e-5)


def test_rslora_divides_by_the_root_of_the_rank(folder: Path, tmp_path: Path) -> None:
    """With alpha / rank the update of rank 16 is a quarter of that with alpha / sqrt(rank)."""
    moved = []
    for rslora in (False, True):
        options = {"type": "lora", "rank": 16, "alpha": 16, "rslora": rslora}
        models = ModelSet.load(CPU, folder, frozenset(), check(TrainingParams, {"adapter": options}, where="test"))
        with torch.no_grad():
            for name, part in models.policy.named_parameters():
                if "lora_B" in name:
                    part.fill_(0.01)
        save_model(models.policy, tmp_path / str(rslora), folder)
        start, again = load_model(folder).state_dict(), load_policy(tmp_path / str(rslora)).state_dict()
        moved.append({name: again[name] - start[name] for name in start if not torch.equal(again[name], start[name])})
    assert moved[0].keys() == moved[1].keys() and moved[0]
    for name, part in moved[0].items():
        torch.testing.assert_close(4 * part, moved[1][name], rtol=1e-4, atol=1e-6, msg=name)


def test_merge_saves_a_whole_model(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    models = adapted(folder, merge=True)
    save_model(models.policy, tmp_path / "whole", folder)
    assert not (tmp_path / "whole" / "adapter_config.json").exists()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32)
    mine = load_policy(tmp_path / "whole")
    torch.testing.assert_close(logps(mine), logps(models.policy), rtol=1e-5, atol=1e-5)
    assert {name for name, _ in theirs.named_parameters()} == {
        name for name, _ in load_model(folder).named_parameters()
    }


@pytest.mark.slow
def test_a_new_adapter_on_a_trained_one_starts_from_its_policy(folder: Path, tmp_path: Path) -> None:
    first = adapted(folder)
    save_model(first.policy, tmp_path / "first", folder)
    second = adapted(tmp_path / "first", frozenset({"ref_logp"}), targets=["q_proj"])
    assert torch.equal(logps(second.reference), logps(load_policy(tmp_path / "first")))
    save_model(second.policy, tmp_path / "second", tmp_path / "first")
    torch.testing.assert_close(logps(load_policy(tmp_path / "second")), logps(second.policy), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_reward_model_keeps_its_head(folder: Path, tmp_path: Path) -> None:
    models = adapted(folder, frozenset({"score"}))
    with torch.no_grad():
        models.policy.score.weight.normal_()
    models.policy.config.reward_shift = 0.5
    save_model(models.policy, tmp_path / "reward", folder)
    again = load_scorer(tmp_path / "reward")
    packed = pack(ROWS)
    with torch.no_grad():
        scores = [one.score(packed_states(one, packed)) for one in (again, models.policy)]
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-5)
    assert again.config.reward_shift == 0.5
    with pytest.raises(ModelError, match="scores text"):
        load_policy(tmp_path / "reward")


def test_an_adapter_for_a_tool_of_others_is_a_whole_model(folder: Path, tmp_path: Path) -> None:
    """Tools without peft read no adapter."""
    from transformers import AutoModelForCausalLM

    save_model(adapted(folder).policy, tmp_path / "adapter", folder)
    expected = load_model(tmp_path / "adapter").state_dict()
    with whole(tmp_path / "adapter") as place:
        found = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).state_dict()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    assert not place.exists()
    with whole(folder) as place:
        assert place == folder


def test_transformers_loads_the_folder_of_an_adapter(folder: Path, tmp_path: Path) -> None:
    """A config.json there would make it look for a whole model; earlier folders have one, and stay readable."""
    from transformers import AutoModelForCausalLM

    place, models = tmp_path / "adapter", adapted(folder)
    save_model(models.policy, place, folder)
    theirs: Any = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    theirs.eval().set_attn_implementation("posttrain")
    torch.testing.assert_close(logps(theirs), logps(models.policy), rtol=1e-5, atol=1e-5)
    mine = logps(load_policy(place))
    (place / "adapted_config.json").rename(place / "config.json")
    manifest = place / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"adapted_config.json"', '"config.json"'))
    assert torch.equal(logps(load_policy(place)), mine)


def test_another_or_a_missing_base_is_refused(folder: Path, tmp_path: Path) -> None:
    save_model(adapted(folder).policy, tmp_path / "adapter", folder)
    manifest = folder / "manifest.json"
    was = manifest.read_text()
    model = load_model(folder)
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    shutil.move(folder, tmp_path / "kept")
    with pytest.raises(ModelError, match="is missing"):
        load_model(tmp_path / "adapter")
    save_model(model, folder, tmp_path / "kept")
    assert manifest.read_text() != was
    with pytest.raises(ModelError, match="another"):
        load_model(tmp_path / "adapter")


@pytest.mark.parametrize("fault", ["weights", "name", "shape", "kind", "pattern", "foreign"])
def test_a_damaged_or_foreign_adapter_is_refused(folder: Path, tmp_path: Path, fault: str) -> None:
    place = tmp_path / "adapter"
    save_model(adapted(folder).policy, place, folder)
    file, config = place / "adapter_model.safetensors", place / "adapter_config.json"
    tensors = load_file(file)
    first = sorted(tensors)[0]
    match fault:
        case "weights":
            tensors[first] = tensors[first] + 1
        case "name":
            tensors["base_model.model.nowhere.lora_A.weight"] = tensors.pop(first)
        case "shape":
            tensors[first] = tensors[first][:, 1:].contiguous()
        case "kind":
            config.write_text(json.dumps({**json.loads(config.read_text()), "peft_type": "IA3"}))
        case "pattern":
            config.write_text(json.dumps({**json.loads(config.read_text()), "alpha_pattern": {"q_proj": 64}}))
    save_file(tensors, file)
    if fault == "foreign":
        (place / "manifest.json").unlink()
    elif fault != "weights":  # a manifest that fits, so that the content itself is looked at
        from posttrain.models.files.weights import digest

        listed = json.loads((place / "manifest.json").read_text())
        listed |= {one.name: digest(one) for one in (file, config)}
        (place / "manifest.json").write_text(json.dumps(listed))
    with pytest.raises(ModelError) as error:
        load_model(place)
    assert str(place) in str(error.value)


@pytest.mark.slow
def test_targets_that_no_layer_has_are_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="q_porj"):
        ModelSet.load(CPU, folder, frozenset(), settings(targets=["q_porj", "v_proj"]))
    with pytest.raises(ModelError, match="q_porj"):
        ModelSet.load(CPU, folder, frozenset(), settings(targets="q_porj"))
    one = ModelSet.load(CPU, folder, frozenset(), settings(targets="q_proj")).trained_parameters()
    assert all("q_proj" in name for name in one)


def test_an_adapter_learns_at_ten_times_the_rate_unless_one_is_given() -> None:
    model = torch.nn.Linear(2, 2)
    made = [adamw({"policy": model}, params, 10, model) for params in (TrainingParams(), settings())]
    plain, adapted = (group["peak"] for one in made for of in one._optimizers.values() for group in of.param_groups[:1])
    assert adapted == pytest.approx(10 * plain)
    given = {"adapter": "lora", "optimizer": {"lr": 2e-4}}
    assert check(TrainingParams, given, where="test").optimizer.lr == 2e-4
    with pytest.raises(ParamsError, match="rank"):
        check(TrainingParams, {"adapter": {"type": "none", "rank": 4}}, where="test")


def test_the_same_seed_gives_the_same_adapter(folder: Path) -> None:
    torch.manual_seed(3)
    one = ModelSet.load(CPU, folder, frozenset(), settings()).trained_parameters()
    torch.manual_seed(4)
    two = ModelSet.load(CPU, folder, frozenset(), settings()).trained_parameters()
    assert all(torch.equal(part, two[name]) for name, part in one.items())


@pytest.mark.slow
def test_an_adapter_of_peft_is_trained_and_sampled_by_the_functions(folder: Path) -> None:
    """`posttrain.train_model` and `posttrain.sample` with a model that a user has wrapped by get_peft_model."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = get_peft_model(whole, LoraConfig(r=4, target_modules=["q_proj", "up_proj"]))
    before = {name: part.clone() for name, part in model.named_parameters()}
    rows = [{"prompt": f"{a}+1", "chosen": str(a + 1), "rejected": str(a)} for a in range(8)]
    history = posttrain.train_model(model, load_tokenizer(folder), rows, "dpo", epochs=4, optimizer={"lr": 1e-2})
    changed = {name for name, part in model.named_parameters() if not torch.equal(part, before[name])}
    assert history[-1]["loss"] < history[0]["loss"]
    assert changed and all("lora_" in name for name in changed)
    drawn = posttrain.sample(model, load_tokenizer(folder), ["3+1"], greedy=True, max_tokens=4)
    logits = model(drawn.ids).logits[0, :-1].log_softmax(-1)
    logp = logits.gather(1, drawn.ids[0, 1:, None]).squeeze(1)
    torch.testing.assert_close(logp[drawn.mask[0, 1:]], drawn.logp[0][drawn.mask[0]], rtol=1e-4, atol=1e-4)


def test_a_family_without_linear_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no linear layer"):
        adapted(hub_folder("gpt2", tmp_path / "start", torch.float32))


QUICK = ("qwen3", "gemma2", "mixtral", "deepseek_v3")


@pytest.mark.parametrize(
    "family",
    [
        *QUICK,
        *(pytest.param(one, marks=pytest.mark.slow) for one in sorted(FAMILIES.keys() - {"gpt2", *QUICK})),
    ],
)
def test_families_train_and_decode_with_an_adapter(family: str, tmp_path: Path) -> None:
    """The saved adapter is the trained policy, in every family that runs packed."""
    start = hub_folder(family, tmp_path / "start", torch.float32)
    save_model(load_model(start), tmp_path / "base", start)
    models = adapted(tmp_path / "base")
    save_model(models.policy, tmp_path / "adapter", tmp_path / "base")
    again = load_policy(tmp_path / "adapter")
    torch.testing.assert_close(logps(again), logps(models.policy), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logps(again), logps(load_policy(tmp_path / "base")), atol=1e-3)
    assert not any(part.dim() > 2 for part in models.trained_parameters().values()), "experts get no adapter"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("activations", ["recompute", "offload"])
def test_gradients_do_not_depend_on_what_is_kept(family: str, activations: Activations, tmp_path: Path) -> None:
    """The frozen first layer's input has no gradient, and a mixture's balance loss leaves the layers by a hook."""
    start = hub_folder(family, tmp_path / "start", torch.float32)
    found = []
    for kept in ("keep", activations):
        models = adapted(start)
        set_activations(models.policy, kept)
        models.policy.train()
        objective, batch = LikelihoodObjective(LikelihoodConfig()), make_batch(ROWS)
        step = batch.with_prepared(objective.prepare(batch.columns, {}).step)
        routers = routers_of(models.policy, RouterParams(balance=0.1 if "moe" in family else None), "test")
        StepClosure(objective, models, step, routers)()
        found.append({name: part.grad for name, part in models.trained_parameters().items()})
    assert all(torch.equal(part, found[1][name]) for name, part in found[0].items())


def test_four_bits_keep_the_nearest_level_of_each_block() -> None:
    """Numbers by hand: a block's largest is 1 or -1 times its scale, 0 is 0, and no error exceeds half a gap."""
    weight = torch.randn(6, 96, generator=torch.Generator().manual_seed(0))
    weight[0, :3] = torch.tensor([8.0, 0.0, 4.0])
    codes, scales = quantise(weight)
    kept = dequantise(codes, scales, weight.shape)
    assert codes.dtype == torch.uint8 and codes.numel() == 3 * 96 and scales.numel() == 9
    assert scales[0] == 8.0 and kept[0, 0] == 8.0 and kept[0, 1] == 0.0
    assert kept[0, 2] == pytest.approx(8 * 0.44070982933044434)  # 0.5 lies between 0.4407 and 0.5626
    gap = (1 - 0.6961928) / 2
    assert ((kept - weight).abs().flatten().view(9, 64) <= gap * scales[:, None] + 1e-6).all()
    again = quantise(kept)
    assert torch.equal(again[0], codes) and torch.equal(again[1], scales), "rounding twice changes nothing"


def test_a_model_in_four_bits_takes_an_eighth_of_the_memory(folder: Path) -> None:
    """Of its matrices, with a scale for each 64 numbers; the backward pass keeps no whole matrix."""
    models = ModelSet.load(CPU, folder, frozenset(), settings("qlora"))
    linear = [part for part in models.policy.modules() if isinstance(part, Nf4Linear)]
    stored = sum(part.nbytes for one in linear for part in one.parameters())
    assert stored == pytest.approx(sum(one.in_features * one.out_features for one in linear) * (0.5 + 4 / 64), rel=0.01)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda part: kept.append(part.numel()) or part, lambda part: part):
        linear[0](torch.randn(2, linear[0].in_features, requires_grad=True))
    assert sum(kept) < linear[0].in_features * linear[0].out_features


@pytest.mark.slow
def test_an_adapter_is_found_with_its_base_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user loads it from a notebook; and another user may read it."""
    monkeypatch.chdir(tmp_path)
    base = tiny_folder(tmp_path / "models").relative_to(tmp_path)
    models = adapted(base)
    save_model(models.policy, Path("models/sft"), base)
    monkeypatch.chdir("/")
    torch.testing.assert_close(logps(load_policy(tmp_path / "models/sft")), logps(models.policy), rtol=1e-5, atol=1e-5)
    modes = {file.stat().st_mode for file in (tmp_path / "models/sft").iterdir()}
    assert len(modes) == 1, "the adapter's file has other rights than the rest"
