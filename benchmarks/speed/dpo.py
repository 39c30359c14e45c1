"""DPO: pairs per CPU second, the reference's log-probs included."""

from __future__ import annotations

from typing import Any

from benchmarks.speed import bound_loops, ours, theirs
from benchmarks.speed.case import Case, batches, language_model, padding, tokenizer, words
from benchmarks.speed.meter import Meter, Report
from benchmarks.speed.reward import SIDE
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.train.loop import TrainingParams


def posttrain(case: Case) -> Report:
    """Return the stage's loop over the given pairs."""
    return _posttrain(case, lora=False)


def posttrain_lora(case: Case) -> Report:
    """Return the same with adapters: the reference is the policy without them."""
    return _posttrain(case, lora=True)


def posttrain_lora_recompute(case: Case) -> Report:
    """Return the same with layers computed again in the backward pass."""
    return _posttrain(case, lora=True, training=ours.RECOMPUTED)


def _posttrain(case: Case, *, lora: bool, training: TrainingParams = ours.TRAINING) -> Report:
    updates, meter = batches(case, 2), Meter(case.warm, case.device)
    models = ours.models_of(case, ours.device(case), reference=True, lora=lora)
    objective = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings(loss={"beta": 0.1}))
    log = ours.fit(objective, ours.Given(updates, SIDE), models, meter, training)
    return meter.report(case.batch * case.updates, [row["loss"] for row in log.rows], padding=padding(updates[-1]))


def trl(case: Case) -> Report:
    """TRL, tuned."""
    return _trl(case, theirs.tuned(case))


def trl_padded(case: Case) -> Report:
    """TRL near its defaults: padded batches, torch's attention and layers of many kernels."""
    return _trl(case, theirs.near_defaults(case))


def trl_lora(case: Case) -> Report:
    """TRL, tuned, with adapters by peft."""
    return _trl(case, theirs.tuned(case), **theirs.adapters())


def trl_default(case: Case) -> Report:
    """TRL as it comes."""
    return _trl(case, {})


def _trl(case: Case, over: dict[str, Any], **parts: Any) -> Report:
    theirs.require()
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    updates = case.warm + case.updates
    items = [item for items in batches(case, 2) for item in items]
    data = {
        "prompt": [words(item[0].prompt) for item in items],
        "chosen": [" " + words(item[0].completion) for item in items],
        "rejected": [" " + words(item[1].completion) for item in items],
    }
    settings = DPOConfig(
        output_dir=theirs.folder(), per_device_train_batch_size=case.batch, max_steps=updates, max_length=None,
        beta=0.1, **{**theirs.common(case), **over},
    )  # fmt: skip
    meter = Meter(case.warm, case.device)
    parts = parts or {"ref_model": language_model(case.shape, case.device)}
    log = theirs.fit(
        DPOTrainer, settings, meter, updates, model=language_model(case.shape, case.device), **parts,
        train_dataset=Dataset.from_dict(data), processing_class=tokenizer(case.shape),
    )  # fmt: skip
    return meter.report(case.batch * case.updates, [row["loss"] for row in log])


SIDES = {
    "posttrain": posttrain,
    "posttrain_lora": posttrain_lora,
    "posttrain_lora_recompute": posttrain_lora_recompute,
    "bound": bound_loops.dpo,
    "trl": trl,
    "trl_padded": trl_padded,
    "trl_lora": trl_lora,
    "trl_default": trl_default,
}
