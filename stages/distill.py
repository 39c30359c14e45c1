"""distill: one named run of learning a teacher's distribution, on given answers or on the student's own samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from posttrain.errors import ParamsError
from posttrain.measure.phases import phase
from posttrain.models.device import Runtime
from posttrain.models.store import load_ends, load_policy, load_tokenizer, save_model
from posttrain.online.rollouts import Rollouts
from posttrain.online.runs import DISTILL, DistillRun
from posttrain.online.watch import Watch
from posttrain.params import PARAMS_FILE
from posttrain.rewards.reward import Context, RewardSum
from posttrain.sampling.local import LocalSampler
from posttrain.sampling.sampler import check_capacity, encode_prompts, prompts_of
from posttrain.slots import model_of, needed_model, table_of
from posttrain.stage import run_named_stage
from posttrain.tables.store import read_table
from posttrain.text.chat import ChatText, Message
from posttrain.train.loop import run_training
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.run_config import load_run
from posttrain.workspace import metrics_path, model_path, rounded, table_path, write_json


def main(run: str) -> None:
    """Writes models/distill/RUN, metrics/distill/RUN.json and plots/distill/RUN.csv."""
    name, section = f"distill@{run}", f"distill.runs.{run}"
    params: DistillRun = load_run(section, DISTILL)
    start = needed_model(params.start, f"{section}.start")
    teacher = needed_model(params.teacher, f"{section}.teacher")
    table, reward_model = table_path(params.data), model_of(params.reward_model, f"{section}.reward_model")

    text = ChatText(load_tokenizer(start), str(start), load_ends(start), params.date)
    _check_tokenizer(text, teacher, params, section)
    rows = read_table(table, "prompts").filter(split="train").iter_rows(named=True)
    prompts = encode_prompts(text, prompts_of(rows))

    objective, runtime = params.objective(), Runtime(params.device)
    models = ModelSet.load(
        runtime,
        start,
        objective.needs,
        micro_tokens=params.micro_tokens,
        temperature=params.rollout.sampling.temperature,
        teacher=Teacher(
            load_policy(teacher).to(runtime.torch),
            params.formula(),
            None if params.context is None else _in_context(text, params, params.context),
        ),
    )

    drawn = params.rollout.prompts * params.rollout.group_size
    check_capacity(models.policy, [one.ids for one in prompts], drawn, params.rollout.sampling, f"{section}.rollout")
    rollouts = Rollouts(
        prompts,
        LocalSampler(models.policy, text.stops, runtime),
        RewardSum(params.reward, Context(runtime, section, reward_model)),
        models,
        objective.needs,
        params.rollout,
        text=text,
        seed=params.seed,
        watch=Watch(section, {}, compares=False),  # the rewards are not learned from
    )

    source = params.source(rollouts, text)
    log = run_training(
        name,
        params,
        [start, table, teacher, *params.tables(), *([reward_model] if reward_model else [])],
        objective,
        source,
        models,
        params.update_rule(models, source.steps),
        ("reward", "length", "teacher_kl", "loss"),
        step_tokens=params.step_tokens(max(len(one.ids) for one in prompts)),
    )

    save_model(models.policy, model_path(name), start, params.save_dtype)
    shown: dict[str, float] = {
        key: log.tail(key, 10) for key in ("reward", "length", "teacher_kl") if key in log.rows[-1]
    }
    write_json(metrics_path(name), {"algorithm": params.algorithm, "steps": source.steps, **rounded(shown)})


def _check_tokenizer(text: ChatText, teacher: Path, params: DistillRun, section: str) -> None:
    if text.tokenizer.get_vocab() != load_tokenizer(teacher).get_vocab():
        what = f"{section}.teacher = '{params.teacher}' has another tokenizer than '{params.start}'"
        fix = "A distribution over tokens can be learned from a teacher of the same tokenizer only"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)


@phase("load")
def _in_context(text: ChatText, params: DistillRun, context: str) -> Mapping[tuple[int, ...], list[int]]:
    """What the teacher sees for each prompt of the student: a system turn more."""
    asked = read_table(table_path(params.data), "prompts").filter(split="train")["prompt"].to_list()
    if chat := table_of(params.demonstrations):
        asked += [turns[:-1] for turns in read_table(chat, "chat").filter(split="train")["messages"].to_list()]
    plain, framed = text.prompts(asked), text.prompts([with_system_prompt(turns, context) for turns in asked])
    return {tuple(ids): seen for ids, seen in zip(plain, framed, strict=True)}


def with_system_prompt(turns: Sequence[Message], context: str) -> list[Message]:
    """A conversation whose system turn begins with the context."""
    if turns and turns[0]["role"] == "system":
        return [{"role": "system", "content": f"{context}\n\n{turns[0]['content']}"}, *turns[1:]]
    return [{"role": "system", "content": context}, *turns]


if __name__ == "__main__":
    run_named_stage(main)
