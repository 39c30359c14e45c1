"""The optimizer's choices: Muon on the layers' matrices, and weights that end as a mean."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.errors import ParamsError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_scorer, save_model
from posttrain.pipeline.runs.online import ONLINE
from posttrain.settings.params import check
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams
from tests.library.models.tiny import tiny_folder, tiny_model

STEPS = 6


def gradients(model: Any, step: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(step)
    return {name: torch.randn(part.shape, generator=draw) for name, part in model.named_parameters()}


def trained(steps: int = STEPS, **settings: Any) -> tuple[Any, list[dict[str, Tensor]]]:
    """A model after some steps along fixed gradients, and its weights before the first step and after each."""
    model = tiny_model()
    params = OptimizerParams(lr=1e-3, schedule="constant", warmup=0.0, clip=1e9, **settings)
    update = AdamW({"policy": (model, params.lr)}, params, STEPS)

    def copied() -> dict[str, Tensor]:
        return {name: part.detach().clone() for name, part in model.named_parameters()}

    seen = [copied()]
    for step in range(steps):

        def totals(step: int = step) -> dict[str, Tensor]:
            for name, gradient in gradients(model, step).items():
                model.get_parameter(name).grad = gradient
            return {}

        closure: Any = SimpleNamespace(totals=totals)
        update.step(closure, step / STEPS)
        seen.append(copied())
    return model, seen


def is_of_a_layer(name: str, part: Tensor) -> bool:
    return ".layers." in name and part.dim() == 2


def test_muons_step_is_the_gradient_with_equal_singular_values() -> None:
    model, (before, after, *_) = trained(1, matrices="muon")
    own, checked = gradients(model, 0), 0
    for name, part in model.named_parameters():
        if not is_of_a_layer(name, part):
            continue
        moved = (before[name] - after[name]).double()
        left, sizes, right = torch.linalg.svd(own[name].double(), full_matrices=False)
        inside = left.T @ moved @ right.T / (1e-3 * 0.2 * max(part.shape) ** 0.5)
        strong = sizes > 0.2 * sizes[0]  # five steps of Newton and Schulz leave the smallest behind
        diagonal = inside.diagonal()
        assert bool(((diagonal[strong] > 0.6) & (diagonal[strong] < 1.3)).all()), (name, diagonal)
        assert float((inside - inside.diagonal().diag()).abs().max()) < 0.1, "other directions than the gradient's"
        checked += 1
    assert checked >= 4


def test_muon_leaves_tokens_and_vectors_to_adamw() -> None:
    _, muon = trained(matrices="muon")
    model, plain = trained()
    for name, part in model.named_parameters():
        same = torch.equal(muon[-1][name], plain[-1][name])
        assert same != is_of_a_layer(name, part), name


@pytest.mark.parametrize("matrices", ["adamw", "muon"])
def test_the_run_ends_with_the_mean_of_the_last_weights(matrices: str) -> None:
    _, plain = trained(matrices=matrices)
    _, averaged = trained(matrices=matrices, average=0.5)
    for name in plain[0]:
        expected = torch.stack([weights[name].double() for weights in plain[4:]]).mean(0)
        torch.testing.assert_close(averaged[-1][name].double(), expected, rtol=1e-5, atol=1e-7, msg=name)
        assert all(torch.equal(averaged[nth][name], plain[nth][name]) for nth in range(STEPS)), "it changed the run"


def test_a_run_cut_short_keeps_its_last_weights() -> None:
    _, averaged = trained(STEPS - 1, average=0.5)
    _, plain = trained(STEPS - 1)
    assert all(torch.equal(averaged[-1][name], plain[-1][name]) for name in plain[0])


@pytest.mark.parametrize("other", [{"processes": 2}, {"adapter": "lora"}])
def test_muon_needs_whole_matrices(other: dict[str, Any]) -> None:
    with pytest.raises(ParamsError, match="it needs whole matrices"):
        check(TrainingParams, {"optimizer": {"matrices": "muon"}, **other}, where="sft.runs.a")


def test_only_the_critic_learns_at_first() -> None:
    policy, critic = tiny_model(), tiny_model()
    params = OptimizerParams(lr=1e-3, schedule="constant", warmup=0.0, weight_decay=0.1, critic_first=0.5)
    update = AdamW({"policy": (policy, 1e-3), "critic": (critic, 1e-3)}, params, STEPS)
    moved = []
    for step in range(STEPS):
        before = [[part.detach().clone() for part in model.parameters()] for model in (policy, critic)]

        def totals(step: int = step) -> dict[str, Tensor]:
            for model in (policy, critic):
                for name, gradient in gradients(model, step).items():
                    model.get_parameter(name).grad = gradient
            return {}

        closure: Any = SimpleNamespace(totals=totals)
        update.step(closure, step / STEPS)
        pairs = zip((policy, critic), before, strict=True)
        moved.append([not all(map(torch.equal, model.parameters(), old)) for model, old in pairs])
    assert moved == [[False, True]] * 3 + [[True, True]] * 3


class FromAJudge(TrainingParams):
    """Those of a run whose critic starts from a reward model."""

    @property
    def critic_start(self) -> Path | None:
        return JUDGE[0]


JUDGE: list[Path] = []


def test_the_critic_starts_from_a_reward_model(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    scorer = load_scorer(folder)
    torch.nn.init.normal_(scorer.score.weight)
    save_model(scorer, tmp_path / "judge", folder)
    JUDGE[:] = [tmp_path / "judge"]
    runtime = Runtime(DeviceParams(device="cpu", threads=1))
    models = ModelSet.load(runtime, folder, frozenset({"value", "ref_logp"}), FromAJudge())
    assert models.critic is not None and models.reference is not None
    assert all(map(torch.equal, models.critic.parameters(), scorer.parameters()))
    assert all(map(torch.equal, models.policy.parameters(), models.reference.parameters()))
    plain = ModelSet.load(runtime, folder, frozenset({"value"}), TrainingParams())
    assert plain.critic is not None and not plain.critic.score.weight.any(), "a new head starts at 0"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"critic": "reward_model"}, "set reward_model to a model"),
        ({"algorithm": "grpo", "critic": "reward_model", "reward_model": "reward/main"}, "with a critic, e.g. ppo"),
        ({"critic": "reward_model", "reward_model": "reward/main", "adapter": "lora"}, "shares the policy's weights"),
        ({"algorithm": "grpo", "optimizer": {"critic_first": 0.1}}, "has no critic, so nothing would be learned"),
    ],
)
def test_a_critic_that_is_not_there_is_refused(settings: dict[str, Any], said: str) -> None:
    given = {"algorithm": "ppo", "start": "sft/main", "data": "mine/prompts", "corpus": "none", "reward_model": "none"}
    row = ONLINE[str(settings.get("algorithm", "ppo"))]
    reward = {"reward": {"correct": 1.0, "model": 1.0}} if "reward_model" in settings else {}
    with pytest.raises(ParamsError, match=said):
        check(row.model, row.row.merged({**given, **reward, **settings}), where="online.runs.a")


def test_a_run_without_a_critic_may_not_wait_for_it() -> None:
    with pytest.raises(ParamsError, match="has no critic, so nothing would be learned"):
        check(TrainingParams, {"optimizer": {"critic_first": 0.5}}, where="sft.runs.a")


@pytest.mark.parametrize("settings", [{}, {"matrices": "muon"}, {"average": 0.5}])
def test_a_state_comes_back_and_a_tensor_of_no_weight_is_refused(settings: dict[str, Any]) -> None:
    model = tiny_model()
    params = OptimizerParams(lr=1e-3, **settings)
    update = AdamW({"policy": (model, params.lr)}, params, STEPS)
    for name, gradient in gradients(model, 0).items():
        model.get_parameter(name).grad = gradient
    for optimizer in update._optimizers.values():
        optimizer.step()
    state = update.state_dict()
    update.load_state_dict(state)
    name = next(iter(state))
    with pytest.raises(ValueError, match="belongs to no trained weight"):
        update.load_state_dict({**state, f"{name}.more": state[name]})
