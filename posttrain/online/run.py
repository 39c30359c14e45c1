"""The stage `online`: reinforcement learning on the policy's own samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from posttrain.algorithms.policy import POLICY_ROWS, PolicyKnobs, PolicyObjective, group_refusal, reuse_refusal
from posttrain.models.device import Device
from posttrain.models.store import load_model, load_scorer, load_tokenizer, save_model
from posttrain.online.rollouts import Prompt, RolloutParams, Rollouts
from posttrain.online.trpo import Trpo
from posttrain.rewards.blend import make_blend
from posttrain.tables.store import read_table
from posttrain.text.chat import ChatText
from posttrain.train.modules import Modules
from posttrain.train.named import load_run, start_path
from posttrain.train.optimizer import Update
from posttrain.train.settings import TrainingParams, adamw, run_training
from posttrain.workspace import metrics_path, model_path, rounded, write_json

PROMPTS = Path("data/prompts.parquet")


class OnlineRun(TrainingParams, PolicyKnobs):
    """One run of `online.runs`: an algorithm, any of its knobs, its rewards and how it is trained."""

    algorithm: str = Field(description="a row of docs/algorithms.md")
    start: str = Field("sft", description="the model it starts from, a folder under models/")
    reward: dict[str, float] = Field({"correct": 1.0, "format": 0.2}, description="weight of each reward by name")
    rollout: RolloutParams = Field(default_factory=RolloutParams)

    @model_validator(mode="after")
    def _fits_the_rollout(self) -> OnlineRun:
        size, epochs = self.rollout.group_size, self.rollout.epochs
        alone, stale = group_refusal(self, size), reuse_refusal(self, epochs)
        refused = f"rollout.group_size = {size}: {alone}" if alone else stale and f"rollout.epochs = {epochs}: {stale}"
        if refused and not self.experimental:
            raise ValueError(f"{refused}, or experimental: true")
        if self.ptx:
            raise ValueError("ptx mixes in pretraining text, which the stage online does not supply yet. Set ptx to 0")
        if self.overlong is not None and self.overlong >= self.rollout.sampling.max_tokens:
            raise ValueError("overlong must be below rollout.sampling.max_tokens. Lower it")
        return self


def train_online(run: str) -> None:
    """Train the start model as one run of `online.runs` says."""
    params = load_run(OnlineRun, f"online.runs.{run}", POLICY_ROWS)
    name, folder = f"online@{run}", start_path(params.start, f"online.runs.{run}")
    text = ChatText(load_tokenizer(folder), str(folder))
    device = Device(params.device)
    knobs = PolicyKnobs(**params.model_dump(include=set(PolicyKnobs.model_fields)))
    objective = PolicyObjective(knobs, params.rollout.sampling.max_tokens)
    modules = _modules(params, objective.needs, folder, device)
    source = Rollouts(
        _prompts(text),
        make_blend(params.reward, f"online.runs.{run}", model_path("reward"), device),
        modules,
        objective.needs,
        params.rollout,
        text=text,
        seed=params.seed,
        resample=knobs.resample,
        overlong=knobs.overlong,
    )
    update = _update(params, modules, source.steps)
    inputs = [folder, PROMPTS, *([model_path("reward")] if "model" in params.reward else [])]
    watch = ("reward", "length", "kl_k3", "loss")
    log = run_training(name, params, inputs, objective, source, modules, update, watch)
    save_model(modules.policy, model_path(name), folder)
    shown: dict[str, float] = {
        key: log.tail(key, 10) for key in ("reward", "length", "entropy", "kl_k3") if key in log.rows[-1]
    }
    write_json(metrics_path(name), {"algorithm": params.algorithm, "steps": source.steps, **rounded(shown)})


def _modules(params: OnlineRun, needs: frozenset[str], folder: Path, device: Device) -> Modules:
    """The models that the objective's needs call for, no others."""
    return Modules(
        load_model(folder).to(device.torch),
        device,
        reference=load_model(folder).to(device.torch) if "ref_logp" in needs else None,
        critic=load_scorer(folder, params.seed).to(device.torch) if "value" in needs else None,
        old=load_model(folder).to(device.torch) if "kl_old" in needs else None,
        temperature=params.rollout.sampling.temperature,
        micro_tokens=params.micro_tokens,
    )


def _update(params: OnlineRun, modules: Modules, steps: int) -> Update:
    if params.update == "adamw":
        return adamw(modules, params, steps)
    critic: Any = None
    if modules.critic is not None:
        critic = adamw(Modules(modules.critic, modules.device), params, steps)
    return Trpo(modules.policy, params.trpo, critic)


def _prompts(text: ChatText) -> list[Prompt]:
    frame = read_table(PROMPTS, "prompts").filter(split="train")
    return [Prompt(row["id"], text.prompt(row["prompt"]), row["answer"]) for row in frame.iter_rows(named=True)]
