"""What the device is asked to do, as counts: graphs, operators, waits and bytes, where time cannot be measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.models.decoder import step
from posttrain.models.device import DeviceParams, Runtime, gpu_tile_bytes
from posttrain.models.files.store import new_model
from posttrain.models.forward.logp import Head, loss_tiles, tiles_of
from posttrain.models.forward.unit_head import unit_tiles
from posttrain.models.master_weights import compute_in_bf16, frozen_on, gradient_of
from posttrain.rollout import token_rows
from posttrain.sampling.builtin import sample_next
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.packing import PackedRows
from posttrain.text.stops import Stops
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.families import EVERY, SHAPE
from tests.library.models.tiny import Samples, random_rows, sample
from tests.second_device.device import calls, waits

CUDA = torch.device("cuda")
VIEWS = {
    "alias",
    "as_strided",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "flatten",
    "narrow",
    "numpy_T",
    "permute",
}
VIEWS |= {"reshape", "select", "slice", "split", "squeeze", "t", "transpose", "unflatten", "unsqueeze", "view"}


def runtime(**settings: Any) -> Runtime:
    return Runtime(DeviceParams(device="cuda", **settings))


def model(name: str, layers: int = 2) -> Any:
    """A small model of a family in bf16."""
    return frozen_on(
        new_model(CONFIG_MAPPING[name](**{**SHAPE, **EVERY[name], "num_hidden_layers": layers}), 0), runtime()
    )


def drawn(
    policy: Any, prompts: list[list[int]], rows: int, tokens: int, stop: Stops, *, graphs: bool = True
) -> Samples:
    names = [str(nth) for nth in range(len(prompts))]
    params = SamplingParams(max_tokens=tokens, rows=rows)
    return sample(policy, prompts, names, n=1, params=params, seed=2, stop=stop, device=runtime(cuda_graphs=graphs))


def launches(found: dict[str, int]) -> int:
    """The operators that move data."""
    return sum(n for name, n in found.items() if name.removeprefix("aten::").partition(".")[0] not in VIEWS)


@contextmanager
def noted(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str) -> Iterator[list[int]]:
    """How many operators each call of a method runs."""
    found: list[int] = []
    plain = getattr(owner, method)

    def counted(*args: Any, **kwargs: Any) -> Any:
        with calls() as ran:
            out = plain(*args, **kwargs)
        found.append(launches(ran))
        return out

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, counted)
        yield found


class Moved(TorchDispatchMode):
    """The bytes that operators read and write in tensors of at least so many numbers, but for those they look up in."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.bytes, self._least = 0, least

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name not in VIEWS | {"gather", "searchsorted"}:
            read, written = tree_leaves((args, kwargs)), tree_leaves(out)
            self.bytes += sum(one.nbytes for one in read + written if self._counts(one))
        return out

    def _counts(self, part: Any) -> bool:
        return isinstance(part, Tensor) and part.numel() >= self._least


@pytest.mark.parametrize("requests", [64, 256])
def test_a_step_is_captured_once_for_each_size_of_a_batch(requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 rows, then half of them, a quarter, 8; once more where memory had to move. Without pages 3 and 24."""
    policy, prompts = model("qwen3"), random_rows(requests, seed=1)[0]
    with (
        noted(monkeypatch, step.CudaGraph, "__init__") as captured,
        noted(monkeypatch, step.CudaGraph, "__call__") as steps,
    ):
        drawn(policy, prompts, 64, 60, Stops((2,), str))
    assert len(captured) <= 5
    assert len(steps) >= 59


@pytest.mark.parametrize(("name", "most"), [("llama", 15), ("qwen3", 20)])
def test_a_layer_of_a_step_over_pages_is_one_attention_and_little_else(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """qwen3 norms queries and keys. In parts, with a softmax: 37 and 42."""
    counted = []
    for layers in (2, 4):
        with noted(monkeypatch, step.DecoderStep, "__call__") as found:
            drawn(model(name, layers), random_rows(8, seed=1)[0], 8, 3, Stops((), str))
        counted.append(found[0])
    assert (counted[1] - counted[0]) / 2 <= most


def test_pages_are_written_without_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deterministic form of `index_copy_` is some 14 kernels."""
    strict: list[bool] = []
    plain = torch.Tensor.index_copy_

    def asked(*args: Any) -> Any:
        strict.append(torch.are_deterministic_algorithms_enabled())
        return plain(*args)

    monkeypatch.setattr(torch.Tensor, "index_copy_", asked)
    device = runtime()
    try:
        assert torch.are_deterministic_algorithms_enabled()
        drawn(model("llama"), random_rows(8, seed=1)[0], 8, 3, Stops((), str))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert device.device.type == "cuda"
    assert len(strict) > 4
    assert not any(strict)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_samples_over_pages_do_not_depend_on_the_rows_beside_them(name: str) -> None:
    """Prompts within a page, of a page and more, in slots that others have left; Mistral's layers have windows."""
    policy, prompts = model(name), random_rows(12, seed=1)[0]
    prompts = [(one * 600)[:length] for one, length in zip(prompts, (5, 256, 600, 255) * 3, strict=True)]
    few, all_at_once = (drawn(policy, prompts, rows, 40, Stops((2, 11), str)) for rows in (3, 100))
    assert few.ids == all_at_once.ids


@pytest.mark.parametrize("vocabulary", [97, 256, 1000])
@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, None), (0.8, None), (1.0, 5)])
def test_the_device_draws_the_tokens_that_the_cpu_draws(vocabulary: int, top_p: float, top_k: int | None) -> None:
    random = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(200, vocabulary, generator=random)
    draw_R = torch.rand(200, dtype=torch.float64, generator=random)
    draw_R[0], draw_R[1] = 0.0, 1 - 2**-40
    token_R, logp_R = sample_next(logits, draw_R, top_p, top_k)
    found_R, said_R = sample_next(logits.to(CUDA), draw_R.to(CUDA), top_p, top_k)
    assert torch.equal(found_R.cpu(), token_R)
    assert torch.allclose(said_R.cpu(), logp_R, atol=2e-6)


def test_a_drawn_token_reads_its_distribution_a_few_times() -> None:
    """Bytes for each row and token of the vocabulary: 4 of the product, 8 of the softmax, 4 of the sums.

    With a running sum over all of V in float64 and two passes for the largest there were 44.
    """
    rows, vocabulary, draw_R = 16, 12_800, torch.rand(16, dtype=torch.float64).to(CUDA)
    head = Head(torch.randn(vocabulary, 8, dtype=torch.bfloat16).to(CUDA))
    hidden = torch.randn(rows, 8, dtype=torch.bfloat16).to(CUDA)
    with torch.no_grad(), Moved(rows * vocabulary) as moved:
        sample_next(head.logits(hidden), draw_R, 1.0, None)
    assert moved.bytes <= 16 * rows * vocabulary
    with torch.no_grad(), calls() as ran:
        sample_next(head.logits(hidden), draw_R, 1.0, None)
    assert launches(ran) <= 21


@pytest.mark.parametrize(("tiles", "largest"), [(loss_tiles, 40), (unit_tiles, 24)])
def test_a_tile_of_the_head_reads_its_distributions_a_few_times(tiles: Any, largest: int) -> None:
    """Bytes for each scored token and token of the vocabulary; there were 62. In one kernel, and a rounding, 24."""
    tokens, vocabulary = 64, 12_800
    head = torch.nn.Linear(16, vocabulary, bias=False)
    compute_in_bf16(head.to(CUDA))
    hidden, target = torch.randn(tokens, 16).to(CUDA, torch.bfloat16), torch.arange(tokens).to(CUDA)
    gradient_of(head.weight)
    with Moved(tokens * vocabulary) as moved:
        for tile in tiles(hidden, Head(head.weight), target):
            tile.backward(-tile.logp.sum())
    print(moved.bytes / tokens / vocabulary)
    assert moved.bytes <= largest * tokens * vocabulary


def test_a_gpu_with_much_memory_reads_the_head_few_times() -> None:
    """A step of 9,762 scored tokens has 3 tiles; with tiles of 512 MiB it had 12."""
    assert gpu_tile_bytes(CUDA) == 2 * 2**30
    tiles = tiles_of(torch.empty(9_762, dtype=torch.long, device=CUDA), 151_936)
    assert len(tiles) == 3 and tiles[0] == slice(0, 2**31 // (4 * 151_936)) and tiles[-1].stop == 9_762


@pytest.mark.parametrize("micro_tokens", [10**6, 64])
def test_an_update_waits_once_and_packs_what_the_kernel_reads(
    micro_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host runs ahead through all micro-batches, the clipping and the norm."""
    policy, device = new_model(CONFIG_MAPPING["qwen3"](**{**SHAPE, **EVERY["qwen3"]}), 0).to(CUDA).train(), runtime()
    batch, objective = make_batch(token_rows(*random_rows(16))), LikelihoodObjective(LikelihoodConfig())
    models, packs = ModelSet(policy, device, micro_tokens=micro_tokens), list[PackedRows]()
    plain = ModelSet.packed
    monkeypatch.setattr(ModelSet, "packed", lambda *args: packs.append(plain(*args)) or packs[-1])
    update = AdamW({"policy": (policy, 1e-3)}, OptimizerParams(), 4)
    step = StepClosure(objective, models, batch.with_prepared(objective.prepare(batch.columns, {}).step))
    try:
        update.step(step, 0.0)
        with waits() as found:
            update.step(step, 0.25)
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert len(found) == 1
    assert len(packs) == 2 if micro_tokens > 1000 else len(packs) > 8
    assert not any("gathered" in vars(one) for one in packs)


@pytest.mark.parametrize("clip", [1e-3, 1e3])
def test_adamws_kernel_clips_the_gradient(clip: float) -> None:
    """The weights are those of the CPU, which clips with a pass over all gradients; the metric is the norm before."""
    found: dict[str, Any] = {}
    for device in ("cpu", "cuda"):
        draw = torch.Generator().manual_seed(0)
        linear = torch.nn.Linear(8, 4)
        for part in linear.parameters():
            part.data = torch.randn(part.shape, generator=draw)
        linear.get_input_embeddings = linear.get_output_embeddings = lambda: None  # type: ignore[assignment]
        linear = linear.to(device)
        update = AdamW({"policy": (linear, 1e-2)}, OptimizerParams(clip=clip, betas=[0.5, 0.5]), 4)
        metrics = []
        for nth in range(3):
            for part in linear.parameters():
                part.grad = (torch.randn(part.shape, generator=draw) * (1 + 10 * nth)).to(device)
            with calls() as ran:
                metrics.append(update.step(_Nothing(), nth / 4)["grad_norm"])  # type: ignore[arg-type]
        assert not any("_foreach_mul_" in name for name in ran)
        found[device] = metrics, [part.detach().cpu() for part in linear.parameters()]
    assert found["cuda"][0] == pytest.approx(found["cpu"][0], rel=1e-6)
    for one, other in zip(found["cuda"][1], found["cpu"][1], strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


class _Nothing:
    """A step whose gradients are there."""

    def totals(self) -> dict[str, Tensor]:
        return {}
