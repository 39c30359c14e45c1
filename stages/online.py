"""online: one run of reinforcement learning (GRPO, PPO and others) on the policy's own samples."""

from __future__ import annotations

from posttrain.models.files.text import load_text
from posttrain.online.runs import ONLINE, OnlineParams
from posttrain.online.train import LoadedRun, train_on_samples
from posttrain.params.slots import needed_model
from posttrain.processes.stage import run_named_stage
from posttrain.rewards.scorable import scorable_prompts
from posttrain.sampling.sampler import encode_prompts, prompts_of
from posttrain.tables.splits import training_prompts
from posttrain.tables.store import read_table
from posttrain.train.loop import share_run
from posttrain.train.model_set import ModelSet
from posttrain.train.run_config import load_run
from posttrain.workspace import table_path


def main(run: str) -> None:
    """Writes models/online/RUN, rollouts/online/RUN, metrics/online/RUN.json and plots/online/RUN.csv."""
    share_run(f"online@{run}", load_run(f"online.runs.{run}", ONLINE))
    train_on_samples(load(run))


def load(run: str) -> LoadedRun:
    """Return the run with its models and prompts."""
    name, section = f"online@{run}", f"online.runs.{run}"
    params: OnlineParams = load_run(section, ONLINE)
    start, table = needed_model(params.start, f"{section}.start"), table_path(params.data)

    text = load_text(start, params.date)
    rows = training_prompts(read_table(table, "prompts"), table).iter_rows(named=True)
    prompts = scorable_prompts(params.reward, encode_prompts(text, prompts_of(rows)), str(table))

    objective = params.objective()
    models = ModelSet.load(
        params.runtime(),
        start,
        objective.needs | ({"ref_logp"} if params.sampling_plan().mixture else set()),
        params,
        temperature=params.rollout.sampling.temperature,
    )
    return LoadedRun(name, params, objective, models, text, prompts, [start, table])


if __name__ == "__main__":
    run_named_stage(main)
