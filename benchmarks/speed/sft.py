"""SFT: tokens per CPU second."""

from __future__ import annotations

from typing import Any

from benchmarks.speed import bound_loops, ours, theirs
from benchmarks.speed.case import Case, batches, language_model, padding
from benchmarks.speed.meter import Meter, Report
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.models.device import Runtime
from posttrain.train.loop import TrainingParams


def posttrain(case: Case) -> Report:
    """Return the stage's loop over the given rows."""
    return _posttrain(case, ours.device(case))


def posttrain_bf16(case: Case) -> Report:
    """Return the same in bf16."""
    return _posttrain(case, ours.device(case, "bf16"))


def posttrain_free(case: Case) -> Report:
    """Return the same with whatever kernels are fastest; on a GPU their last bits may differ from run to run."""
    return _posttrain(case, ours.device(case, deterministic=False))


def posttrain_lora(case: Case) -> Report:
    """Return the same with adapters."""
    return _posttrain(case, ours.device(case), lora=True)


def posttrain_recompute(case: Case) -> Report:
    """Return the same with layers computed again in the backward pass."""
    return _posttrain(case, ours.device(case), training=ours.RECOMPUTED)


def posttrain_offload(case: Case) -> Report:
    """Return the same with activations kept in the host's memory."""
    return _posttrain(case, ours.device(case), training=ours.TRAINING.model_copy(update={"activations": "offload"}))


def posttrain_lora_recompute(case: Case) -> Report:
    """Return the same with adapters."""
    return _posttrain(case, ours.device(case), lora=True, training=ours.RECOMPUTED)


def posttrain_compiled(case: Case) -> Report:
    """Return the same with compiled layers; what the compiler takes before the first step is not counted."""
    return _posttrain(case, ours.device(case), training=COMPILED)


def posttrain_bf16_compiled(case: Case) -> Report:
    """Return the same in bf16."""
    return _posttrain(case, ours.device(case, "bf16"), training=COMPILED)


COMPILED = ours.TRAINING.model_copy(update={"compile": True})


def _posttrain(case: Case, device: Runtime, *, lora: bool = False, training: TrainingParams = ours.TRAINING) -> Report:
    updates, meter = batches(case), Meter(case.warm, case.device)
    models = ours.models_of(case, device, reference=False, lora=lora)
    log = ours.fit(LikelihoodObjective(LikelihoodConfig()), ours.Given(updates, {}), models, meter, training)
    return meter.report(_tokens(case), [row["loss"] for row in log.rows], padding=padding(updates[-1]))


def trl(case: Case) -> Report:
    """TRL, tuned: padded batches, on a GPU with FlashAttention rows without padding."""
    return _trl(case, {**theirs.tuned(case), **theirs.unpadded(case)})


def trl_padded(case: Case) -> Report:
    """TRL near its defaults: padded batches, torch's attention and layers of many kernels."""
    return _trl(case, theirs.near_defaults(case))


def trl_lora(case: Case) -> Report:
    """TRL, tuned, with adapters by peft."""
    return _trl(case, {**theirs.tuned(case), **theirs.unpadded(case)}, **theirs.adapters())


def trl_bf16(case: Case) -> Report:
    """TRL, tuned but for bf16 autocast."""
    return _trl(case, {**theirs.tuned(case), "bf16": True})


def trl_default(case: Case) -> Report:
    """TRL as it comes."""
    return _trl(case, {})


def trl_packing(case: Case) -> Report:
    """TRL, tuned, with its packing: as many tokens in a block as a batch's longest row has, blocks for one batch."""
    real = sum(len(item[0]) for item in batches(case)[-1])
    blocks = max(round(real / case.longest), 1)
    return _trl(
        case, {**theirs.tuned(case), "packing": True, "packing_strategy": "bfd", "max_length": case.longest}, blocks
    )


def _trl(case: Case, over: dict[str, Any], size: int | None = None, **parts: Any) -> Report:
    theirs.require()
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from benchmarks.speed.case import tokenizer

    packing = size is not None
    updates = batches(case)
    rows = [item[0] for items in (updates[case.warm :] if packing else updates) for item in items]
    data = {
        "input_ids": [row.prompt + row.completion for row in rows],
        "completion_mask": [[0] * len(row.prompt) + [1] * len(row.completion) for row in rows],
    }
    steps = case.updates if packing else case.warm + case.updates
    settings = SFTConfig(
        output_dir=theirs.folder(), per_device_train_batch_size=size or case.batch,
        **{"max_steps": -1 if packing else steps, "num_train_epochs": 1, "max_length": None,
           "completion_only_loss": True, **theirs.common(case), **over},
    )  # fmt: skip
    meter, model = Meter(0 if packing else case.warm, case.device), language_model(case.shape, case.device)
    kernel = theirs.flash(case) if settings.padding_free or packing else None
    if kernel is not None:
        model.set_attn_implementation(kernel)
    log = theirs.fit(
        SFTTrainer, settings, meter, steps, model=model,
        train_dataset=Dataset.from_dict(data), processing_class=tokenizer(case.shape), **parts,
    )  # fmt: skip
    chosen = {"padding_free": settings.padding_free or packing, "liger": settings.use_liger_kernel, "flash": kernel}
    return meter.report(
        _tokens(case), [row["loss"] for row in log], **{key: bool(is_on) for key, is_on in chosen.items()}
    )


def _tokens(case: Case) -> int:
    return sum(len(item[0]) for items in batches(case)[case.warm :] for item in items)


SIDES = {
    "posttrain": posttrain,
    "bound": bound_loops.sft,
    "trl": trl,
    "trl_padded": trl_padded,
    "trl_packing": trl_packing,
    "trl_default": trl_default,
    "posttrain_lora": posttrain_lora,
    "trl_lora": trl_lora,
    "posttrain_bf16": posttrain_bf16,
    "posttrain_free": posttrain_free,
    "posttrain_recompute": posttrain_recompute,
    "posttrain_offload": posttrain_offload,
    "posttrain_lora_recompute": posttrain_lora_recompute,
    "posttrain_compiled": posttrain_compiled,
    "posttrain_bf16_compiled": posttrain_bf16_compiled,
    "trl_bf16": trl_bf16,
}
