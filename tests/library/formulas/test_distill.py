from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.distill.gkd import jensen_shannon
from posttrain.algorithms.distill.reverse_kl import reverse_kl
from posttrain.formulas import distill

TEACHER = torch.tensor([[0.75, 0.25]], dtype=torch.float64).log()
STUDENT = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
FORWARD = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
REVERSE = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)


def test_forward_kl_by_hand() -> None:
    assert float(distill.forward_kl(STUDENT, TEACHER)) == pytest.approx(FORWARD)


def test_the_limits_of_the_mixture_are_the_two_divergences() -> None:
    small = 1e-6
    assert float(jensen_shannon(STUDENT, TEACHER, small)) / small == pytest.approx(FORWARD, rel=1e-4)
    assert float(jensen_shannon(STUDENT, TEACHER, 1 - small)) / small == pytest.approx(REVERSE, rel=1e-4)
    with pytest.raises(ValueError, match="forward_kl and reverse_kl"):
        jensen_shannon(STUDENT, TEACHER, 1.0)


def test_temperature_divides_both() -> None:
    draw = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 5, 7, generator=draw, dtype=torch.float64)
    assert_close(distill.forward_kl(student, teacher, 2.0), distill.forward_kl(student / 2, teacher / 2))


@pytest.mark.parametrize("tile", [1, 3, 100])
def test_tiles_change_neither_values_nor_gradients(tile: int) -> None:
    draw = torch.Generator().manual_seed(1)
    student, teacher = torch.randn(2, 8, 4, generator=draw, dtype=torch.float64)
    head, other = torch.randn(2, 11, 4, generator=draw, dtype=torch.float64)
    student, head = student.requires_grad_(), head.requires_grad_()
    whole = reverse_kl(student @ head.T, teacher @ other.T)
    tiled = distill.tiled(reverse_kl, student, lambda h: h @ head.T, teacher, lambda h: h @ other.T, tile)
    assert_close(tiled, whole)
    for one, two in zip(
        torch.autograd.grad(whole.sum(), [student, head]),
        torch.autograd.grad(tiled.sum(), [student, head]),
        strict=True,
    ):
        assert_close(one, two)


@pytest.mark.parametrize("divergence", [distill.forward_kl, reverse_kl, jensen_shannon])
def test_classes_diverge_less_and_all_tokens_as_much(divergence: distill.Divergence) -> None:
    draw = torch.Generator().manual_seed(2)
    student, teacher = torch.randn(2, 9, 12, generator=draw, dtype=torch.float64)
    known, full = teacher.log_softmax(-1), divergence(student, teacher)
    before = torch.zeros(9, dtype=torch.float64)
    for top in (1, 4, 8, 11, 12):
        logps, ids = known.topk(top)
        found = divergence(distill.classes(student, ids), distill.with_rest(logps))
        assert bool((found >= before - 1e-7).all()) and bool((found <= full + 1e-7).all())  # finer classes differ more
        before = found
    assert_close(before, full, atol=1e-6, rtol=1e-6)


def test_the_gradient_of_classes_is_that_of_their_formula() -> None:
    draw = torch.Generator().manual_seed(3)
    student = torch.randn(4, 6, generator=draw, dtype=torch.float64).requires_grad_()
    ids = torch.tensor([[0, 2], [1, 5], [3, 4], [0, 1]])
    assert torch.autograd.gradcheck(lambda logits: distill.classes(logits, ids), [student])
    everything = torch.arange(6).expand(4, 6)
    (gradient,) = torch.autograd.grad(distill.classes(student, everything).sum(), [student])
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("divergence", [distill.forward_kl, reverse_kl, jensen_shannon])
def test_a_teacher_that_is_certain_has_a_finite_divergence(divergence: distill.Divergence) -> None:
    """In float32, as a server's log-probs are."""
    student = torch.randn(1, 6, generator=torch.Generator().manual_seed(4)).requires_grad_()
    certain = distill.with_rest(torch.tensor([[0.0, -20.0, -30.0]]))
    value = divergence(distill.classes(student, torch.tensor([[0, 1, 2]])), certain).sum()
    (gradient,) = torch.autograd.grad(value, [student])
    assert bool(value.isfinite()) and float(value.detach()) > 0 and bool(gradient.isfinite().all())
