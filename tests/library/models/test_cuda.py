"""What only a GPU can show, skipped without one.

python -m pytest tests/library/models/test_cuda.py -n 0
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.forward.forward import PackedAttention, Scoring, score_tokens
from posttrain.models.master_weights import frozen_on
from posttrain.rollout import token_rows
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.packing import pack
from posttrain.text.stops import Stops
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams
from posttrain.train.routing import RouterParams, routers_of
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.families import EVERY, SHAPE
from tests.library.models.tiny import random_rows, sample

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU")
STEPS = 5
PROMPTS, COMPLETIONS = random_rows(24, seed=4)
OBJECTIVES = {
    "tiled": lambda: LikelihoodObjective(LikelihoodConfig()),
    "grpo": lambda: PolicyObjective(POLICY_ROWS["grpo"].settings(kl="none"), 14),
    "gspo": lambda: PolicyObjective(POLICY_ROWS["gspo"].settings(kl="none"), 14),
}


def model(name: str) -> Any:
    """A small model of a family on the device."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from posttrain.models.files.store import new_model

    return new_model(CONFIG_MAPPING[name](**{**SHAPE, **EVERY[name]}), 0).to(DEVICE)


def runtime(precision: str, *, cuda_graphs: bool = True) -> Runtime:
    """Deterministic kernels, as by default."""
    return Runtime(DeviceParams(device=DEVICE, precision=precision, cuda_graphs=cuda_graphs))  # type: ignore[arg-type]


def digest(trained: Any) -> str:
    """Of every weight's bits."""
    found = hashlib.sha256()
    for part in trained.state_dict().values():
        found.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def trained(name: str, objective: Any, precision: str) -> str:
    """The digest of a model after some updates."""
    policy, count = model(name).train(), sum(len(ids) for ids in COMPLETIONS)
    rows = {
        "reward": torch.linspace(0, 1, 24),
        "truncated": torch.zeros(24, dtype=torch.bool),
        "group": torch.arange(8).repeat_interleave(3),
        "age": torch.zeros(24, dtype=torch.long),
    }
    batch = make_batch(token_rows(PROMPTS, COMPLETIONS), rows, {"old_logp": torch.full((count,), -4.0)})
    models = ModelSet(policy, runtime(precision), micro_tokens=200)
    routers = routers_of(policy, RouterParams(), "test")
    update = AdamW({"policy": (policy, 1e-3)}, OptimizerParams(), STEPS)
    for step in range(STEPS):
        prepared = objective.prepare(batch.columns, objective.initial_state()).step
        update.step(
            StepClosure(objective, models, batch.with_prepared(prepared), routers, objective.initial_state()),
            step / STEPS,
        )
    return digest(policy)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "qwen3_moe"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_two_runs_have_the_same_weights_byte_for_byte(objective: str, name: str, precision: str) -> None:
    first, second = (trained(name, OBJECTIVES[objective](), precision) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_rounds_of_sampling_are_the_same(precision: str) -> None:
    found = [drawn(runtime(precision)) for _ in range(2)]
    assert found[0] == found[1]


def test_cuda_graphs_over_pages_sample_what_the_model_says() -> None:
    device, policy = runtime("bf16"), frozen_on(model("qwen3"), runtime("bf16"))
    prompts = long_prompts()
    params = SamplingParams(max_tokens=100, rows=7)
    found = sample(policy, prompts, list("abcdef"), n=3, params=params, seed=2, stop=Stops((2,), str), device=device)
    packed = pack(token_rows([prompts[i // 3] for i in range(18)], found.ids)).to(device.device)
    said = score_tokens(policy, packed)[0].cpu()
    exact = score_tokens(frozen_on(model("qwen3"), runtime("fp32")), packed)[0].cpu()
    drawn_by = torch.tensor([one for row in found.logps for one in row])
    assert torch.allclose(said, exact, atol=0.1) and torch.allclose(drawn_by, exact, atol=0.1)  # each rounds to bf16
    assert float((drawn_by - exact).abs().mean()) < 1.5 * float((said - exact).abs().mean()) < 0.03


def long_prompts() -> list[list[int]]:
    """Within a page, a page, and more."""
    prompts = random_rows(6, seed=1)[0]
    return [(one * 600)[:length] for one, length in zip(prompts, (5, 256, 600, 600, 255, 257), strict=True)]


def drawn(device: Runtime) -> Any:
    """Three samples of six prompts in seven slots."""
    prompts, names = random_rows(6, seed=1)[0], [str(i) for i in range(6)]
    params = SamplingParams(max_tokens=100, rows=7)
    return sample(model("qwen3"), prompts, names, n=3, params=params, seed=2, stop=Stops((2,), str), device=device)


@pytest.mark.parametrize("window", [None, 5])
def test_the_variable_length_kernel_is_near_whole_rows(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16, with the gradient; both round, so they are compared with float64."""
    packed = pack(token_rows(PROMPTS, COMPLETIONS)).to(torch.device(DEVICE))
    draw, size = torch.Generator().manual_seed(0), packed.ids_N.numel()
    exact = [torch.randn(1, heads, size, 64, generator=draw, dtype=torch.float64) for heads in (4, 2, 2)]
    found = []
    for dtype, gathered in ((torch.float64, True), (torch.bfloat16, True), (torch.bfloat16, False)):
        with monkeypatch.context() as patch:
            if gathered:
                patch.setattr("posttrain.models.forward.forward.supports", lambda *_: False)
            parts = [part.to(DEVICE, dtype).requires_grad_() for part in exact]
            out = PackedAttention(packed).attend(0, *parts, Scoring(0.125, window))  # type: ignore[arg-type]
            found.append([out, *torch.autograd.grad(out.square().sum(), parts)])
    for right, rows, segments in zip(*found, strict=True):
        allowed = 2 * (rows - right).abs().max() + 1e-3
        assert (segments - right).abs().max() <= allowed
