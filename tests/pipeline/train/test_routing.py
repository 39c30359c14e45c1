"""Routing replay: each token keeps the experts that it had when its round began, whatever the weights do since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.errors import ModelError, ParamsError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_tokenizer, new_model, save_model
from posttrain.models.forward.forward import run_in_rows, score_tokens
from posttrain.models.forward.routers import find_routers
from posttrain.pipeline.params.named_runs import typed_run
from posttrain.pipeline.runs.online import ONLINE
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.model_set import ModelSet
from posttrain.train.routing import ReplayParams, Routers, routers_of, with_experts
from posttrain.train.step import Batch, StepClosure
from tests.library.models.families import EVERY, SHAPE
from tests.library.models.tiny import TEXTS, tiny_model
from tests.pipeline.train.test_routers import MIXTURES, mixture, nine_rows
from tests.pipeline.train.test_training import cut_and_whole, make_run

CPU = Runtime(DeviceParams(device="cpu", threads=1))
REPLAY = ReplayParams(replay=True, balance=0.0)
SIZE = 2e-3
"""Of the step of a finite difference: the router's own softmax is in float32."""


def routers(model: Any) -> list[Any]:
    return [*find_routers(model)]


def moved(model: Any, scale: float, seed: int = 1) -> Any:
    """The model after a step that turns many choices of its routers."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for router in routers(model):
            router.weight += scale * torch.randn(router.weight.shape, generator=draw).to(router.weight.dtype)
    return model


def step_of(models: ModelSet, batch: Batch, *, replays: bool = True) -> StepClosure:
    objective = PolicyObjective(POLICY_ROWS["grpo"].settings(kl="none"), 14)
    step = replace(objective.prepare(batch.columns, objective.initial_state()).step, item_B=None)
    watched = routers_of(models.policy, ReplayParams(replay=replays, balance=0.0), "test")
    return StepClosure(objective, models, batch.with_prepared(step), watched, objective.initial_state())


def chosen(models: ModelSet, batch: Batch) -> tuple[Tensor, Tensor]:
    """The experts that are computed with, and the log-probs of the trained tokens."""
    packed = models.packed(batch)
    with Routers(models.policy, find_routers(models.policy)).record(packed) as recording, torch.no_grad():
        logps, _ = score_tokens(models.policy, packed, entropy=False)
    return recording.experts(), logps


@pytest.mark.parametrize("micro_tokens", [100_000, 64], ids=["whole", "micro-batches"])
def test_at_the_weights_of_the_round_replay_changes_no_bit(micro_tokens: int) -> None:
    models = ModelSet(mixture(), CPU, micro_tokens=micro_tokens)
    batch = nine_rows()
    replayed = with_experts(models, batch)
    assert all(len(row.experts) == len(row) for row in replayed.rows if row.experts is not None)
    for own, kept in zip(chosen(models, batch), chosen(models, replayed), strict=True):
        torch.testing.assert_close(own, kept, rtol=0, atol=1e-6)
    found = step_of(models, replayed)()
    assert found["router_moved"] == 0
    gradients = {name: part.grad.clone() for name, part in models.policy.named_parameters()}
    models.policy.zero_grad()
    plain = step_of(models, batch, replays=False)()
    assert "router_moved" not in plain and found["loss"] == pytest.approx(plain["loss"], abs=1e-6)
    for name, part in models.policy.named_parameters():
        torch.testing.assert_close(part.grad, gradients[name], rtol=1e-4, atol=1e-7, msg=name)


@pytest.mark.parametrize("name", sorted({*MIXTURES, "llama4_text"} - {"phimoe"}))
def test_every_family_keeps_its_experts_after_its_routers_moved(name: str) -> None:
    models = ModelSet(mixture(name), CPU)
    for router in routers(models.policy):
        router.top_k = min(router.top_k, 2)
    batch = with_experts(models, nine_rows())
    before, _ = chosen(models, nine_rows())
    moved(models.policy, 1.0)
    after, own = chosen(models, nine_rows())
    assert not torch.equal(before.sort(-1).values, after.sort(-1).values), "the step turns choices"
    kept, logps = chosen(models, batch)
    assert torch.equal(kept.sort(-1).values, before.sort(-1).values)
    assert float((logps - own).abs().max()) > 1e-4
    share = step_of(models, batch)()["router_moved"]
    assert 0 < share <= 1


def test_the_share_of_moved_choices_is_what_is_counted() -> None:
    models = ModelSet(mixture(), CPU)
    batch = with_experts(models, nine_rows())
    before, _ = chosen(models, nine_rows())
    moved(models.policy, 0.5)
    after, _ = chosen(models, nine_rows())
    packed = models.packed(batch)
    weight_N = packed.rows_per_token()
    with Routers(models.policy, find_routers(models.policy)).record(packed) as recording, torch.no_grad():
        score_tokens(models.policy, packed, entropy=False)
    gone_N = (after[:, 0, :, None] != before[:, 0, None]).all(-1).sum(1).float()  # nothing moves before layer 0
    moved_L = recording.sums().moved_L
    assert float(moved_L[0]) == float(weight_N @ gone_N) > 0
    choices = float(weight_N.sum()) * after.shape[1] * after.shape[2]
    assert step_of(models, batch)()["router_moved"] == pytest.approx(float(moved_L.sum()) / choices, rel=1e-5)


def test_the_gradient_is_that_of_the_loss_with_fixed_experts() -> None:
    """A finite difference over a step of the routers, after a step that turned their choices."""
    models = ModelSet(mixture().double(), Runtime(DeviceParams(device="cpu", threads=1), fused=False))
    models.policy.set_experts_implementation("eager")  # the others do not multiply float64
    batch = with_experts(models, nine_rows())
    moved(models.policy, 0.3)
    closure = step_of(models, batch)
    closure()
    weights: list[Any] = [router.weight for router in routers(models.policy)]
    draw = torch.Generator().manual_seed(5)
    ways = [torch.randn(weight.shape, generator=draw).double() for weight in weights]
    slope = sum(float((weight.grad * way).sum()) for weight, way in zip(weights, ways, strict=True))

    @torch.no_grad()
    def at(size: float) -> float:
        for weight, way in zip(weights, ways, strict=True):
            weight += size * way
        loss = closure.loss()
        for weight, way in zip(weights, ways, strict=True):
            weight -= size * way
        return loss

    assert abs(slope) > 1e-4
    assert (at(SIZE) - at(-SIZE)) / (2 * SIZE) == pytest.approx(slope, rel=2e-3)


def test_a_round_in_a_checkpoint_has_its_experts() -> None:
    models = ModelSet(mixture(), CPU)
    batch = with_experts(models, nine_rows())
    again = Batch.from_tensors(batch.tensors())
    for row, other in zip(batch.rows, again.rows, strict=True):
        assert row.experts is not None and other.experts is not None and torch.equal(row.experts, other.experts)
    assert "experts" not in nine_rows().tensors()


def test_rows_without_experts_choose_their_own() -> None:
    """Pretraining text next to samples."""
    models = ModelSet(mixture(), CPU)
    batch = with_experts(models, nine_rows())
    spans = models.packed(batch).spans
    other = next(row for row in range(3, 9) if spans[row][0] != spans[row - 1][0])  # the first with another prompt
    mixed = replace(batch, rows=[*batch.rows[:other], *nine_rows().rows[other:]])
    moved(models.policy, 1.0)
    free, _ = chosen(models, nine_rows())
    found, _ = chosen(models, mixed)
    first = spans[other][0]
    assert torch.equal(found[first:], free[first:]) and not torch.equal(found[:first], free[:first])


def test_the_policys_log_probs_of_a_round_are_those_with_the_experts_of_its_samples() -> None:
    models = ModelSet(mixture(), CPU, reference=mixture())
    batch = with_experts(models, nine_rows())
    moved(models.policy, 1.0)
    assert with_experts(models, batch) is batch, "those that samples came with are kept"
    needs = frozenset({"ref_logp", "recomputed_logp"})
    found, plain = (models.add_scored_columns(part, needs).columns.tokens for part in (batch, nine_rows()))
    torch.testing.assert_close(found["recomputed_logp"], chosen(models, batch)[1], rtol=0, atol=1e-6)
    assert float((found["recomputed_logp"] - plain["recomputed_logp"]).abs().max()) > 1e-4
    assert torch.equal(found["ref_logp"], plain["ref_logp"]), "other models choose their own"


def test_what_cannot_be_replayed_is_refused() -> None:
    run: dict[str, Any] = {
        "algorithm": "grpo", "start": "sft/main", "data": "two_step/prompts", "corpus": "none", "reward_model": "none",
        "router": {"replay": True},
    }  # fmt: skip
    typed_run(run, "online.runs.test", ONLINE)
    for wrong in ({"activations": "recompute"}, {"compile": True}, {"algorithm": "clip_cov"}):
        with pytest.raises(ParamsError, match=r"router\.replay = true: "):
            typed_run({**run, **wrong}, "online.runs.test", ONLINE)
    with pytest.raises(
        ParamsError,
        match=r"router\.replay = true is set for online@grpo, but its model has no "
        r"routers",
    ):
        routers_of(tiny_model(), REPLAY, "online@grpo")
    model = mixture()
    run_in_rows(model)
    with pytest.raises(ParamsError, match="cannot run packed"):
        routers_of(model, REPLAY, "online@grpo")


def test_a_router_that_does_not_ask_for_the_likeliest_is_named() -> None:
    """Phi's routers take the largest twice, and leave out what is near the first."""
    models = ModelSet(mixture("phimoe"), CPU)
    with pytest.raises(ModelError, match=r"PhimoeTopKRouter: its routers do not choose by topk"):
        chosen(models, with_experts(models, nine_rows()))


def mixture_folder(path: Path) -> Path:
    """A folder with a small mixture and a tokenizer that fits."""
    tokens = path / "tokenizer"
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), tokens)
    words = len(ChatText(load_tokenizer(tokens)).tokenizer)
    config = CONFIG_MAPPING["qwen3_moe"](**{**SHAPE, **EVERY["qwen3_moe"], "vocab_size": words})
    save_model(new_model(config, 0), path / "model", tokens)
    return path / "model"


def test_the_experts_are_those_of_the_sampler_and_a_cut_run_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The built-in engine's log-probs are those of the replayed forward pass, at the first step of a round."""
    folder = mixture_folder(tmp_path)
    run = make_run(folder, "experts", tmp_path)
    batch = run.source.batch(0)
    assert all(row.experts is not None for row in batch.rows)
    packed = run.models.packed(batch)
    with Routers(run.models.policy, find_routers(run.models.policy)).record(packed), torch.no_grad():
        logps, _ = score_tokens(run.models.policy, packed, entropy=False)
    assert float((logps - batch.columns.tokens["old_logp"]).abs().max()) < 1e-4
    cut_and_whole("experts", folder, tmp_path, monkeypatch)
