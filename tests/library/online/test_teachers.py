"""Several teachers of one run, and a teacher next to a reward: what is minimised, held against definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.distill.reverse_kl import reverse_kl
from posttrain.algorithms.distillation import DistillConfig, DistillObjective, TaughtConfig, TaughtObjective
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.errors import ParamsError
from posttrain.formulas.distill import Divergence, forward_kl
from posttrain.laws.cases import Shape, build, run
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy, load_tokenizer, save_model
from posttrain.models.files.text import load_text
from posttrain.online.distill import StudentConfig
from posttrain.online.teachers import Student, _config, check_teacher, shared_context, teachers_of
from posttrain.rollout import Prompt, TokenRow
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.step import Batch, make_batch
from tests.library.models.tiny import tiny_folder, tiny_model

RUNTIME = Runtime(DeviceParams(device="cpu", threads=1))
NEEDS = frozenset({"teacher_kl"})
ROWS = [TokenRow([5, 6, 7], [8, 9, 10, 11]), TokenRow([5, 6], [20, 21, 22])]


def batch() -> Batch:
    return make_batch(ROWS)


def divergence_and_gradients(divergence: Divergence, teachers: Sequence[tuple[int, float]]) -> list[Tensor]:
    """The divergence at each token from models of these seeds and shares, and its sum's gradients."""
    student = tiny_model(0)
    taught = [Teacher(tiny_model(seed), divergence, share=share) for seed, share in teachers]
    models = ModelSet(student, RUNTIME, teachers=taught)
    found = models.forward(batch(), NEEDS).tokens["teacher_kl"]
    return [found.detach(), *torch.autograd.grad(found.sum(), [*student.parameters()])]


def logits(model: Any) -> Tensor:
    """A model's logits at each token of the rows, by a forward pass of transformers for each row."""
    model.set_attn_implementation("eager")
    found = []
    for row in ROWS:
        ids = torch.tensor([[*row.prompt, *row.rest]])
        found.append(model(input_ids=ids, use_cache=False).logits[0, len(row.prompt) - 1 : -1])
    return torch.cat(found)


@pytest.mark.parametrize("divergence", [forward_kl, reverse_kl])
def test_equal_teachers_are_the_one_teacher_bit_for_bit(divergence: Divergence) -> None:
    one = divergence_and_gradients(divergence, [(1, 1.0)])
    for same in ([(1, 0.5), (1, 0.5)], [(1, 0.5), (1, 0.25), (1, 0.25)]):
        found = divergence_and_gradients(divergence, same)
        assert torch.equal(found[0], one[0])
        assert_close(found[1:], one[1:], rtol=1e-4, atol=1e-6)  # added up in another order


@pytest.mark.parametrize(
    ("divergence", "mixed"),
    [
        (forward_kl, lambda a, b: (0.7 * a.softmax(-1) + 0.3 * b.softmax(-1)).log()),
        (reverse_kl, lambda a, b: 0.7 * a.log_softmax(-1) + 0.3 * b.log_softmax(-1)),
    ],
)
def test_several_teachers_pull_towards_their_mixture(
    divergence: Divergence, mixed: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Of forward KLs it is the mean of their probabilities, of reverse KLs that of their log-probs."""
    student = tiny_model(0)
    with torch.no_grad():
        teacher = mixed(logits(tiny_model(1)), logits(tiny_model(2)))
    whole = divergence(logits(student), teacher).sum()
    expected = torch.autograd.grad(whole, [*student.parameters()])
    found = divergence_and_gradients(divergence, [(1, 0.7), (2, 0.3)])
    assert_close(found[1:], [*expected], rtol=1e-3, atol=1e-5)
    first, second = (divergence_and_gradients(divergence, [(seed, 1.0)])[0] for seed in (1, 2))
    assert_close(found[0], 0.7 * first + 0.3 * second)
    assert not torch.allclose(first, second)


def test_next_to_a_reward_the_gradient_is_the_sum_of_both() -> None:
    row = POLICY_ROWS["grpo"]
    knobs = TaughtConfig.model_validate(row.merged({"aggregation": "token_mean", "teacher_coef": 0.3}))
    taught = TaughtObjective(knobs, 7)
    alone, teacher = PolicyObjective(row.settings(aggregation="token_mean"), 7), DistillObjective(DistillConfig())
    case = build(taught, Shape(seed=4))
    both, one, other = (run(replace(case, objective=objective)) for objective in (taught, alone, teacher))
    assert_close(both.loss, one.loss + 0.3 * other.loss)
    assert_close(both.gradients["logp"], one.gradients["logp"])
    assert_close(both.gradients["teacher_kl"], 0.3 * other.gradients["teacher_kl"])
    assert both.metrics["teacher_kl"] == pytest.approx(other.metrics["teacher_kl"])
    assert both.metrics["policy_loss"] == pytest.approx(float(one.loss))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("teacher"))


def student(folder: Path, **given: Any) -> Student:
    asked = [Prompt("p", [{"role": "user", "content": "1+1"}], (), "2")]
    text = load_text(folder)
    return Student(text, len(text.tokenizer), [replace(one, ids=text.prompt(one.messages)) for one in asked], **given)


def test_models_folders_and_endpoints_teach(folder: Path) -> None:
    model = load_policy(folder)
    served = {"far": {"url": "http://127.0.0.1:1/v1", "model": "m"}}
    config = StudentConfig.preset("reverse_kl", served=served)
    found = teachers_of(config, student(folder), {"a": folder, "b": model}, RUNTIME)
    assert [one.share for one in found] == [pytest.approx(1 / 3)] * 3 and found[1].model is model
    assert found[0].model is not None and not any(part.requires_grad for part in found[0].model.parameters())
    assert found[2].model is None and found[2].served is not None and found[0].prompts is None
    context = StudentConfig.preset("context_distill", context="It is {answer}.")
    (taught,) = teachers_of(context, student(folder), {"a": model}, RUNTIME)
    assert taught.prompts is not None and len(taught.prompts) == 1


def test_the_longest_row_that_both_can_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, model = load_text(folder), tiny_model()
    assert _config(folder).vocab_size == len(text.tokenizer) and _config(model) is model.config
    assert shared_context(text, model, {}, "here") == 256
    assert shared_context(text, model, {(1, 2): [1, 2, 3, 4, 5]}, "here") == 253
    assert capsys.readouterr().out == "here: rows end at 253 tokens, because the teacher's context is 256\n"
    model.config.max_position_embeddings = 0
    assert shared_context(text, model, {}, "here") == 256


def test_a_teacher_of_other_tokens_is_refused(folder: Path, tmp_path: Path) -> None:
    check_teacher(student(folder), folder, "a")
    with pytest.raises(ParamsError, match="has 97 embeddings and the model has"):
        check_teacher(student(folder), tiny_model(), "a")
    train_tokenizer(["other words"] * 9, BpeParams(vocabulary=270), tmp_path / "tokens")
    save_model(tiny_model(0, len(load_tokenizer(tmp_path / "tokens"))), tmp_path / "model", tmp_path / "tokens")
    with pytest.raises(ParamsError, match="has a different tokenizer than the model"):
        check_teacher(student(folder), tmp_path / "model", "a")
