"""The settings of `offline.runs`, and the stored rollouts for such a run."""

from __future__ import annotations

from typing import Any

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.api.models import models_from
from posttrain.errors import ParamsError
from posttrain.models.files.text import load_text
from posttrain.online.stored import LoggedRollouts, OfflineConfig, logged_rollouts
from posttrain.pipeline.params.slots import model_slot, rollouts_slot
from posttrain.pipeline.runs.stored_rollouts import StoredRollouts
from posttrain.pipeline.runs.training import RunInputs
from posttrain.pipeline.workspace import rollouts_path
from posttrain.settings.plain import NONE
from posttrain.train.model_set import ModelSet
from posttrain.train.run_config import Algorithms


class OfflineRun(OfflineConfig):
    """One run of `offline.runs`: a policy objective on stored rollouts."""

    start: str = model_slot("the start model")
    data: str = rollouts_slot("the run whose stored rollouts are used")


OFFLINE = Algorithms((POLICY_ROWS, lambda _: OfflineRun))


def need_tokens(source: Any, where: str) -> None:
    """Reject a run that does not store all its rollouts, and a run with an unknown tokenizer."""
    if (stored := getattr(source, "rollouts", "full")) != "full":
        what = f"the run has rollouts: {stored}, but the tokens of all rollouts are needed"
        raise ParamsError(what=what, where=where, fix="Set rollouts: full there")
    if getattr(source, "start", None) == NONE:
        what = "the run has start: none, so the tokenizer of its tokens is unknown"
        raise ParamsError(
            what=what, where=where, fix="Set start there to the model that sampled them, e.g. start: base/NAME"
        )


def offline_run(reads: RunInputs[Any]) -> tuple[ModelSet, LoggedRollouts]:
    """Return the models and the stored rollouts of a run."""
    params, section = reads.params, reads.section
    start, folder = reads.start(params.start), reads.reads(rollouts_path(params.data))
    stored = StoredRollouts(folder, section)
    vocabulary = load_text(start, params.date).vocabulary
    grouped = params.advantage_entry.grouped
    logged = logged_rollouts(stored.table(), stored.summary, vocabulary, str(stored.folder), grouped=grouped)
    return models_from(start, params), logged
