"""The stages `online` and `distill`: learning from the policy's own samples, by their rewards or from a teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from posttrain.algorithms.policy_knobs import GROUPED
from posttrain.algorithms.supervised import DistillKnobs
from posttrain.errors import ParamsError
from posttrain.measure.phases import phase
from posttrain.models.ends import load_ends
from posttrain.models.runtime import Runtime
from posttrain.models.store import load_policy, load_tokenizer, save_model
from posttrain.online.rollouts import Rollouts
from posttrain.online.runs import DISTILL, ONLINE, DistillRun, OnlineParams, PolicyRun, SampledPairRun
from posttrain.online.trpo import Trpo
from posttrain.online.watch import Watch
from posttrain.params import PARAMS_FILE
from posttrain.rewards.compose import RewardSum, judged_prompts
from posttrain.rewards.reward import Context
from posttrain.rollout import Prompt
from posttrain.sampling.capacity import check_capacity
from posttrain.sampling.generate import encode_prompts, prompts_of
from posttrain.sampling.local.sampler import LocalSampler
from posttrain.slots import model_of, needed_model, table_of
from posttrain.tables.store import read_table
from posttrain.text.chat import ChatText, Message
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.named import load_run
from posttrain.train.optimizer import Update
from posttrain.train.settings import adamw, run_training
from posttrain.workspace import metrics_path, model_path, rounded, table_path, write_json

WATCH = ("reward", "length", "kl_k3", "teacher_kl", "loss")
SHOWN = ("reward", "length", "entropy", "kl_k3", "accuracy", "teacher_kl")


def train_online(run: str) -> None:
    """Train the start model as one run of `online.runs` says."""
    section = f"online.runs.{run}"
    params = load_run(section, ONLINE)
    folder = needed_model(params.start, f"{section}.start")
    needs = params.objective().needs | ({"ref_logp"} if params.shaping().mixture else set())
    models = ModelSet.load(
        Runtime(params.device),
        folder,
        needs,
        micro_tokens=params.micro_tokens,
        temperature=params.rollout.sampling.temperature,
    )
    _train(f"online@{run}", section, params, folder, models, [])


def train_distill(run: str) -> None:
    """Train the start model towards the teacher that one run of `distill.runs` names."""
    section = f"distill.runs.{run}"
    params: DistillRun = load_run(section, DISTILL)
    folder = needed_model(params.start, f"{section}.start")
    teacher = needed_model(params.teacher, f"{section}.teacher")
    text = ChatText(load_tokenizer(folder), str(folder), today=params.date)
    if text.tokenizer.get_vocab() != load_tokenizer(teacher).get_vocab():
        what = f"{section}.teacher = '{params.teacher}' has another tokenizer than '{params.start}'"
        fix = "A distribution over tokens can be learned from a teacher of the same tokenizer only"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=fix)
    runtime = Runtime(params.device)
    models = ModelSet.load(
        runtime,
        folder,
        params.objective().needs,
        micro_tokens=params.micro_tokens,
        temperature=params.rollout.sampling.temperature,
        teacher=Teacher(
            load_policy(teacher).to(runtime.torch),
            params.knobs(DistillKnobs).formula(),
            None if params.context is None else _with_context(text, params),
        ),
    )
    _train(f"distill@{run}", section, params, folder, models, [teacher])


def _train(
    name: str, section: str, params: OnlineParams, folder: Path, models: ModelSet, others: Sequence[Path]
) -> None:
    text = ChatText(load_tokenizer(folder), str(folder), load_ends(folder), params.date)
    table, reward = table_path(params.data), model_of(params.reward_model, f"{section}.reward_model")
    objective, prompts = params.objective(), _prompts(text, table)
    if not isinstance(params, DistillRun):  # which only watches it
        prompts = judged_prompts(params.reward, prompts, str(table))
    size = params.rollout.prompts * params.rollout.group_size
    check_capacity(models.policy, [one.ids for one in prompts], size, params.rollout.sampling, f"{section}.rollout")
    watch = _watch(params, section)
    samples = Rollouts(
        prompts,
        LocalSampler(models.policy, text.stops, models.runtime),
        RewardSum(params.reward, Context(models.runtime, section, reward)),
        models,
        objective.needs,
        params.rollout,
        text=text,
        seed=params.seed,
        shaping=params.shaping(),
        watch=watch,
    )
    source = params.source(samples, text)
    update = _update(params, models, source.steps)
    inputs = [folder, table, *others, *params.tables(), *([reward] if reward else [])]
    tokens = _step_tokens(params, prompts)
    log = run_training(name, params, inputs, objective, source, models, update, WATCH, step_tokens=tokens)
    watch.close()
    save_model(models.policy, model_path(name), folder, params.save_dtype)
    shown: dict[str, float] = {key: log.tail(key, 10) for key in SHOWN if key in log.rows[-1]}
    write_json(metrics_path(name), {"algorithm": params.algorithm, "steps": source.steps, **rounded(shown)})


def _step_tokens(params: OnlineParams, prompts: Sequence[Prompt]) -> int:
    """The most tokens that an optimizer step can hold: rows of the longest prompt and the longest completion."""
    size = params.rollout.group_size
    groups = -(-params.rollout.prompts // params.rollout.minibatches) + params.rollout.replay.groups
    longest = max(len(one.ids) for one in prompts) + params.rollout.sampling.max_tokens
    if isinstance(params, DistillRun):
        return groups * size * max(longest, params.max_tokens)
    text = params.text.rows * (params.text.window + 1) if isinstance(params, PolicyRun) and params.ptx else 0
    rows = size * (size - 1) if isinstance(params, SampledPairRun) else size  # a pair may be any two of a group
    return groups * rows * longest + text


def _watch(params: OnlineParams, section: str) -> Watch:
    """Distillation learns nothing from its rewards; only what compares a group needs rewards that differ in it."""
    if isinstance(params, DistillRun):
        return Watch(section, {}, compares=False)
    grouped = isinstance(params, PolicyRun) and params.advantage in GROUPED
    return Watch(section, params.reward, compares=grouped or isinstance(params, SampledPairRun))


def _update(params: OnlineParams, models: ModelSet, steps: int) -> Update:
    if not isinstance(params, PolicyRun) or params.update == "adamw":
        return adamw(models.trained, params, steps)
    critic = None if models.critic is None else adamw({"critic": models.critic}, params, steps)
    return Trpo(models.policy, params.trpo, critic)


@phase("load")
def _prompts(text: ChatText, table: Path) -> list[Prompt]:
    return encode_prompts(text, prompts_of(read_table(table, "prompts").filter(split="train").iter_rows(named=True)))


@phase("load")
def _with_context(text: ChatText, params: DistillRun) -> Mapping[tuple[int, ...], list[int]]:
    """What the teacher sees for each prompt of the student: a system turn more."""
    asked = read_table(table_path(params.data), "prompts").filter(split="train")["prompt"].to_list()
    if chat := table_of(params.demonstrations):
        asked += [turns[:-1] for turns in read_table(chat, "chat").filter(split="train")["messages"].to_list()]
    context = params.context or ""
    plain, framed = text.prompts(asked), text.prompts([told(turns, context) for turns in asked])
    return {tuple(ids): seen for ids, seen in zip(plain, framed, strict=True)}


def told(turns: Sequence[Message], context: str) -> list[Message]:
    """A conversation whose system turn begins with the context."""
    if turns and turns[0]["role"] == "system":
        return [{"role": "system", "content": f"{context}\n\n{turns[0]['content']}"}, *turns[1:]]
    return [{"role": "system", "content": context}, *turns]
