"""The memory that a run is said to need, held against what its tensors take, too little and too much."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.algorithms.distill.reverse_kl import reverse_kl
from posttrain.algorithms.distillation import DistillConfig, DistillObjective
from posttrain.algorithms.objective import Objective
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import TrainingError
from posttrain.models.adapters import LoraOptions, share_tensors
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.loading import with_scalar_head
from posttrain.models.files.store import new_model
from posttrain.models.forward.activations import Activations, set_activations
from posttrain.models.lora import add, freeze
from posttrain.models.master_weights import frozen_on, master_of
from posttrain.models.memory import decoding_bytes, draw_bytes, waiting_bytes
from posttrain.rollout import token_rows
from posttrain.sampling.builtin import sample_next
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.stops import Stops
from posttrain.train.estimate import check_memory, explained_out_of_memory, most_tokens, training_parts
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.optimizer import AdamW, OptimizerParams
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.tiny import sample, tiny_model
from tests.pipeline.train.live import LiveBytes
from tests.pipeline.train.test_training import settings_of

SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 2}),
    ("llama", {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
               "tie_word_embeddings": False}),
    ("qwen3", {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 6, "num_key_value_heads": 6,
               "tie_word_embeddings": False}),
]  # fmt: skip
"""Dense and grouped, tied and untied; the heads together are wider or narrower than the hidden size."""
ROWS, LENGTH, LAYERS = 8, 64, 4
SLOW = partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the head's tiles would take more than the models."""
    for module in ("posttrain.models.forward.logp", "posttrain.train.estimate"):
        monkeypatch.setattr(f"{module}.TILE_BYTES", 2**18)


def runtime(precision: str) -> Runtime:
    return Runtime(DeviceParams(device="cpu", precision=precision, threads=1))  # type: ignore[arg-type]


def model_of(family: str, shape: dict[str, Any]) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    assert shape["num_attention_heads"] * 32 != shape["hidden_size"]
    return new_model(
        CONFIG_MAPPING[family](**{"vocab_size": 1000, "num_hidden_layers": LAYERS, "head_dim": 32, **shape}), 0
    )


def by_tiles(model: Callable[[], Any]) -> tuple[Objective, dict[str, Any]]:
    return LikelihoodObjective(LikelihoodConfig()), {"policy": model()}


def by_autograd(model: Callable[[], Any]) -> tuple[Objective, dict[str, Any]]:
    return PreferenceObjective(PREFERENCE_ROWS["dpo"].settings()), {"policy": model(), "reference": model()}


def with_critic(model: Callable[[], Any]) -> tuple[Objective, dict[str, Any]]:
    return settings_of("ppo").objective(), {"policy": model(), "critic": with_scalar_head(model(), "test")}


def with_teacher(model: Callable[[], Any]) -> tuple[Objective, dict[str, Any]]:
    return DistillObjective(DistillConfig()), {"policy": model(), "teachers": [Teacher(model(), reverse_kl)]}


def with_scores(model: Callable[[], Any]) -> tuple[Objective, dict[str, Any]]:
    return RewardObjective(RewardConfig()), {"policy": with_scalar_head(model(), "test")}


def with_lora(model: Callable[[], Any]) -> tuple[Objective, dict[str, Any]]:
    frozen, options = model(), LoraOptions(rank=8)
    freeze(frozen, options)
    reference = share_tensors(frozen)
    policy = add(frozen, options, Path(), 0)
    return PreferenceObjective(PREFERENCE_ROWS["dpo"].settings()), {"policy": policy, "reference": reference}


def peak_of_a_step(objective: Objective, models: ModelSet) -> int:
    """The bytes of all tensors at the fullest moment of a second step, when AdamW has its moments."""
    rows = token_rows([[1]] * ROWS, [[2] * (LENGTH - 1)] * ROWS)
    count = ROWS * (LENGTH - 1)
    columns = {
        "side": torch.tensor([1.0, -1.0] * (ROWS // 2)), "margin": torch.zeros(ROWS), "reward": torch.rand(ROWS),
        "truncated": torch.zeros(ROWS, dtype=torch.bool), "group": torch.arange(ROWS) // 4,
        "age": torch.zeros(ROWS, dtype=torch.long),
    }  # fmt: skip
    known = {name: torch.full((count,), -1.0) for name in ("old_logp", "ref_logp", "old_value")}
    pairs = torch.arange(ROWS) // 2 if "side" in objective.needs else None
    batch = make_batch(rows, columns, known, pairs)
    prepared = objective.prepare(batch.columns, objective.initial_state())
    step = StepClosure(objective, models, batch.with_prepared(prepared.step), state=prepared.state)
    update = AdamW({name: (model, 1e-3) for name, model in models.trained.items()}, OptimizerParams(), 4)
    teachers = [teacher.model for teacher in models.teachers]
    every = [one for one in (models.policy, models.reference, models.critic, *teachers) if one is not None]
    there = [part for model in every for part in (*model.parameters(), *model.buffers())]
    with LiveBytes([*there, *map(master_of, there)]) as live:
        update.step(step, 0.0)
        live.most = live.now
        update.step(step, 0.0)
    return live.most


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["keep", "selective", "recompute"])
@pytest.mark.parametrize("passes", [SLOW(1), 2])
@pytest.mark.parametrize("precision", ["fp32", SLOW("bf16")])
@pytest.mark.parametrize("kind", [by_tiles, by_autograd, with_critic, with_teacher, with_scores, with_lora])
@pytest.mark.parametrize(("family", "shape"), [SHAPES[0], *(SLOW(*one) for one in SHAPES[1:])])
def test_a_step_takes_what_is_said_within_a_tenth(
    family: str, shape: dict[str, Any], kind: Any, precision: str, passes: int, activations: Activations
) -> None:
    """Weights, gradients, moments, copies, activations and the head's tiles, on both loss paths."""
    objective, named = kind(lambda: model_of(family, shape))
    models = ModelSet(runtime=runtime(precision), micro_tokens=ROWS * LENGTH // passes, **named)
    for model in models.trained.values():
        set_activations(model, activations)
        model.train()
    said = sum(training_parts(models, ROWS * LENGTH, activations).values())
    assert said / 1.1 < peak_of_a_step(objective, models) < said * 1.1


def test_processes_share_the_activations_of_a_step() -> None:
    """Each takes its even share, and never more than a pass takes."""
    models = ModelSet(tiny_model(), Runtime(DeviceParams(device="cpu")), micro_tokens=16_384)
    alone, shared = (training_parts(models, 16_000, "keep", 8, processes=count) for count in (1, 8))
    assert 0.12 < shared["activations"] / alone["activations"] < 0.13
    assert training_parts(models, 10**6, "keep", 8, processes=8)["activations"] > alone["activations"]


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, None), (1.0, 50), (0.9, 50), (0.9, None)])
def test_a_draw_takes_what_is_said_within_a_tenth(top_p: float, top_k: int | None) -> None:
    logits, draw_R = torch.randn(8, 5000), torch.rand(8, dtype=torch.float64)
    said = logits.numel() * draw_bytes(top_p, top_k)
    with torch.inference_mode(), LiveBytes([logits]) as live:
        sample_next(logits, draw_R, top_p, top_k)
    assert said / 1.1 < live.most < said * 1.1


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", SLOW("bf16")])
@pytest.mark.parametrize(("prompt", "most", "samples"), [(16, 64, 8), (400, 8, 1)], ids=["completions", "prompts"])
@pytest.mark.parametrize(("family", "shape"), [SHAPES[0], *(SLOW(*one) for one in SHAPES[1:])])
def test_decoding_takes_what_is_said_within_a_tenth(
    family: str, shape: dict[str, Any], prompt: int, most: int, samples: int, precision: str
) -> None:
    """Keys and values, copies of weights, and a step's distributions or a prefill, whichever is larger."""
    model, prompts = frozen_on(model_of(family, shape), runtime(precision)), [[1 + i] * prompt for i in range(8)]
    with LiveBytes((*model.parameters(), *model.buffers())) as live:
        before = live.now
        sample(
            model, prompts, list("abcdefgh"), n=samples, params=SamplingParams(max_tokens=most), seed=0,
            stop=Stops((), str), device=runtime(precision),
        )  # fmt: skip
    said = sum(decoding_bytes(model, 8 * samples, 8, prompt, most, bf16=precision == "bf16"))
    assert said / 1.1 < live.most - before < said * 1.1


def test_a_step_needs_memory_for_its_own_tokens_alone() -> None:
    models = ModelSet(tiny_model(), Runtime(DeviceParams(device="cpu")), micro_tokens=16_384)
    one, two, all_of_them = (training_parts(models, tokens, "keep")["activations"] for tokens in (100, 200, 10**9))
    assert two - one == 100 * waiting_bytes(models.policy, "keep", bf16=False)
    assert all_of_them - one == (16_384 - 100) * waiting_bytes(models.policy, "keep", bf16=False)


def test_only_what_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A step that may be too large is tried, with a warning: steps have fewer tokens than the most."""
    models = ModelSet(tiny_model(), Runtime(DeviceParams(device="cpu")))
    parts = training_parts(models, 10**6, "keep")
    least, most = parts["gradients"] + parts["moments"], sum(parts.values()) - parts["weights"]
    for free, warned in ((most, False), (most - 1, True), (least, True)):
        monkeypatch.setattr("posttrain.train.estimate.free_bytes", lambda _, free=free: free)
        check_memory(models, 10**6, "keep", 1.0, "sft@main")
        assert ("may run out of memory" in capsys.readouterr().err) == warned
    monkeypatch.setattr("posttrain.train.estimate.free_bytes", lambda _: least - 1)
    with pytest.raises(TrainingError, match="at least"):
        check_memory(models, 10**6, "keep", 1.0, "sft@main")
    check_memory(models, 10**6, "keep", None, "sft@main")


def test_out_of_memory_names_first_what_continues_from_a_checkpoint() -> None:
    models = ModelSet(tiny_model(), Runtime(DeviceParams(device="cpu")))
    advice = r"Set activations: .* lower micro_tokens, .* It continues from its last checkpoint only if"
    with pytest.raises(TrainingError, match=advice), explained_out_of_memory(models, 100, "keep", "sft@main"):
        raise MemoryError


def test_the_most_tokens_are_those_of_the_longest_items() -> None:
    sizes = [12, 4, 8]
    assert most_tokens(sizes, 1) == 12
    assert most_tokens(sizes, 2) == 12 + 8
    assert most_tokens(sizes, 50) == 12 + 8 + 4


def test_a_model_without_attention_heads_is_estimated() -> None:
    """State space models have none in their config; their runs must start all the same."""
    from transformers.models.mamba.configuration_mamba import MambaConfig

    model = new_model(MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, state_size=4), 0)
    parts = training_parts(ModelSet(model, runtime("fp32")), 64, "keep")
    assert parts["activations"] > 0 and parts["weights"] == sum(part.nbytes for part in model.parameters())
