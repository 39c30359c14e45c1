"""DPO: pairs per CPU second, the reference's log-probs included."""

from __future__ import annotations

from typing import Any

from benchmarks.speed import bound_loops, ours, theirs
from benchmarks.speed.case import Case, batches, language_model, padding, tokenizer, words
from benchmarks.speed.meter import Meter, Report
from benchmarks.speed.reward import SIDE
from posttrain.algorithms.preference import PreferenceObjective
from posttrain.algorithms.preference_rows import PREFERENCE_ROWS
from posttrain.train.model_set import ModelSet


def posttrain(case: Case) -> Report:
    """The stage's loop over the given pairs."""
    updates, meter = batches(case, 2), Meter(case.warm, case.device)
    reference = ours.ready(language_model(case.shape), case)
    models = ModelSet(ours.ready(language_model(case.shape), case), ours.device(case), reference)
    objective = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings(loss={"beta": 0.1}))
    log = ours.fit(objective, ours.Given(updates, SIDE), models, meter)
    return meter.report(case.batch * case.updates, [row["loss"] for row in log.rows], padding=padding(updates[-1]))


def trl(case: Case) -> Report:
    """TRL, tuned."""
    return _trl(case, theirs.tuned(case))


def trl_default(case: Case) -> Report:
    """TRL as it comes."""
    return _trl(case, {})


def _trl(case: Case, over: dict[str, Any]) -> Report:
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
    log = theirs.fit(
        DPOTrainer, settings, meter, updates, model=language_model(case.shape), ref_model=language_model(case.shape),
        train_dataset=Dataset.from_dict(data), processing_class=tokenizer(case.shape),
    )  # fmt: skip
    return meter.report(case.batch * case.updates, [row["loss"] for row in log])


SIDES = {"posttrain": posttrain, "bound": bound_loops.dpo, "trl": trl, "trl_default": trl_default}
