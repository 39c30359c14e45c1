"""online: one run of reinforcement learning (GRPO, PPO and others) on the policy's own samples, from top to bottom."""

from __future__ import annotations

from posttrain.data.splits import training_prompts
from posttrain.distributed import world
from posttrain.errors import DataError
from posttrain.files import rounded, write_json
from posttrain.measure.record import note
from posttrain.models.files.store import save_model
from posttrain.models.files.text import context_of, load_text
from posttrain.online.collect import PolicyGroups
from posttrain.online.run import Loaded, rewards_of, section_of, training_run
from posttrain.pipeline.params.named_runs import load_run
from posttrain.pipeline.params.params_file import at, read
from posttrain.pipeline.params.slots import needed_model
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.heldout import heldout_prompts, heldout_watch
from posttrain.pipeline.runs.online import ONLINE, OnlineParams, inputs_of, reward_model_of
from posttrain.pipeline.runs.training import run_watched, share_run
from posttrain.pipeline.tables.store import check_table, read_table
from posttrain.pipeline.workspace import metrics_path, model_path, rollouts_path, table_path
from posttrain.rewards.canaries import check_canaries
from posttrain.rewards.scorable import refuse_unread, scorable_prompts, stored_unread
from posttrain.rewards.usage import judge_totals
from posttrain.sampling.engines import ENGINES, SampledModel
from posttrain.sampling.episodes import longest_row
from posttrain.sampling.sampler import check_capacity, encode_prompts, prompts_of
from posttrain.train.model_set import ModelSet


def main(run: str) -> None:
    """Writes models/online/RUN, rollouts/online/RUN, metrics/online/RUN.json and plots/online/RUN.csv."""
    name, params = f"online@{run}", load_run(f"online.runs.{run}", ONLINE)
    share_run(name, params)
    train_on_samples(name, params, load(name, params))


def load(name: str, params: OnlineParams) -> Loaded:
    """Read the prompts of the table that the rewards can score, and the models that the objective needs."""
    start, table = needed_model(params.start, f"{section_of(name)}.start"), table_path(params.data)
    if at(read(), section_of(name)).get("reward") is None:
        refuse_unread(stored_unread(table), section_of(name), f"of {table}")
    text = load_text(start, params.date, params.template)
    rows = training_prompts(read_table(table, "prompts"), table).iter_rows(named=True)
    prompts = scorable_prompts(params.reward, encode_prompts(text, prompts_of(rows)), str(table))
    temperature = params.rollout.sampling.temperature
    models = ModelSet.load(params.runtime(), start, params.needs, params, temperature=temperature)
    if params.critic_start is not None and not load_text(params.critic_start).same_as(load_text(start)):
        what, fix = "its tokens or chat template are not the policy's", "Use a reward model that was trained from it"
        raise DataError(what=what, where=f"{section_of(name)}.critic", fix=fix)
    return Loaded(text, prompts, models, [start, table])


def train_on_samples(name: str, params: OnlineParams, run: Loaded) -> None:
    """Sample, score, train; writes the model, its rollouts and its metrics."""
    section, rollout, (text, prompts, models, inputs) = section_of(name), params.rollout, run
    lengths = [prompt.ids for prompt in prompts]
    check_capacity(text.context, lengths, rollout.prompts * rollout.group_size, rollout.sampling, f"{section}.rollout")
    rewards, monitor = rewards_of(name, params, run, reward_model_of(name, params)), params.monitor(section)
    world.from_first(lambda: check_canaries(rewards, prompts[: params.canaries], section))
    log = params.rollout_log(name, text, max(map(len, lengths)))

    sampled = SampledModel(models.policy, inputs[0], text, models.runtime)
    heldout = heldout_prompts(params, text, section)
    longest = longest_row([*prompts, *heldout], rollout.sampling, context_of(models.policy.config))
    with ENGINES[rollout.engine].open(
        sampled, params.sampling, longest, f"{section}.rollout", rollout.engine_args, rollout.engine_servers
    ) as sampler:
        groups = PolicyGroups(
            sampler, text, models, rollout,
            seed=params.seed, name=name, mixture=params.mixture_share, opponents=params.has_opponents,
            sampling=params.sampling,
        )  # fmt: skip
        world.from_first(lambda: rewards.load(prompts))
        training = training_run(name, params, run, groups, rewards, monitor, log if world.is_rank_zero() else None)
        watch = heldout_watch(params, models, text, heldout, rewards, training.source.steps, section, sampler)
        metrics, watched = run_watched(training, inputs_of(name, params, run), watch)
    monitor.close()

    steps = len(metrics.rows)
    policy = models.gather_on_rank_zero().policy
    log.finish(rollouts_path(name), metrics.rows, lambda rows, file: check_table(rows, "training_rollouts", file))
    note(weights_version=f"{name} step {watched.get('kept_step', steps)}")
    save_model(policy, model_path(name), inputs[0], params.save_dtype)
    last = {key: metrics.tail(key, 10) for key in params.summary if metrics.last([key])}
    figures = rounded(last) | judge_totals(metrics.rows[:: rollout.steps_a_round])
    write_json(metrics_path(name), {"algorithm": params.algorithm, "steps": steps, **figures, **watched})


if __name__ == "__main__":
    run_named_stage(main)
