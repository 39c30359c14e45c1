"""Every fast path against the plain one: the same losses, gradients and samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posttrain.algorithms.distill.reverse_kl import reverse_kl
from posttrain.algorithms.distillation import DistillConfig, DistillObjective
from posttrain.algorithms.objective import Objective
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.models.decoder.step import supports_decoder_step
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import new_model
from posttrain.models.forward.logp import loss_tiles, plain_token_logp
from posttrain.models.master_weights import frozen_on
from posttrain.rollout import token_rows
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.stops import Stops
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.tiny import HEADS, Samples, greedy, random_head, random_rows, sample, tiny_model

CPU = DeviceParams(device="cpu", threads=1)
DEVICE = Runtime(CPU)
PARAMS = SamplingParams(max_tokens=14)
ENDS = Stops((2,), str)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_gradient_formed_with_its_forward_is_that_of_plain_autograd(
    temperature: float, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_BYTES", 4 * 53 * 5)
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_TOKENS", 1)
    torch.manual_seed(0)
    hidden = torch.randn(17, 8, dtype=torch.float64, requires_grad=True)
    head, parts = random_head(kind)
    target, old = torch.randint(0, 53, (17,)), torch.randn(17, dtype=torch.float64)

    def loss(part: slice, logp: Tensor, entropy: Tensor) -> Tensor:
        return ((logp - old[part]).exp() * 0.3 - 0.2 * entropy + logp.square()).sum()

    plain = loss(slice(0, 17), *plain_token_logp(hidden, head, target, temperature))
    by_hidden, *by_head = torch.autograd.grad(plain, (hidden, *parts))
    for part in parts:
        part.grad = torch.ones_like(part)
    tiles = loss_tiles(hidden.detach(), head, target, temperature)
    found = torch.cat([tile.backward(loss(tile.part, tile.logp, tile.entropy)) for tile in tiles])
    torch.testing.assert_close(found, by_hidden, rtol=1e-9, atol=1e-10)
    for part, expected in zip(parts, by_head, strict=True):
        assert part.grad is not None
        torch.testing.assert_close(part.grad - 1, expected, rtol=1e-9, atol=1e-10)


def objectives() -> dict[str, Objective]:
    return {
        "likelihood": LikelihoodObjective(LikelihoodConfig()),
        "grpo": PolicyObjective(POLICY_ROWS["grpo"].settings(kl={"beta": 0.1}), 14),
        "rloo": PolicyObjective(POLICY_ROWS["rloo"].settings(), 14),
        "entropy bonus": PolicyObjective(POLICY_ROWS["dapo"].settings(entropy=0.1), 14),
        "gspo": PolicyObjective(POLICY_ROWS["gspo"].settings(), 14),
        "old": PolicyObjective(POLICY_ROWS["grpo"].settings(penalty={"type": "exact", "beta": 0.3}), 14),
        "teacher": DistillObjective(DistillConfig()),
    }


@pytest.mark.parametrize("micro_tokens", [100_000, 64], ids=["whole", "micro-batches"])
@pytest.mark.parametrize("name", objectives())
def test_a_fused_gradient_is_that_of_plain_autograd(
    name: str, micro_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_BYTES", 4 * 97 * 9)
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_TOKENS", 1)
    objective = objectives()[name]
    found = []
    for fused in (True, False):
        models = models_of(name, Runtime(CPU, fused=fused), micro_tokens)
        models.policy.get_input_embeddings().padding_idx = 5  # whose rows get no gradient
        metrics = closure(objective, models)()
        found.append((metrics, {key: p.grad for key, p in models.trained_parameters().items()}))
    (fast, fast_gradients), (plain, plain_gradients) = found
    assert fast == pytest.approx(plain, rel=1e-4, abs=1e-5)
    for key, gradient in plain_gradients.items():
        torch.testing.assert_close(fast_gradients[key], gradient, rtol=1e-3, atol=2e-6, msg=key)


class Adapted(nn.Module):
    """A head with an adapter around it, whose matrix alone is not what it computes."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.down, self.up = inner, nn.Linear(32, 2, bias=False), nn.Linear(2, 97, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.inner(hidden) + self.up(self.down(hidden))
        return out


def test_plain_autograd_trains_a_head_that_is_more_than_its_matrix() -> None:
    model = tiny_model()
    model.requires_grad_(requires_grad=False)
    model.lm_head = adapted = Adapted(model.lm_head)
    models = ModelSet(model, Runtime(CPU, fused=False), micro_tokens=64)
    assert [*models.trained_parameters()] == ["policy.lm_head.down.weight", "policy.lm_head.up.weight"]
    closure(objectives()["likelihood"], models)()
    assert all(float(part.weight.grad.abs().max()) > 0 for part in (adapted.down, adapted.up))


def models_of(name: str, runtime: Runtime, micro_tokens: int) -> ModelSet:
    """A policy, and what else the objective asks for, never equal to it."""
    old = tiny_model(seed=1) if name == "old" else None
    teachers = [Teacher(tiny_model(seed=1), reverse_kl)] if name == "teacher" else []
    return ModelSet(tiny_model(), runtime, old=old, teachers=teachers, micro_tokens=micro_tokens)


def closure(objective: Objective, models: ModelSet) -> StepClosure:
    """One prepared step of twelve rows."""
    prompts, completions = random_rows(12, seed=4)
    draw = torch.Generator().manual_seed(1)
    count = sum(len(ids) for ids in completions)
    rows = {
        "reward": torch.rand(12, generator=draw),
        "truncated": torch.zeros(12, dtype=torch.bool),
        "group": torch.arange(4).repeat_interleave(3),
        "age": torch.zeros(12, dtype=torch.long),
    }
    old = {name: -torch.rand(count, generator=draw) * 3 for name in ("old_logp", "ref_logp")}
    batch = make_batch(token_rows(prompts, completions), rows, old)
    batch = models.add_scored_columns(batch, objective.needs)
    prepared = objective.prepare(batch.columns, objective.initial_state())
    step = batch.with_prepared(replace(prepared.step, item_B=None))
    return StepClosure(objective, models, step, state=prepared.state)


SHAPE = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.2, "pad_token_id": 0,
}  # fmt: skip


def family(name: str) -> Any:
    """A small model of a common family."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.mistral.configuration_mistral import MistralConfig
    from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    configs = {
        "llama": lambda: LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
        "llama, stretched positions": lambda: LlamaConfig(
            **SHAPE, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
        ),
        "mistral": lambda: MistralConfig(**SHAPE, sliding_window=None),
        "qwen2": lambda: Qwen2Config(**SHAPE),
        "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=8),
    }
    model = new_model(configs[name](), 0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:  # biases and norms start at 0 and 1, which would hide mistakes
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(key))) * 0.1)
    return model


FAMILIES = ("llama", "llama, stretched positions", "mistral", "qwen2", "qwen3")


def samples(model: Any) -> tuple[Samples, Samples]:
    prompts = random_rows(6, seed=1)[0]
    names = [str(i) for i in range(6)]
    drawn = sample(model, prompts, names, n=5, params=PARAMS, seed=2, stop=ENDS, device=DEVICE)
    return drawn, greedy(model, prompts, params=PARAMS, stop=ENDS, device=DEVICE)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_decoding_step_is_that_of_the_models_own_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = family(name)
    assert supports_decoder_step(model)
    fast = samples(model)
    monkeypatch.setattr("posttrain.models.decoder.step.supports_decoder_step", lambda *_: False)
    for mine, theirs in zip(fast, samples(model), strict=True):
        assert mine.ids == theirs.ids
        for one, other in zip(mine.logps, theirs.logps, strict=True):
            assert one == pytest.approx(other, abs=2e-4)


def test_a_bf16_step_is_near_that_of_the_models_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Runtime(DeviceParams(device="cpu", precision="bf16", threads=1))
    model = frozen_on(family("qwen3"), device)
    found = []
    for fast in (True, False):
        monkeypatch.setattr("posttrain.models.decoder.step.supports_decoder_step", lambda *_, fast=fast: fast)
        prompts = random_rows(6, seed=1)[0]
        found.append(greedy(model, prompts, params=SamplingParams(max_tokens=2), stop=ENDS, device=device))
    pairs = zip(found[0].ids, found[1].ids, found[0].logps, found[1].logps, strict=True)
    same = [(one, other) for ids, others, one, other in pairs if ids == others]
    assert len(same) >= 4, "rounding decides few tokens"
    for one, other in same:
        assert one == pytest.approx(other, abs=0.1)


def test_a_model_with_foreign_parts_is_decoded_by_its_own_code() -> None:
    model = tiny_model()
    model.base_model.layers[0].mlp.up_proj = torch.nn.Sequential(model.base_model.layers[0].mlp.up_proj)
    assert not supports_decoder_step(model)
