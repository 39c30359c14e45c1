"""What failed on the second device once: precision, attention, determinism, metrics, adapters."""

from __future__ import annotations

import copy
import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posttrain.algorithms.objective import step_metrics
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.api import load_model, train_model, train_online
from posttrain.distributed import world
from posttrain.errors import ModelError
from posttrain.measure.provenance import differences
from posttrain.measure.record import noted
from posttrain.measure.timings import device_peak_mb
from posttrain.models.device import DeviceParams, Runtime, in_segments
from posttrain.models.files.store import new_model
from posttrain.models.forward.forward import PackedAttention, Scoring, score_tokens
from posttrain.models.forward.varlen import kernel
from posttrain.models.master_weights import frozen_on, master_of
from posttrain.models.nf4 import dequantise, level_pairs, quantise_model
from posttrain.models.scratch import ScratchParams, scratch_config
from posttrain.pipeline.runs.stage_maker import stage_maker
from posttrain.rollout import token_rows
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Request, SamplingParams
from posttrain.text.packing import pack
from posttrain.text.stops import Stops
from posttrain.train.model_set import ModelSet, on_device
from posttrain.train.optimizer import AdamW, OptimizerParams, WeightMean
from posttrain.train.step import StepClosure, _of_all, make_batch
from tests.library.models.families import EVERY, SHAPE
from tests.library.models.tiny import random_rows, sample, tiny_folder, tiny_model
from tests.second_device.device import calls, waits

CUDA = torch.device("cuda")
LONG = 600
"""Tokens of a row: five blocks of keys, whose order of addition is not fixed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def runtime(**settings: Any) -> Runtime:
    return Runtime(DeviceParams(device="cuda", **settings))


def family(name: str) -> Any:
    return new_model(CONFIG_MAPPING[name](**{**SHAPE, **EVERY[name]}), 0)


def masters_after_updates(*, deterministic: bool) -> str:
    """The digest of the float32 masters after three updates on rows of several blocks."""
    torch.use_deterministic_algorithms(mode=False)
    device, policy = runtime(deterministic=deterministic), tiny_model().to(CUDA).train()
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(97, (6, LONG), generator=draw).tolist()
    batch = make_batch(token_rows([row[:4] for row in ids], [row[4:] for row in ids]))
    models, objective = ModelSet(policy, device), LikelihoodObjective(LikelihoodConfig())
    update = AdamW({"policy": (policy, 0.1)}, OptimizerParams(), 3)  # a change of a bit is not lost
    for step in range(3):
        prepared = objective.prepare(batch.columns, objective.initial_state()).step
        update.step(StepClosure(objective, models, batch.with_prepared(prepared)), step / 3)
    found = hashlib.sha256()
    for part in policy.parameters():
        found.update(master_of(part).detach().cpu().numpy().tobytes())
    return found.hexdigest()


def test_deterministic_updates_of_long_rows_have_the_same_masters_bit_by_bit() -> None:
    try:
        assert len({masters_after_updates(deterministic=True) for _ in range(3)}) == 1
        first = masters_after_updates(deterministic=False)
        others = (masters_after_updates(deterministic=False) for _ in range(20))
        assert any(other != first for other in others), "the device adds in one order"  # some orders round alike
    finally:
        torch.use_deterministic_algorithms(mode=False)


@pytest.mark.parametrize(("size", "segments"), [(6, False), (8, True), (264, False)])
def test_heads_of_every_size_are_computed(size: int, segments: bool) -> None:
    heads = torch.zeros(1, 2, 4, size, device=CUDA, dtype=torch.bfloat16)
    assert in_segments(heads, heads) is segments
    if size == 6:
        config = scratch_config(ScratchParams(width=48, heads=8, layers=2), 97, stop=2, pad=0)
        model, rows = new_model(config, 0), pack(token_rows(*random_rows(6)))
        expected = score_tokens(model, rows)[0]
        found = score_tokens(frozen_on(model, runtime()), rows.to(CUDA))[0]
        assert torch.allclose(found.cpu(), expected, atol=0.05)


def test_a_gpu_without_flash_attention_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pack(token_rows(*random_rows(6)))
    expected = score_tokens(tiny_model(), rows)[0]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    old = runtime()
    assert not old.bf16
    assert torch.allclose(score_tokens(frozen_on(tiny_model(), old), rows.to(CUDA))[0].cpu(), expected, atol=1e-4)
    emulated = frozen_on(tiny_model(), runtime(precision="bf16"))  # in gathered rows
    assert torch.allclose(score_tokens(emulated, rows.to(CUDA))[0].cpu(), expected, atol=0.5)


@pytest.mark.parametrize("name", ["minimax", "xglm", "xlstm"])
def test_a_family_of_float32_alone_trains_in_it(name: str) -> None:
    device, model = runtime(), family(name)
    device.suit(model)
    assert not device.bf16
    assert noted("precision") == "fp32"
    assert not any(part.dtype == torch.bfloat16 for part in frozen_on(model, runtime()).parameters())
    with pytest.raises(ModelError, match="only support float32"):
        runtime(precision="bf16").suit(family(name))


@pytest.mark.parametrize("window", [None, 5])
def test_float32_attention_of_grouped_keys_repeats_them_for_the_kernel(window: int | None) -> None:
    packed = pack(token_rows(*random_rows(6)))
    draw, size = torch.Generator().manual_seed(0), packed.ids_N.numel()
    parts = [torch.randn(1, heads, size, 6, generator=draw) for heads in (4, 2, 2)]
    expected = PackedAttention(packed).attend(0, *parts, Scoring(0.1, window))  # type: ignore[arg-type]
    moved = [part.to(CUDA) for part in parts]
    with calls() as found:
        out = PackedAttention(packed.to(CUDA)).attend(0, *moved, Scoring(0.1, window))  # type: ignore[arg-type]
    assert torch.allclose(out.cpu(), expected, atol=1e-6)
    assert "attention of grouped keys" not in found
    assert found["attention"] > 0


def test_metrics_of_a_mixture_over_processes_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "count", lambda: 2)
    monkeypatch.setattr(world, "gathered", lambda value: [value, value])
    totals = {name: torch.ones((), device=CUDA) for name in ("loss", "accuracy")}
    with waits() as found:
        metrics = step_metrics(_of_all(totals, {"balance_loss": torch.ones((), device=CUDA)}))
    assert metrics == {"loss": 2.0, "accuracy": 2.0, "balance_loss": 1.0}
    assert len(found) == 1


def test_the_api_trains_a_model_that_is_on_the_gpu(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to("cuda")
    before = copy.deepcopy(model.state_dict())
    train_model(model, load_model(folder)[1], [{"prompt": "1+1=", "completion": "2"}])
    assert any(not torch.equal(part, before[name]) for name, part in model.state_dict().items())


def test_the_api_trains_a_critic_on_the_gpu(folder: Path) -> None:
    """In bf16 its weights need masters too."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to("cuda")
    rollout = {"rounds": 2, "prompts": 2, "group_size": 2, "minibatches": 1, "sampling": {"max_tokens": 4}}
    settings = {"rollout": rollout, "advantage": {"type": "gae"}}
    prompts = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+2=", "answer": "3"}]

    def length(found: Any) -> list[float]:
        return [float(len(one.row.rest)) for one in found]

    history = train_online(model, load_model(folder)[1], prompts, length, "ppo", settings=settings)
    assert len(history) == 2 and all(math.isfinite(row["value_loss"]) for row in history)


def test_a_mean_of_weights_resumes_on_the_gpu() -> None:
    weights = {"a": torch.arange(3.0, device=CUDA)}
    mean = WeightMean(weights, 1.0, 3)
    mean.add(0)
    again = WeightMean(weights, 1.0, 3)
    again.load_state_dict({name: part.cpu() for name, part in mean.state_dict().items()})
    for step in (1, 2):
        weights["a"] += 3
        again.add(step)
    assert weights["a"].tolist() == [3.0, 4.0, 5.0]


def test_a_forward_pass_of_qlora_does_not_wait_and_launches_little() -> None:
    model, rows = tiny_model(), pack(token_rows(*random_rows(6))).to(CUDA)
    quantise_model(model)
    model = frozen_on(model, runtime(deterministic=False))
    with waits() as found:
        score_tokens(model, rows)
    assert found == []
    size = (4096, 14336)  # the largest matrix of 8B: 7 such in each of 36 layers
    codes = torch.zeros(size[0] * size[1] // 2, dtype=torch.uint8, device=CUDA)
    scales, pairs = torch.zeros(size[0] * size[1] // 64, device=CUDA), level_pairs().to(CUDA)
    with calls() as found_calls:
        dequantise(codes, scales, torch.Size(size), torch.bfloat16, pairs)
    views = {"view", "split", "flatten", "unsqueeze", "slice", "narrow", "_unsafe_view", "empty", "as_strided"}
    launches = sum(n for name, n in found_calls.items() if name.removeprefix("aten::").partition(".")[0] not in views)
    assert 7 * 36 * launches < 2000


def test_the_kernel_has_what_is_asked_of_it() -> None:
    assert kernel() is not None


def test_a_run_knows_its_gpu_and_its_memory() -> None:
    runtime()
    made = stage_maker("sft@main")
    assert made["cpu"]["gpu"] == "second device"
    other = {**made, "cpu": {**made["cpu"], "driver": "1.2", "gpu": "another"}}
    assert differences(made, other) == ["gpu second device -> another", f"driver {made['cpu']['driver']} -> 1.2"]
    on_cpu = {**made, "cpu": {"cpu_isa": made["cpu"]["cpu_isa"]}}
    assert differences(made, on_cpu) == [], "a command that looks at checkpoints has no GPU"
    held = torch.zeros(2**20, device=CUDA)
    assert device_peak_mb() >= held.nbytes / 2**20


def test_comparisons_of_a_reward_model_are_found_on_the_host() -> None:
    objective = RewardObjective(RewardConfig())
    prompts, completions = random_rows(4)
    columns = {"side": torch.tensor([1.0, -1.0, 1.0, -1.0])}
    batch = make_batch(token_rows(prompts, completions), columns, items=torch.tensor([0, 0, 1, 1]))
    step = objective.prepare(batch.columns, objective.initial_state()).step
    moved = on_device(step, CUDA).with_rows(score=torch.tensor([1.0, 0.0, 0.5, 2.0]).to(CUDA))
    with waits() as found:
        loss = objective.loss(moved, {})
    assert found == []
    expected = objective.loss(step.with_rows(score=torch.tensor([1.0, 0.0, 0.5, 2.0])), {})
    assert float(loss.total) == pytest.approx(float(expected.total))


def test_decoding_sorts_no_places_for_deterministic_kernels() -> None:
    device = runtime()
    model, prompts = frozen_on(tiny_model(), device), random_rows(6, seed=1)[0]
    with calls() as found:
        requests = [Request(ids, f"{i}") for i, ids in enumerate([*prompts, prompts[0]])]  # uneven groups
        LocalSampler(model, Stops((), str), device).generate(requests, SamplingParams(max_tokens=4), 0)
    assert "aten::index_copy.out by a sort" not in found
    assert torch.are_deterministic_algorithms_enabled()


def test_decoding_sums_scores_in_float32_and_waits_once_in_eight_steps() -> None:
    model, device = frozen_on(tiny_model(), runtime()), runtime(cuda_graphs=False)
    prompts, names = random_rows(6, seed=1)[0], [str(i) for i in range(6)]

    def drawn(tokens: int) -> tuple[int, dict[str, int]]:
        params = SamplingParams(max_tokens=tokens, rows=18)
        with waits() as waited, calls() as found:
            sample(model, prompts, names, n=3, params=params, seed=2, stop=Stops((), str), device=device)
        return len(waited), found

    (short, _), (long, ran) = drawn(16), drawn(80)
    assert long - short <= 64 / 8
    assert ran["aten::bmm.dtype"] > 0
