"""offline: one run of reinforcement learning on rollouts that an earlier run stored, without sampling."""

from __future__ import annotations

from posttrain.algorithms.policy_config import group_refusal
from posttrain.errors import ParamsError
from posttrain.files import rounded, write_json
from posttrain.models.device import Runtime
from posttrain.models.files.store import save_model
from posttrain.models.files.text import load_text
from posttrain.pipeline.params.named_runs import load_run
from posttrain.pipeline.params.slots import needed_model
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.offline import OFFLINE, LoggedSource, OfflineRun, logged_rollouts
from posttrain.pipeline.runs.stored_rollouts import StoredRollouts
from posttrain.pipeline.runs.training import run_training, share_run
from posttrain.pipeline.workspace import metrics_path, model_path, rollouts_path
from posttrain.train.loop import TrainingRun, adamw
from posttrain.train.model_set import ModelSet

SHOWN = ("reward", "length", "entropy", "loss")


def main(run: str) -> None:
    """Writes models/offline/RUN, metrics/offline/RUN.json and plots/offline/RUN.csv."""
    name, section = f"offline@{run}", f"offline.runs.{run}"
    params: OfflineRun = load_run(section, OFFLINE)
    share_run(name, params)
    start, folder = needed_model(params.start, f"{section}.start"), rollouts_path(params.data)

    stored = StoredRollouts(folder, section)
    vocabulary = load_text(start, params.date).vocabulary
    logged = logged_rollouts(stored, vocabulary, grouped=params.advantage_entry.grouped)
    if reason := group_refusal(params, max(size for _, size in logged.groups)):
        raise ParamsError(what=reason, where=f"{section}.advantage", fix="The rollouts have no larger group")
    objective = params.objective(logged.max_tokens)
    models = ModelSet.load(
        Runtime(params.device),
        start,
        objective.needs,
        params,
        temperature=logged.temperature,
    )

    source = LoggedSource(logged, params.groups, params.epochs, params.seed)
    update = adamw(models.trained, params, source.steps, models.policy)
    tokens = params.groups * logged.largest
    log = run_training(TrainingRun(name, params, objective, source, models, update, tokens, SHOWN), [start, folder])

    save_model(models.gather_on_rank_zero().policy, model_path(name), start, params.save_dtype)
    results: dict[str, float] = {key: log.tail(key, 10) for key in SHOWN if key in log.rows[-1]}
    write_json(metrics_path(name), {"algorithm": params.algorithm, "steps": source.steps, **rounded(results)})


if __name__ == "__main__":
    run_named_stage(main)
