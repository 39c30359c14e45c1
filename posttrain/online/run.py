"""The stages `online` and `distill`: learning from the policy's own samples, by their rewards or from a teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.algorithms.policy_knobs import TrpoOptions
from posttrain.errors import ParamsError
from posttrain.measure.phases import phase
from posttrain.models.device import Device
from posttrain.models.ends import load_ends
from posttrain.models.store import load_policy, load_scorer, load_tokenizer, save_model
from posttrain.online.rollouts import Prompt, Rollouts
from posttrain.online.runs import DISTILL, ONLINE, DistillRun, OnlineParams, PolicyRun, SampledPairRun
from posttrain.online.trpo import Trpo
from posttrain.online.watch import Watch
from posttrain.params import PARAMS_FILE
from posttrain.rewards.blend import check_answers, make_blend
from posttrain.rollout.room import check_room
from posttrain.slots import model_of, needed_model, table_of
from posttrain.tables.store import read_table
from posttrain.text.chat import ChatText, Message
from posttrain.train.modules import Modules
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
    device = Device(params.device)
    _train(f"online@{run}", section, params, folder, _modules(params, folder, device), [])


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
    device = Device(params.device)
    modules = Modules(
        load_policy(folder).to(device.torch),
        device,
        teacher=load_policy(teacher).to(device.torch),
        divergence=params.formula(),
        teacher_prompts=None if params.context is None else _with_context(text, params),
        temperature=params.rollout.sampling.temperature,
        micro_tokens=params.micro_tokens,
    )
    _train(f"distill@{run}", section, params, folder, modules, [teacher])


def _train(
    name: str, section: str, params: OnlineParams, folder: Path, modules: Modules, models: Sequence[Path]
) -> None:
    text = ChatText(load_tokenizer(folder), str(folder), load_ends(folder), params.date)
    table, reward = table_path(params.data), model_of(params.reward_model, f"{section}.reward_model")
    objective, prompts = params.objective(), _prompts(text, table)
    if not isinstance(params, DistillRun):  # which only watches it
        usable = check_answers(params.reward, {one.id: one.answer for one in prompts}, str(table))
        prompts = [one for one in prompts if one.id in usable]
    size = params.rollout.prompts * params.rollout.group_size
    check_room(modules.policy, [one.ids for one in prompts], size, params.rollout.sampling, f"{section}.rollout")
    watch = _watch(params, section)
    samples = Rollouts(
        prompts,
        make_blend(params.reward, section, reward, modules.device),
        modules,
        objective.needs,
        params.rollout,
        text=text,
        seed=params.seed,
        shaping=params.shaping(),
        watch=watch,
    )
    source = params.source(samples, text)
    update = _update(params, modules, source.steps)
    inputs = [folder, table, *models, *params.tables(), *([reward] if reward else [])]
    tokens = _step_tokens(params, prompts)
    log = run_training(name, params, inputs, objective, source, modules, update, WATCH, step_tokens=tokens)
    watch.close()
    save_model(modules.policy, model_path(name), folder, params.save_dtype)
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
    grouped = isinstance(params, PolicyRun) and params.compares.grouped
    return Watch(section, params.reward, compares=grouped or isinstance(params, SampledPairRun))


def _modules(params: OnlineParams, folder: Path, device: Device) -> Modules:
    """The models that the objective's needs and the sampling call for, no others."""
    needs = params.objective().needs
    return Modules(
        load_policy(folder).to(device.torch),
        device,
        reference=load_policy(folder).to(device.torch) if "ref_logp" in needs or params.shaping().mixture else None,
        critic=load_scorer(folder).to(device.torch) if "value" in needs else None,
        old=load_policy(folder).to(device.torch) if "kl_old" in needs else None,
        temperature=params.rollout.sampling.temperature,
        micro_tokens=params.micro_tokens,
    )


def _update(params: OnlineParams, modules: Modules, steps: int) -> Update:
    if not isinstance(params, PolicyRun) or not isinstance(params.update, TrpoOptions):
        return adamw(modules, params, steps)
    critic: Any = None
    if modules.critic is not None:
        critic = adamw(Modules(modules.critic, modules.device), params, steps)
    return Trpo(modules.policy, params.update, critic)


@phase("load")
def _prompts(text: ChatText, table: Path) -> list[Prompt]:
    frame = read_table(table, "prompts").filter(split="train")
    encoded = text.prompts(frame["prompt"].to_list())
    return [Prompt(*one) for one in zip(frame["id"], encoded, frame["answer"], strict=True)]


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
