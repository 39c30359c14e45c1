"""The reward model: pairs per CPU second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.speed import bound_loops, ours, theirs
from benchmarks.speed.case import Case, batches, padding, scorer, tokenizer
from benchmarks.speed.meter import Meter, Report
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.train.model_set import ModelSet

SIDE: dict[str, Sequence[float]] = {"side": [1.0, -1.0]}


def posttrain(case: Case) -> Report:
    """Return the stage's loop over the given pairs."""
    updates, meter = batches(case, 2), Meter(case.warm, case.device)
    models = ModelSet(ours.ready(scorer(case.shape), case), ours.device(case))
    log = ours.fit(RewardObjective(RewardConfig()), ours.Given(updates, SIDE), models, meter)
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
    from trl import RewardConfig, RewardTrainer

    updates = case.warm + case.updates
    items = [item for items in batches(case, 2) for item in items]
    data = {
        f"{name}_ids": [item[i].prompt + item[i].completion for item in items]
        for i, name in enumerate(("chosen", "rejected"))
    }
    settings = RewardConfig(
        output_dir=theirs.folder(), per_device_train_batch_size=case.batch, max_steps=updates, max_length=None,
        **{**theirs.common(case), **over},
    )  # fmt: skip
    meter = Meter(case.warm, case.device)
    log = theirs.fit(
        RewardTrainer, settings, meter, updates, model=scorer(case.shape), train_dataset=Dataset.from_dict(data),
        processing_class=tokenizer(case.shape),
    )  # fmt: skip
    return meter.report(case.batch * case.updates, [row["loss"] for row in log])


SIDES = {"posttrain": posttrain, "bound": bound_loops.reward, "trl": trl, "trl_default": trl_default}
