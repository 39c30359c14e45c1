"""Under bf16 all products have weights in bf16, and the optimizer updates float32 masters of those that are trained."""

from __future__ import annotations

import copy
import hashlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import posttrain
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import ModelError, ParamsError
from posttrain.evaluate.watch import HeldoutWatch, WatchRule
from posttrain.evaluate.watch_rules import Measured
from posttrain.models.device import FLOAT32_ONLY, DeviceParams, Runtime
from posttrain.models.files.store import load_model, save_model
from posttrain.models.forward.forward import packed_states, score_tokens
from posttrain.models.master_weights import computing, frozen_on, master_of, round_masters
from posttrain.models.nf4 import Nf4Linear
from posttrain.models.self_check import verify_forward
from posttrain.rollout import token_rows
from posttrain.sampling.sampler import SamplingParams
from posttrain.settings.params import check
from posttrain.text.packing import pack
from posttrain.train.loop import TrainingRun
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams
from posttrain.train.routing import StepRouting
from tests.library.models.families import FAMILIES, IN_ROWS
from tests.library.models.test_families import ENDS, NAMES, PROMPTS, family
from tests.library.models.test_fast_paths import closure, models_of, objectives
from tests.library.models.tiny import random_rows, sample, tiny_folder, tiny_model
from tests.pipeline.train import test_training
from tests.pipeline.train.test_training import CutError, CutSource, make_run, settings, settings_of, train

BF16 = Runtime(DeviceParams(device="cpu", precision="bf16", threads=1))
FP32 = Runtime(DeviceParams(device="cpu", precision="fp32", threads=1))
OPTIMIZER = OptimizerParams(lr=3e-3, schedule="constant", warmup=0.0, weight_decay=0.1, clip=0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def weights(models: ModelSet) -> dict[str, nn.Parameter]:
    """The trained weights as products see them, by the names of their masters."""
    return {
        f"{kind}.{name}": part
        for kind, model in models.trained.items()
        for name, part in model.named_parameters()
        if part.requires_grad
    }


def assert_rounded(models: ModelSet) -> None:
    masters, seen = models.trained_parameters(), weights(models)
    assert masters.keys() == seen.keys()
    for name, part in seen.items():
        assert part.dtype == torch.bfloat16 and masters[name].dtype == torch.float32
        assert torch.equal(part, masters[name].bfloat16()), name


class Reference:
    """AdamW after clipping by norm, in float64, by its paper."""

    def __init__(self, start: dict[str, Tensor]) -> None:
        self.weights = {name: part.double().clone() for name, part in start.items()}
        self._means = {name: (torch.zeros_like(part), torch.zeros_like(part)) for name, part in self.weights.items()}
        self._steps = 0

    def step(self, gradients: dict[str, Tensor]) -> None:
        self._steps += 1
        norm = math.sqrt(sum(float(part.double().square().sum()) for part in gradients.values()))
        for name, weight in self.weights.items():
            gradient = gradients[name].double() * min(1.0, OPTIMIZER.clip / (norm + 1e-6))
            first, second = self._means[name]
            first.mul_(0.9).add_(0.1 * gradient)
            second.mul_(0.95).add_(0.05 * gradient.square())
            unbiased = first / (1 - 0.9**self._steps), second / (1 - 0.95**self._steps)
            decay = OPTIMIZER.lr * OPTIMIZER.weight_decay if weight.dim() > 1 else 0.0
            weight.mul_(1 - decay).sub_(OPTIMIZER.lr * unbiased[0] / (unbiased[1].sqrt() + 1e-8))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["likelihood", "gspo"])
def test_masters_take_the_float64_update_of_gradients_computed_in_bf16(name: str) -> None:
    """Three steps with clipping and weight decay, on both loss paths; after each the weights are rounded masters."""
    step = closure(objectives()[name], models_of(name, BF16, 64))
    models = step.models
    update = AdamW({"policy": (models.policy, OPTIMIZER.lr)}, OPTIMIZER, 10)
    reference = Reference(models.trained_parameters())
    before = {key: part.clone() for key, part in models.trained_parameters().items()}
    for _ in range(3):
        step()
        gradients = {key: part.grad.clone() for key, part in weights(models).items()}
        assert {part.dtype for part in gradients.values()} == {torch.float32}
        for part in weights(models).values():
            part.grad = None
        update.step(step, 0.0)
        reference.step(gradients)
        for key, master in models.trained_parameters().items():
            torch.testing.assert_close(master.double(), reference.weights[key], rtol=2e-6, atol=1e-8, msg=key)
        assert_rounded(models)
    moved = [not torch.equal(part, before[key]) for key, part in models.trained_parameters().items()]
    assert all(moved)


@pytest.mark.slow
def test_updates_that_bf16_would_lose_add_up_in_the_master() -> None:
    """A thousand updates of 1e-5 of a weight: neighbours in bf16 are 4e-3 to 8e-3 apart."""

    def trained(model: nn.Linear) -> Tensor:
        params = OptimizerParams(lr=1e-5, schedule="constant", warmup=0.0)
        update = AdamW({"policy": (model, params.lr)}, params, 1000)

        def gradient() -> dict[str, Tensor]:
            model.weight.grad = torch.ones(4, 4, dtype=model.weight.grad_dtype)
            return {}

        closure: Any = SimpleNamespace(totals=gradient)
        for _ in range(1000):
            update.step(closure, 0.0)
        return model.weight

    def ones() -> nn.Linear:
        model = nn.Linear(4, 4, bias=False)
        nn.init.ones_(model.weight)
        return model

    plain, lost, model = trained(ones()), trained(ones().bfloat16()), ones()
    models = ModelSet(model, BF16)
    trained(model)
    assert torch.equal(master_of(model.weight), plain), "the same bits as in float32"
    assert float((plain - 0.99).detach().abs().max()) < 1e-4
    assert torch.equal(lost, torch.ones(4, 4, dtype=torch.bfloat16)), "without a master nothing moves"
    assert_rounded(models)
    assert float(model.weight.detach()[0, 0]) != 1.0


@pytest.mark.parametrize("name", ["likelihood", "grpo", "gspo"])
def test_gradients_of_micro_batches_are_summed_in_float32(name: str) -> None:
    """The sum of the passes' own gradients, bit by bit; a sum in bf16 would lose some of it."""
    step = closure(objectives()[name], models_of(name, BF16, 64))
    routing: Any = StepRouting(step.routers, step.tokens)
    passes = []
    for micro in step.micro_batches():
        step._backward(micro, routing)
        passes.append({key: part.grad for key, part in weights(step.models).items()})
        for part in weights(step.models).values():
            part.grad = None
    assert len(passes) > 3
    step()
    lost = 0
    for key, part in weights(step.models).items():
        exact, rounded = passes[0][key].clone(), passes[0][key].bfloat16()
        for one in passes[1:]:
            exact, rounded = exact + one[key], rounded + one[key].bfloat16()
        assert part.grad is not None and part.grad.dtype == torch.float32
        tied = key.endswith("embed_tokens.weight")  # the head's tiles add to the sum one by one
        torch.testing.assert_close(part.grad, exact, rtol=1e-5 if tied else 0, atol=1e-7 if tied else 0, msg=key)
        lost += int((rounded.float() != exact).sum())
    assert lost > 1000


def test_the_embeddings_gradient_is_summed_over_tokens_in_float32() -> None:
    model, rows = tiny_model(), pack(token_rows([[5] * 100] * 20, [[7]] * 20))
    ModelSet(model, BF16)
    embedding = model.get_input_embeddings()
    seen: list[Tensor] = []
    handle = model.base_model.layers[0].register_forward_pre_hook(
        lambda _, inputs: inputs[0].register_hook(seen.append) and None
    )
    packed_states(model, rows).float().square().sum().backward()
    handle.remove()
    assert embedding.weight.grad is not None and embedding.weight.grad.dtype == torch.float32
    exact = torch.zeros(97, 32, dtype=torch.float64).index_add_(0, rows.ids_N, seen[-1][0].double())
    torch.testing.assert_close(embedding.weight.grad.double(), exact, rtol=1e-4, atol=1e-5)


def needing_all(folder: Path, kind: str) -> ModelSet:
    trained = settings(kind) if kind != "none" else test_training.ALL_WEIGHTS
    return ModelSet.load(BF16, folder, frozenset({"ref_logp", "value", "kl_old"}), trained)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "lora", "dora", "qlora"])
def test_frozen_models_hold_nothing_in_float32(folder: Path, kind: str) -> None:
    """But for the scales of matrices in 4 bits; a moving copy of the policy is bf16 alone as well."""
    models = needing_all(folder, kind)
    scales = {layer.scales for layer in models.policy.modules() if isinstance(layer, Nf4Linear)}
    for model in (models.reference, models.old):
        for part in model.parameters():
            assert master_of(part) is part and (part.dtype != torch.float32 or part in scales)
    for model in (models.policy, models.critic):
        for part in model.parameters():
            assert (master_of(part) is not part) == part.requires_grad
    models.copy_policy(models.old)
    rows = pack(token_rows(*random_rows(4)))
    with torch.no_grad():
        assert torch.equal(score_tokens(models.old, rows)[0], score_tokens(models.policy, rows)[0])


class NoAutocast(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not torch.is_autocast_enabled("cpu")
        self.seen += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_nothing_runs_under_autocast(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_training, "DEVICE", BF16)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    with NoAutocast() as mode:
        train(make_run(folder, "grpo", tmp_path), tmp_path)
    assert mode.seen > 1000
    sources = [*Path("posttrain").rglob("*.py"), *Path("stages").glob("*.py")]
    assert len(sources) > 100 and not [str(file) for file in sources if "autocast" in file.read_text()]


def bits(run: TrainingRun) -> str:
    """A digest of masters, weights and the optimizer's state."""
    total = hashlib.sha256()
    parts = run.models.trained_parameters() | {f"w.{key}": part for key, part in weights(run.models).items()}
    for name, part in sorted({**parts, **run.update.state_dict()}.items()):
        total.update(name.encode() + part.detach().float().numpy().tobytes())
    return total.hexdigest()


@pytest.mark.parametrize(
    "name",
    ["sft", "dpo+lora", *(pytest.param(name, marks=pytest.mark.slow) for name in (
        "ppo", "sdpo", "grpo", "gkd", "ppo_penalty", "nash_md", "ptx", "replay", "sft+dora", "sft+qlora",
        "sft+lora_dropout",
    ))],
)  # fmt: skip
def test_a_cut_run_goes_on_to_the_same_masters_and_weights(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_training, "DEVICE", BF16)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "whole"))
    whole = make_run(folder, name, tmp_path)
    train(whole, tmp_path)
    log = (tmp_path / f"{name}.csv").read_text()
    assert_rounded(whole.models)
    [*_, newest] = sorted((tmp_path / "whole").rglob("tensors.safetensors"))
    held = load_file(newest)
    assert all(held[key].dtype == torch.float32 for key in whole.models.trained_parameters())
    assert any(not torch.equal(held[key], held[key].bfloat16().float()) for key in whole.models.trained_parameters())

    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "cut"))
    cut = make_run(folder, name, tmp_path)
    object.__setattr__(cut, "source", CutSource(cut.source, 3))
    with pytest.raises(CutError):
        train(cut, tmp_path)
    again = make_run(folder, name, tmp_path)
    train(again, tmp_path)
    assert_rounded(again.models)
    assert bits(again) == bits(whole)
    assert (tmp_path / f"{name}.csv").read_text() == log


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_saved_model_is_made_of_the_masters(dtype: Any, folder: Path, tmp_path: Path) -> None:
    models = ModelSet(load_model(folder), BF16)
    with torch.no_grad():
        for part in models.trained_parameters().values():
            part.mul_(1.001)
    expected = {name: master_of(part).to(getattr(torch, dtype)) for name, part in models.policy.named_parameters()}
    save_model(models.policy, tmp_path / "saved", folder, dtype)
    found = load_file(tmp_path / "saved/model.safetensors")
    assert found.keys() == expected.keys() - {"lm_head.weight"}
    assert all(torch.equal(part, expected[name]) for name, part in found.items())
    assert_rounded(models)
    assert all(
        torch.equal(part, expected[name].float()) for name, part in load_model(tmp_path / "saved").named_parameters()
    )


def test_the_best_weights_of_a_watched_run_are_masters(folder: Path) -> None:
    models = ModelSet(load_model(folder), BF16)
    rewards = iter([1.0, 0.0])
    params = WatchRule(every=1, keep="best")
    watch = HeldoutWatch(params, lambda: Measured(np.full(3, next(rewards)), np.zeros(3)), models.policy, 1, "watch")
    start = {name: part.clone() for name, part in models.trained_parameters().items()}
    watch.look(0)
    with torch.no_grad():
        for part in models.trained_parameters().values():
            part.add_(0.1)
    round_masters(models.policy.parameters())
    watch.look(1)
    watch.finish()
    assert all(torch.equal(part, start[name]) for name, part in models.trained_parameters().items())
    assert_rounded(models)


@pytest.mark.slow
def test_functions_leave_the_users_model_in_float32(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained by masters, the reference as it was; a callback may sample in between."""
    for module in ("api.model", "train.loop"):
        monkeypatch.setattr(f"posttrain.{module}.Runtime", lambda _: BF16)
    model, tokenizer = posttrain.load_model(folder)
    reference, start = copy.deepcopy(model), copy.deepcopy(model)
    drawn = []
    history = posttrain.train_model(
        model, tokenizer, [{"prompt": "1", "chosen": "2", "rejected": "3"}] * 4, "dpo", batch_size=2, epochs=2,
        reference=reference, optimizer={"lr": 1e-3},
        on_step=lambda *_: drawn.append(posttrain.sample(model, tokenizer, ["1"], max_tokens=2)),
    )  # fmt: skip
    assert len(history) == len(drawn) == 4
    for mine, theirs, first in zip(model.parameters(), reference.parameters(), start.parameters(), strict=True):
        assert mine.dtype == theirs.dtype == torch.float32 and mine.requires_grad and master_of(mine) is mine
        assert torch.equal(theirs, first)
    moved = [part for part, first in zip(model.parameters(), start.parameters(), strict=True) if not part.equal(first)]
    assert moved and any(not part.equal(part.bfloat16().float()) for part in moved)
    with pytest.raises(KeyError, match="seen in bf16"), computing(model, BF16):
        raise KeyError("seen in bf16" if model.dtype == torch.bfloat16 else "in float32")
    assert model.dtype == torch.float32


def trpo(precision: str) -> Any:
    params = settings_of("trpo").model_dump(exclude_unset=True)
    return check(type(settings_of("trpo")), {**params, "device": {"precision": precision}}, where="trpo")


def test_trpo_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParamsError, match=r"update trpo solves for its step in float32\. Use fp32 or auto"):
        trpo("bf16")
    monkeypatch.setattr("posttrain.train.loop.Runtime", lambda params: params.precision)
    monkeypatch.setattr("posttrain.online.config.Runtime", lambda params: params.precision)
    assert trpo("auto").runtime() == "fp32"
    assert settings_of("grpo").runtime() == "auto"


ROUTED = {"mixtral": 0.9, "granitemoe": 0.9, "llama4_text": 0.9, "qwen3_next": 0.0}
"""Rounding sends tokens near a tie to other experts; qwen3_next's tiny layers divide by norms near 0."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAMILIES, *IN_ROWS])
def test_every_family_learns_and_samples_in_bf16(name: str) -> None:
    """One gradient beside that in float32, and log-probs of samples beside those in training."""
    if name in FLOAT32_ONLY:
        with pytest.raises(ModelError, match=f"{name} models only support float32"):
            ModelSet(family(name), BF16)
        return
    gradients = []
    for runtime in (FP32, BF16):
        model = family(name)
        verify_forward(model, name)
        step = closure(LikelihoodObjective(LikelihoodConfig()), ModelSet(model, runtime))
        step()
        gradients.append(torch.cat([part.grad.flatten() for part in model.parameters() if part.grad is not None]))
    assert float(torch.nn.functional.cosine_similarity(*gradients, dim=0)) > ROUTED.get(name, 0.99)
    model = family(name)
    verify_forward(model, name)
    model = frozen_on(model, BF16)
    prompts, params = PROMPTS[-3:], SamplingParams(max_tokens=6)
    found = sample(model, prompts, NAMES[-3:], n=2, params=params, seed=2, stop=ENDS, device=BF16)
    with torch.no_grad():
        rows = token_rows([prompt for prompt in prompts for _ in range(2)], found.ids)
        expected, _ = score_tokens(model, pack(rows))
    gaps = (torch.tensor([value for row in found.logps for value in row]) - expected).abs()
    assert float(gaps.median()) < 0.05
