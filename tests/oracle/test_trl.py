"""Our losses against TRL's own code, where the definitions agree, on the same random log-probs.

TRL is no dependency of the project. To run these: install the extra `trl` (pip install -e '.[trl]'), or put a folder
made by `pip install --no-deps --target FOLDER trl==1.16.0 accelerate` on PYTHONPATH; then `pytest -m oracle`.
TRL's trainers are used without being started: their loss functions run unchanged on the log-probs given here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.algorithms.distill.gkd import jensen_shannon
from posttrain.algorithms.distill.reverse_kl import reverse_kl
from posttrain.formulas import distill
from posttrain.laws.own import worst
from posttrain.laws.padded import PADDED_LAWS
from posttrain.losses import PaddedBatch, PaddedLoss, group_advantages, policy_loss, preference_loss

pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[trl]' (see the top of this file)")
pytestmark = pytest.mark.oracle

ROWS, LONGEST, GROUP = 8, 6, 4
DRAW = torch.Generator().manual_seed(5)


def draw(scale: float, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64) * scale


LENGTHS = torch.tensor([6, 1, 3, 4, 2, 6, 5, 3])
MASK = (torch.arange(LONGEST) < LENGTHS[:, None]).long()
LOGP = -torch.rand(ROWS, LONGEST, generator=DRAW, dtype=torch.float64) * 2 - 0.05
OLD = LOGP + draw(0.4, ROWS, LONGEST)
REF = LOGP + draw(0.5, ROWS, LONGEST)
SAMPLER = torch.rand(ROWS, LONGEST, generator=DRAW, dtype=torch.float64) + 0.5
REWARD = torch.tensor([1.0, 0, 0, 1, 0.5, 1, 0, 0.25], dtype=torch.float64)


def accelerator() -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True)


def bare(trainer: type[Any], **attributes: Any) -> Any:
    """A trainer of TRL with nothing but the attributes that its loss reads."""
    made = object.__new__(trainer)
    common = {
        "accelerator": accelerator(),
        "model": torch.nn.Linear(1, 1),
        "aux_loss_enabled": False,
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
        "_total_train_tokens": 0,
        "_tp_size": 1,
    }
    made.__dict__.update({**common, **attributes})
    return made


def assert_agrees(ours: Tensor, theirs: Tensor, logp: Tensor, tolerance: float = 1e-7) -> None:
    """Both losses are functions of logp."""
    mine, gradient = (torch.autograd.grad(loss, [logp], retain_graph=True)[0] for loss in (ours, theirs))
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=tolerance)
    assert float((mine - gradient * MASK).abs().max()) < tolerance


def zscores() -> Tensor:
    """Advantages as TRL makes them (its code for them is inside a method that also samples)."""
    groups = REWARD.view(-1, GROUP)
    centred = REWARD - groups.mean(1).repeat_interleave(GROUP)
    return centred / (groups.std(1).repeat_interleave(GROUP) + 1e-4)


ATTRIBUTES: dict[str, Any] = {
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "importance_sampling_level": "token",
    "beta": 0.0,
    "loss_type": "grpo",
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "use_vllm": False,
    "vllm_importance_sampling_correction": False,
    "current_gradient_accumulation_steps": 1,
    "max_completion_length": 9,
    "_entropy_bonus_enabled": False,
    "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
}
"""What TRL's GRPO loss reads of its trainer."""


def grpo_of_trl(logp: Tensor, advantage: Tensor, **over: Any) -> Tensor:
    from trl.trainer.grpo_trainer import GRPOTrainer

    class Given(GRPOTrainer):  # type: ignore[misc]
        def _get_per_token_logps_and_entropies(self, *args: Any, **rest: Any) -> Any:
            return logp, torch.zeros_like(logp), None

    made = bare(Given, **{**ATTRIBUTES, **over})
    empty = torch.zeros(ROWS, 0, dtype=torch.long)
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": torch.zeros_like(MASK),
        "completion_mask": MASK,
        "advantages": advantage,
        "old_per_token_logps": OLD,
        "ref_per_token_logps": REF,
        "importance_sampling_ratio": SAMPLER.clamp(max=1.2),
        "num_items_in_batch": MASK.sum(),
    }
    result: Tensor = made._compute_loss(None, inputs)
    return result


@pytest.mark.parametrize(
    ("name", "settings", "trl", "advantage"),
    [
        ("grpo", {}, {"beta": 0.04}, "zscore"),
        ("grpo", {"kl": "none"}, {}, "zscore"),
        ("dr_grpo", {}, {"loss_type": "dr_grpo"}, "centred"),
        ("dapo", {}, {"loss_type": "dapo", "epsilon_high": 0.28}, "zscore"),
        ("gspo", {}, {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}, "zscore"),
        ("cispo", {"surrogate": {"high": 0.1}}, {"loss_type": "cispo", "epsilon_high": 1.1}, "zscore"),
        ("grpo_plus", {"truncated": "keep"}, {"epsilon_high": 0.4}, "zscore"),
    ],
)
def test_policy_rows(name: str, settings: dict[str, Any], trl: dict[str, Any], advantage: str) -> None:
    logp = LOGP.clone().requires_grad_()
    centred = REWARD - REWARD.view(-1, GROUP).mean(1).repeat_interleave(GROUP)
    theirs = grpo_of_trl(logp, zscores() if advantage == "zscore" else centred, **trl)
    options = {"ref_logp": REF} if name == "grpo" and not settings else {}
    options |= {"max_length": 9} if name == "dr_grpo" else {}
    mine = group_advantages(name, REWARD, GROUP)
    ours, _ = policy_loss(name, logp, OLD, mine, MASK, settings=settings, **options)
    assert_agrees(ours, theirs, logp)


def test_the_correction_of_a_foreign_sampler() -> None:
    logp = LOGP.clone().requires_grad_()
    theirs = grpo_of_trl(logp, zscores(), beta=0.04, use_vllm=True, vllm_importance_sampling_correction=True)
    mine, given = group_advantages("grpo", REWARD, GROUP), {"ref_logp": REF, "sampler_logp": OLD - SAMPLER.log()}
    settings = {"correction": {"type": "truncate", "high": 1.2}}
    ours, _ = policy_loss("grpo", logp, OLD, mine, MASK, settings=settings, **given)
    assert_agrees(ours, theirs, logp)


def test_rloo_on_its_own_samples() -> None:
    """TRL clips the ratio of whole sequences; on the first update that is the score function's gradient."""
    from trl.trainer.rloo_trainer import RLOOTrainer

    logp = LOGP.clone().requires_grad_()

    class Given(RLOOTrainer):  # type: ignore[misc]
        def _get_per_token_logps_and_entropies(self, *args: Any, **rest: Any) -> Any:
            return logp, torch.zeros_like(logp), None

    charged = REWARD - 0.05 * ((LOGP - REF) * MASK).sum(1)
    total = charged.view(-1, GROUP).sum(1).repeat_interleave(GROUP)
    empty = torch.zeros(ROWS, 0, dtype=torch.long)
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": torch.zeros_like(MASK),
        "completion_mask": MASK,
        "advantages": charged - (total - charged) / (GROUP - 1),
        "old_logps": (LOGP * MASK).sum(1),
    }
    theirs = bare(Given, epsilon_low=0.2, epsilon_high=0.2)._compute_loss(None, inputs)
    ours, _ = policy_loss("rloo", logp, LOGP, group_advantages("rloo", charged, GROUP), MASK)
    mine, gradient = (torch.autograd.grad(loss, [logp])[0] for loss in (ours, theirs))
    assert float((mine - gradient).abs().max()) < 1e-7


def forward(logp: Tensor) -> Any:
    """A model's outputs as TRL's fused head gives them: log-probs of completion tokens, 0 elsewhere."""
    nothing = torch.zeros_like(logp)
    outputs = SimpleNamespace(
        log_probs=logp * MASK[: len(logp)], entropy=nothing, mean_logits=nothing, is_top1=nothing.bool()
    )
    return lambda **_: outputs


def padded_mask() -> Tensor:
    return torch.cat([torch.zeros(ROWS, 1, dtype=torch.long), MASK], dim=1)


@pytest.mark.parametrize(
    ("name", "loss_type", "settings", "smoothing"),
    [
        ("dpo", "sigmoid", {}, 0.0),
        ("robust_dpo", "robust", {}, 0.1),
        ("exo", "exo_pair", {}, 1e-3),
        ("ipo", "ipo", {}, 0.0),
        ("apo_zero", "apo_zero", {}, 0.0),
        ("apo_down", "apo_down", {}, 0.0),
        ("slic", "hinge", {"reference": True, "loss": {"delta": 10.0}, "nll": 0.0}, 0.0),
    ],
)
def test_preference_rows(name: str, loss_type: str, settings: dict[str, Any], smoothing: float) -> None:
    from trl.trainer.dpo_trainer import DPOTrainer

    logp = LOGP.clone().requires_grad_()
    attributes = {
        "ld_alpha": None,
        "precompute_ref_logps": True,
        "f_divergence_type": "reverse_kl",
        "loss_types": [loss_type],
        "loss_weights": [1.0],
        "beta": 0.1,
        "label_smoothing": smoothing,
        "use_weighting": False,
    }
    sums = (REF * MASK).sum(1)
    inputs = {
        "input_ids": torch.zeros(ROWS, LONGEST + 1, dtype=torch.long),
        "attention_mask": torch.ones(ROWS, LONGEST + 1, dtype=torch.long),
        "completion_mask": padded_mask(),
        "ref_chosen_logps": sums[: ROWS // 2],
        "ref_rejected_logps": sums[ROWS // 2 :],
    }
    theirs = bare(DPOTrainer, **attributes)._compute_loss(forward(logp), inputs, return_outputs=False)
    ours, _ = preference_loss(name, logp, MASK, ref_logp=REF, settings=settings)
    scale = 0.1 if name == "slic" else 1.0  # TRL's hinge is beta times ours with delta = 1 / beta
    assert_agrees(scale * ours, theirs, logp)


def test_kto() -> None:
    from trl.trainer.kto_trainer import KTOTrainer

    logp = LOGP.clone().requires_grad_()
    label = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.0, 0.0, 0.0])
    kept, elsewhere = label != 0, label == 0
    sums, mine = (REF * MASK).sum(1), (LOGP * MASK).sum(1)

    class Given(KTOTrainer):  # type: ignore[misc]
        def _compute_kl_logps(self, model: Any, batch: Any) -> Tensor:
            return mine[elsewhere] + 3

    attributes = {
        "precompute_ref_logps": True,
        "calculate_KL": True,
        "loss_type": "kto",
        "beta": 0.1,
        "desirable_weight": 1.5,
        "undesirable_weight": 0.5,
    }
    count = int(kept.sum())
    inputs = {
        "input_ids": torch.zeros(count, LONGEST + 1, dtype=torch.long),
        "attention_mask": torch.ones(count, LONGEST + 1, dtype=torch.long),
        "completion_mask": padded_mask()[kept],
        "label": label[kept] > 0,
        "ref_logps": sums[kept],
        "ref_KL_logps": sums[elsewhere],
    }
    theirs = bare(Given, **attributes)._compute_loss(forward(logp[kept]), inputs, return_outputs=False)
    shifted = logp + 3 * elsewhere[:, None] / LENGTHS[:, None]
    settings = {"loss": {"desirable": 1.5, "undesirable": 0.5}}
    ours, metrics = preference_loss("kto", shifted, MASK, ref_logp=REF, labels=label, settings=settings)
    assert metrics["z0"] > 1
    assert_agrees(ours, theirs, logp)


def reference_free() -> tuple[Tensor, Tensor, Tensor]:
    logp = LOGP.clone().requires_grad_()
    sums = (logp * MASK).sum(1)
    return logp, sums, sums / LENGTHS


def test_cpo_and_simpo() -> None:
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    logp, sums, means = reference_free()
    half = ROWS // 2
    common = {"alpha": 0.0, "label_smoothing": 0.0, "simpo_gamma": 1.0}
    cpo = bare(CPOTrainer, loss_type="sigmoid", beta=0.1, **common).cpo_loss(sums[:half], sums[half:])[0]
    assert_agrees(preference_loss("cpo", logp, MASK, settings={"nll": 0.0})[0], cpo.mean(), logp)
    logp, sums, means = reference_free()
    simpo = bare(CPOTrainer, loss_type="simpo", beta=2.0, **common).cpo_loss(means[:half], means[half:])[0]
    assert_agrees(preference_loss("simpo", logp, MASK)[0], simpo.mean(), logp)


def test_orpo() -> None:
    from trl.experimental.orpo.orpo_trainer import ORPOTrainer

    logp, _, means = reference_free()
    half = ROWS // 2
    losses = bare(ORPOTrainer, beta=0.1).odds_ratio_loss(means[:half], means[half:])[0]
    theirs = -means[:half].mean() - losses.mean()  # the likelihood of each chosen answer first, then over answers
    ours, _ = preference_loss("orpo", logp, MASK)
    assert_agrees(ours, theirs, logp, tolerance=1e-6)  # TRL computes it in float32


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_gkd(beta: float) -> None:
    from trl.experimental.gkd.gkd_trainer import GKDTrainer

    student, teacher = draw(1.0, 1, 5, 7), draw(1.0, 1, 5, 7)
    theirs = GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, temperature=1.5, reduction="sum")
    ours = {
        0.0: lambda: distill.forward_kl(student, teacher, 1.5),
        1.0: lambda: reverse_kl(student, teacher, 1.5),
    }.get(beta, lambda: jensen_shannon(student, teacher, beta, 1.5))()
    assert math.isclose(float(ours.sum()), float(theirs), abs_tol=1e-10)


SEQUENCES = {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
LAWFUL: dict[str, dict[str, Any]] = {
    "dapo": {},
    "grpo": {},
    "dr_grpo": {},
    "cispo": {"epsilon_high": 1.2},
    "sapo": {},
    "vespo": {},
    "gspo": {"loss_type": "grpo", **SEQUENCES},
    "luspo": SEQUENCES,
}
OPTIONS = {
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
}


@pytest.mark.parametrize("kind", [*LAWFUL, "bnpo"])
def test_their_loss_under_our_laws(kind: str) -> None:
    """TRL's own method, adapted; `bnpo` is a mean over each micro-batch."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    class Given(GRPOTrainer):  # type: ignore[misc]
        def _get_per_token_logps_and_entropies(self, *args: Any, **rest: Any) -> Any:
            return self.logp, torch.zeros_like(self.logp), None

    def adapted(batch: PaddedBatch) -> Tensor:
        attributes = {**ATTRIBUTES, "beta": 0.04, "loss_type": kind, "max_completion_length": batch.longest}
        attributes |= LAWFUL.get(kind, {})
        attributes["args"] = SimpleNamespace(**vars(ATTRIBUTES["args"]), **OPTIONS)
        alone = {"gather": lambda tensor: tensor, "reduce": lambda tensor, **_: tensor}
        attributes["accelerator"] = SimpleNamespace(num_processes=batch.ranks, **alone)
        attributes["current_gradient_accumulation_steps"] = batch.micro_batches
        made = bare(Given, **attributes, logp=batch.logp)
        empty = torch.zeros(len(batch.mask), 0, dtype=torch.long)
        inputs = {
            "prompt_ids": empty,
            "prompt_mask": empty,
            "completion_ids": torch.zeros_like(batch.mask),
            "completion_mask": batch.mask.long(),
            "advantages": batch.advantage,
            "old_per_token_logps": batch.old_logp,
            "ref_per_token_logps": batch.ref_logp,
            "num_items_in_batch": torch.tensor(batch.step_tokens / batch.micro_batches, dtype=torch.float64),
        }
        result: Tensor = made._compute_loss(None, inputs)
        return result

    subject = PaddedLoss(adapted)
    found = {name: worst(law, lambda: subject, kind) for name, law in PADDED_LAWS.items()}
    wrong = [name for name, error in found.items() if error is not None and error > PADDED_LAWS[name].tolerance]
    assert wrong == ([] if kind in LAWFUL else ["micro-batches", "processes"])
