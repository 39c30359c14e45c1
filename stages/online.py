"""online: one named run of reinforcement learning (GRPO, PPO and their kin) on the policy's own samples."""

from __future__ import annotations

from posttrain.models.device import Runtime
from posttrain.models.store import load_ends, load_tokenizer, save_model
from posttrain.online.rollouts import Rollouts
from posttrain.online.runs import ONLINE, OnlineParams
from posttrain.online.watch import Watch
from posttrain.rewards.reward import Context, RewardSum, judged_prompts
from posttrain.sampling.local import LocalSampler
from posttrain.sampling.sampler import check_capacity, encode_prompts, prompts_of
from posttrain.slots import model_of, needed_model
from posttrain.stage import run_named_stage
from posttrain.tables.store import read_table
from posttrain.text.chat import ChatText
from posttrain.train.loop import run_training
from posttrain.train.model_set import ModelSet
from posttrain.train.run_config import load_run
from posttrain.workspace import metrics_path, model_path, rounded, table_path, write_json

SHOWN = ("reward", "length", "entropy", "kl_k3", "accuracy")


def main(run: str) -> None:
    """Writes models/online/RUN, metrics/online/RUN.json and plots/online/RUN.csv."""
    name, section = f"online@{run}", f"online.runs.{run}"
    params: OnlineParams = load_run(section, ONLINE)
    start, table = needed_model(params.start, f"{section}.start"), table_path(params.data)
    reward_model = model_of(params.reward_model, f"{section}.reward_model")

    text = ChatText(load_tokenizer(start), str(start), load_ends(start), params.date)
    rows = read_table(table, "prompts").filter(split="train").iter_rows(named=True)
    prompts = judged_prompts(params.reward, encode_prompts(text, prompts_of(rows)), str(table))

    objective, shaping = params.objective(), params.shaping()
    needs = objective.needs | ({"ref_logp"} if shaping.mixture else set())
    temperature = params.rollout.sampling.temperature
    models = ModelSet.load(
        Runtime(params.device), start, needs, micro_tokens=params.micro_tokens, temperature=temperature
    )

    drawn = params.rollout.prompts * params.rollout.group_size
    check_capacity(models.policy, [one.ids for one in prompts], drawn, params.rollout.sampling, f"{section}.rollout")
    watch = Watch(section, params.reward, compares=params.compares_groups)
    rollouts = Rollouts(
        prompts,
        LocalSampler(models.policy, text.stops, models.runtime),
        RewardSum(params.reward, Context(models.runtime, section, reward_model)),
        models,
        objective.needs,
        params.rollout,
        text=text,
        seed=params.seed,
        shaping=shaping,
        watch=watch,
    )

    source = params.source(rollouts, text)
    log = run_training(
        name,
        params,
        [start, table, *params.tables(), *([reward_model] if reward_model else [])],
        objective,
        source,
        models,
        params.update_rule(models, source.steps),
        ("reward", "length", "kl_k3", "loss"),
        step_tokens=params.step_tokens(max(len(one.ids) for one in prompts)),
    )
    watch.close()

    save_model(models.policy, model_path(name), start, params.save_dtype)
    shown: dict[str, float] = {key: log.tail(key, 10) for key in SHOWN if key in log.rows[-1]}
    write_json(metrics_path(name), {"algorithm": params.algorithm, "steps": source.steps, **rounded(shown)})


if __name__ == "__main__":
    run_named_stage(main)
