"""The models of a run and the columns that they compute."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.errors import ModelError
from posttrain.formulas.distill import forward_kl
from posttrain.formulas.ragged import Ragged
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy, scorer_of
from posttrain.models.forward.forward import score_rows, value_tokens
from posttrain.models.forward.logp import Head
from posttrain.rollout import TokenRow, token_rows
from posttrain.text.packing import pack
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet, Teacher, on_device
from posttrain.train.step import Batch, make_batch
from tests.library.models.tiny import plain_logps, random_rows, tiny_folder, tiny_model

DEVICE = DeviceParams(device="cpu", threads=1)
CPU = Runtime(DEVICE)
PROMPTS, COMPLETIONS = random_rows(5)
ROWS = token_rows(PROMPTS, COMPLETIONS)
NONE = frozenset[str]()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models"))


def batch() -> Batch:
    return make_batch(ROWS)


def settings(**given: Any) -> TrainingParams:
    return TrainingParams(device=DEVICE, **given)


def logits(model: Any, row: TokenRow) -> Tensor:
    """The log-probs [M, V] before each token of a row's completion, by transformers' own path."""
    was = model.config._attn_implementation
    model.set_attn_implementation("eager")
    ids = [*row.prompt, *row.rest]
    with torch.no_grad():
        found: Tensor = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
    model.set_attn_implementation(was)
    return found[len(row.prompt) - 1 : len(ids) - 1]


def every(model: Any) -> Tensor:
    return torch.cat([logits(model, row) for row in ROWS])


def test_models_that_an_objective_needs(folder: Path) -> None:
    alone = ModelSet.load(CPU, folder, NONE, settings(), temperature=0.5)
    assert (alone.reference, alone.critic, alone.old, alone.temperature, alone.folder) == (
        None,
        None,
        None,
        0.5,
        folder,
    )
    models = ModelSet.load(CPU, folder, frozenset({"ref_logp", "value", "kl_old"}), settings(micro_tokens=64))
    assert models.micro_tokens == 64 and [*models.trained] == ["policy", "critic"]
    for frozen in (models.reference, models.old):
        assert frozen is not None and not any(part.requires_grad for part in frozen.parameters())
    assert models.critic is not None and models.critic.score.weight.requires_grad
    scorer = ModelSet.load(CPU, folder, frozenset({"score"}), settings())
    assert type(scorer.policy).__name__ == "Qwen3ForSequenceClassification"


def test_a_critic_may_start_from_a_reward_model(folder: Path, tmp_path: Path) -> None:
    scorer = scorer_of(load_policy(folder), "test")
    scorer.score.weight.data.fill_(0.25)
    scorer.save_pretrained(tmp_path)

    class Started(TrainingParams):
        @property
        def critic_start(self) -> Path | None:
            return tmp_path

    models = ModelSet.load(CPU, folder, frozenset({"value"}), Started(device=DEVICE))
    assert models.critic is not None and bool((models.critic.score.weight == 0.25).all())


def test_an_adapter_shares_the_frozen_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = settings(adapter={"type": "lora", "rank": 2})
    models = ModelSet.load(CPU, folder, frozenset({"ref_logp", "value"}), given)
    name = "model.layers.0.mlp.up_proj"
    frozen = models.policy.get_submodule(name).base_layer.weight
    assert models.reference is not None and models.reference.get_submodule(name).weight is frozen
    assert models.critic is not None and models.critic.get_submodule(name).base_layer.weight is frozen
    trained = models.trained_parameters()
    assert {one.split(".")[0] for one in trained} == {"policy", "critic"} and "critic.score.weight" in trained
    count = sum(part.numel() for one, part in trained.items() if one.startswith("policy."))
    assert capsys.readouterr().out.startswith(f"adapter: {count:,} weights are trained, ")
    own = models.own_parameters(models.critic)
    assert own and not any("base_layer" in one for one in own)


def test_whole_models_are_not_divided() -> None:
    models = ModelSet(tiny_model(), CPU)
    assert models.sharded is False and models.divided_by == 1 and models.gather_on_rank_zero() is models
    names = {f"policy.{name}" for name, _ in models.policy.named_parameters()}
    assert models.trained_parameters().keys() == names and models.own_parameters(tiny_model()).keys() == {
        name.removeprefix("policy.") for name in names
    }
    assert models.own_parameters(models.policy) == {}


def test_micro_batches_fit_and_hold_all_rows() -> None:
    models = ModelSet(tiny_model(), CPU, micro_tokens=max(map(len, ROWS)))
    parts = list(models.micro_batches(batch()))
    assert len(parts) > 1 and sorted(tuple(row.rest) for part in parts for row in part.rows) == sorted(
        tuple(row.rest) for row in ROWS
    )
    (whole,) = ModelSet(tiny_model(), CPU).micro_batches(batch())
    assert len(whole) == 5


def test_the_columns_of_a_forward_pass() -> None:
    models = ModelSet(tiny_model(), CPU, critic=scorer_of(tiny_model(1), "test"))
    models.critic.score.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    wanted = plain_logps(models.policy, PROMPTS, COMPLETIONS)
    plain = models.forward(batch(), NONE)
    assert_close(plain.tokens["logp"], wanted, atol=1e-5, rtol=0)
    assert "entropy" not in plain.tokens and plain.tokens["logp"].requires_grad
    found = models.forward(batch(), frozenset({"entropy", "value"}), models.packed(batch()))
    logp_MV = every(models.policy)
    assert_close(found.tokens["entropy"], -(logp_MV.exp() * logp_MV).sum(-1), atol=1e-4, rtol=0)
    assert_close(found.tokens["value"], value_tokens(models.critic, pack(ROWS)))
    scorer = ModelSet(models.critic, CPU)
    assert_close(scorer.forward(batch(), frozenset({"score"})).rows["score"], score_rows(models.critic, pack(ROWS)))


def test_divergences_from_the_old_policy_and_from_teachers() -> None:
    old, policy = tiny_model(1), tiny_model()
    models = ModelSet(policy, CPU, old=old)
    mine, theirs = every(policy), every(old)
    kl = (theirs.exp() * (theirs - mine)).sum(-1)
    assert_close(models.forward(batch(), frozenset({"kl_old"})).tokens["kl_old"], kl, atol=1e-4, rtol=0)
    teacher = Teacher(old, forward_kl, share=0.25)
    assert_close(
        ModelSet(policy, CPU, teachers=[teacher]).forward(batch(), NONE).tokens["teacher_kl"], kl / 4, atol=1e-4, rtol=0
    )
    both = ModelSet(policy, CPU, teachers=[teacher, Teacher(policy, forward_kl, share=0.75)])
    assert_close(both.forward(batch(), NONE).tokens["teacher_kl"], kl / 4, atol=1e-4, rtol=0)


def test_a_teacher_may_read_another_prompt_or_be_served() -> None:
    policy = tiny_model()
    prompts = {tuple(row.prompt): [7, *row.prompt] for row in ROWS}
    context = ModelSet(policy, CPU, teachers=[Teacher(policy, forward_kl, prompts)])
    mine = every(policy)
    theirs = torch.cat([logits(policy, TokenRow([7, *row.prompt], row.rest)) for row in ROWS])
    kl = (theirs.exp() * (theirs - mine)).sum(-1)
    assert_close(context.forward(batch(), NONE).tokens["teacher_kl"], kl, atol=1e-4, rtol=0)
    other = every(tiny_model(1))
    top, ids = other.topk(3)

    def served(rows: Any) -> tuple[Tensor, Tensor]:
        assert [row.rest for row in rows] == [row.rest for row in ROWS]
        return ids, top

    found = ModelSet(policy, CPU, teachers=[Teacher(None, forward_kl, served=served)]).forward(batch(), NONE)
    q, p = top.exp(), mine.gather(1, ids).exp()
    q, p = (torch.cat([part, 1 - part.sum(-1, keepdim=True)], -1) for part in (q, p))
    assert_close(found.tokens["teacher_kl"], (q * (q.log() - p.log())).sum(-1), atol=1e-4, rtol=1e-4)


def test_the_head_is_a_matrix_or_a_module() -> None:
    models = ModelSet(tiny_model(), CPU)
    assert isinstance(models.head(models.policy), Head) == CPU.fused


def test_the_columns_that_prepare_needs() -> None:
    policy, reference, critic = tiny_model(), tiny_model(1), scorer_of(tiny_model(2), "test")
    critic.score.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    models = ModelSet(policy, CPU, reference, critic, micro_tokens=64)
    policy.train()
    needs = frozenset({"ref_logp", "step_start_logp", "step_start_entropy", "value"})
    found = models.add_scored_columns(batch(), needs).columns.tokens
    assert found.keys() == {"ref_logp", "step_start_logp", "step_start_entropy", "old_value"} and not policy.training
    assert_close(found["ref_logp"], plain_logps(reference, PROMPTS, COMPLETIONS), atol=1e-5, rtol=0)
    assert_close(found["step_start_logp"], plain_logps(policy, PROMPTS, COMPLETIONS), atol=1e-5, rtol=0)
    logp_MV = every(policy)
    assert_close(found["step_start_entropy"], -(logp_MV.exp() * logp_MV).sum(-1), atol=1e-4, rtol=0)
    assert_close(found["old_value"], value_tokens(critic, pack(ROWS)), atol=1e-5, rtol=0)
    given = make_batch(ROWS, None, {"ref_logp": torch.zeros_like(found["ref_logp"])})
    assert not models.add_scored_columns(given, frozenset({"ref_logp"})).columns.tokens["ref_logp"].any()


def test_the_policy_is_copied_or_averaged() -> None:
    policy, frozen = tiny_model(), tiny_model(1)
    models, before = ModelSet(policy, CPU, frozen), copy.deepcopy(frozen)
    models.copy_policy(frozen, keep=0.75)
    for mine, old, new in zip(frozen.parameters(), before.parameters(), policy.parameters(), strict=True):
        assert_close(mine, 0.75 * old + 0.25 * new)
    models.copy_policy(frozen)
    assert all(torch.equal(*pair) for pair in zip(frozen.parameters(), policy.parameters(), strict=True))
    half = ModelSet(tiny_model().bfloat16(), CPU, tiny_model().bfloat16())
    with pytest.raises(ModelError, match="an average of bfloat16 weights would not change"):
        half.copy_policy(half.reference, keep=0.5)


def test_columns_move_to_a_device() -> None:
    columns = Ragged(torch.tensor([1, 2]), {"row": torch.arange(2)}, {"logp": torch.ones(3)}, torch.tensor([0, 0]))
    assert on_device(columns, torch.device("cpu")) is columns
    moved = on_device(columns, torch.device("meta"))
    assert moved.rows["row"].is_meta and moved.tokens["logp"].is_meta and moved.item_B is not None
