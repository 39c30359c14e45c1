"""vLLM's own experts: its answers have those of our routers, and log-probs with them are nearer to its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from posttrain.models.forward.forward import score_tokens
from posttrain.models.forward.routers import Recording, find_routers
from posttrain.rollout import TokenRow
from posttrain.sampling.sampler import Completion, Request, RoutedSampling
from posttrain.sampling.vllm.process import PYTHON
from posttrain.text.packing import PackedRows, pack
from posttrain.train.model_set import ModelSet
from tests.pipeline.engines.support import models_of
from tests.pipeline.engines.test_engine import flat
from tests.pipeline.engines.test_experts import gspo, mixture_folder, opened, trained
from tests.pipeline.engines.test_real_vllm import TOLERANCE, VLLM, pytestmark, requests

__all__ = ["pytestmark"]
PARAMS = RoutedSampling(max_tokens=40, rows=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixture_folder(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PYTHON, VLLM)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))


def rows_of(asked: list[Request], found: list[Completion], *, replayed: bool) -> PackedRows:
    pairs = zip(asked, found, strict=True)
    return pack([TokenRow(one.ids, done.ids, experts=done.experts if replayed else None) for one, done in pairs])


@torch.no_grad()
def compared(models: ModelSet, packed: PackedRows, found: list[Completion]) -> tuple[Tensor, float]:
    """|trainer's log-prob - vLLM's| of each token, and the share of its own choices that are not the replayed ones."""
    models.policy.eval()
    with Recording(models.policy, find_routers(models.policy), packed) as recording:
        logps = score_tokens(models.policy, packed)[0]
    sums = recording.sums()
    gap = (logps - torch.tensor([logp for one in found for logp in one.logps])).abs()
    return gap, float(sums.moved_L.sum() / sums.chosen_LE.sum())


def test_gspo_by_vllm_trains_with_its_experts_which_are_those_of_our_routers(folder: Path, tmp_path: Path) -> None:
    models, asked = models_of(folder), requests(64)
    with opened(folder, models, PARAMS) as sampler:
        start = flat(models)
        rows = trained(gspo(folder, models, sampler), tmp_path)
        assert len(rows) == 8 and not torch.equal(flat(models), start)
        assert all(row["sampler_kl"] < 1e-8 and row["sampler_gap_max"] < TOLERANCE for row in rows)
        shares = [row["router_moved"] for row in rows]
        assert max(shares[0], shares[4]) < 1e-3 < max(shares), "ties alone differ until the weights move"
        sampler.sync(models.policy, "after")
        found = sampler.generate(asked, PARAMS, 3)
    for one, done in zip(asked, found, strict=True):
        assert done.experts is not None and done.experts.shape == (len(one.ids) + len(done.ids), 2, 2)
        assert (done.experts[-1] == -1).all() and (done.experts[:-1] >= 0).all()
    gap, share = compared(models, rows_of(asked, found, replayed=True), found)
    assert float(gap.max()) < TOLERANCE and share < 1e-3


def test_with_its_experts_log_probs_are_nearer_to_those_of_vllm_in_bf16(folder: Path) -> None:
    """Rounding in another number format turns choices of experts, which moves log-probs more than rounding itself."""
    models, asked = models_of(folder), requests(64)
    with opened(folder, models, PARAMS, dtype="bfloat16") as sampler:
        sampler.sync(models.policy, "a")
        found = sampler.generate(asked, PARAMS, 3)
    own, none = compared(models, rows_of(asked, found, replayed=False), found)
    replayed, share = compared(models, rows_of(asked, found, replayed=True), found)
    print(
        f"turned {share:.2%}; mean gap {own.mean():.4f} -> {replayed.mean():.4f}, max {own.max()} -> {replayed.max()}"
    )
    assert none == 0 < share < 0.1
    assert float(replayed.mean()) < 0.8 * float(own.mean()) and float(replayed.max()) < float(own.max())
