"""The stages `reward` and `preference`: learning from comparisons and from unpaired feedback."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.preference import (
    PREFERENCE_ROWS,
    PreferenceKnobs,
    PreferenceObjective,
    RewardKnobs,
    RewardObjective,
)
from posttrain.errors import ParamsError
from posttrain.measure.phases import phase
from posttrain.models.device import Device
from posttrain.models.forward import score_rows
from posttrain.models.store import load_policy, load_scorer, load_tokenizer, save_model
from posttrain.params import PARAMS_FILE
from posttrain.tables.store import read_table
from posttrain.text.chat import ChatText
from posttrain.text.layout import pack
from posttrain.train.batch import Source
from posttrain.train.epochs import Epochs, Item, PartedEpochs, UnpairedEpochs, stack
from posttrain.train.modules import Modules
from posttrain.train.named import Algorithm, load_run, start_path
from posttrain.train.rows import comparisons, demonstrations, feedback, rankings
from posttrain.train.settings import TrainingParams, adamw, run_training
from posttrain.workspace import metrics_path, model_path, rounded, write_json

PAIRS, FEEDBACK = Path("data/pairs.parquet"), Path("data/feedback.parquet")
CHAT = Path("data/chat.parquet")


class RewardParams(TrainingParams):
    """Section `reward`: the reward model."""

    epochs: float = Field(2.0, gt=0, description="times through the comparisons")
    batch: int = Field(16, ge=1, description="comparisons per step")
    max_tokens: int = Field(256, ge=8, description="longer rows are left out, and counted")
    demonstrations: int = Field(500, ge=1, description="demonstrations whose mean score becomes the zero of all scores")
    objective: RewardKnobs = Field(default_factory=RewardKnobs)

    @model_validator(mode="after")
    def _supplied(self) -> RewardParams:
        if self.objective.compare == "ranks" and self.objective.margins == "column":
            raise ValueError(
                "objective.margins column comes with pairs, and the table of feedback that ranks are made of has none. "
                "Use compare pairs, or margins constant"
            )
        return self


class PreferenceRun(TrainingParams, PreferenceKnobs):
    """One run of `preference.runs`: an algorithm, any of its knobs, and how it is trained."""

    algorithm: str = Field(description="a row of docs/algorithms.md")
    start: str = Field("sft", description="the model it starts from, a folder under models/")
    epochs: float = Field(1.0, gt=0, description="times through the data")
    batch: int = Field(16, ge=1, description="comparisons or judged answers per step")
    max_tokens: int = Field(256, ge=8, description="longer rows are left out, and counted")


PREFERENCE: dict[str, Algorithm] = {name: Algorithm(row, PreferenceRun) for name, row in PREFERENCE_ROWS.items()}


def train_reward(params: RewardParams) -> None:
    """Train a scalar head and its backbone on the comparisons."""
    folder = model_path("sft")
    text = ChatText(load_tokenizer(folder), str(folder), today=params.date)
    device = Device(params.device)
    modules = Modules(load_scorer(folder, params.seed).to(device.torch), device, micro_tokens=params.micro_tokens)
    frame = read_table(PAIRS, "pairs")
    items, heldout = (
        comparisons(text, frame.filter(split=split).iter_rows(named=True), params.max_tokens, str(PAIRS))
        for split in ("train", "heldout")
    )
    objective, inputs = RewardObjective(params.objective), [folder, PAIRS]
    if "rank" in objective.needs:
        judged = read_table(FEEDBACK, "feedback").filter(split="train")
        items = rankings(text, judged.iter_rows(named=True), params.max_tokens, str(FEEDBACK))
        inputs.append(FEEDBACK)
    source = Epochs(items, params.batch, params.epochs, params.seed)
    told = read_table(CHAT, "chat").filter(split="train").head(params.demonstrations)
    shown = demonstrations(text, told.iter_rows(named=True), params.max_tokens, str(CHAT))
    inputs.append(CHAT)
    update = adamw(modules, params, source.steps)
    watch = ("loss", "accuracy")
    run_training("reward", params, inputs, objective, source, modules, update, watch)
    measured = {**_accuracy(modules, heldout), "demonstrations_score": float(_scores(modules, shown).mean())}
    modules.policy.config.reward_shift = measured["demonstrations_score"]
    save_model(modules.policy, model_path("reward"), folder)
    write_json(metrics_path("reward"), {"steps": source.steps, "pairs": len(items), **rounded(measured)})
    print(f"reward: held-out accuracy {measured['heldout_accuracy']:.3f}, saved in {model_path('reward')}")


def train_preference(run: str) -> None:
    """Train the start model as one run of `preference.runs` says."""
    params: PreferenceRun = load_run(f"preference.runs.{run}", PREFERENCE)
    name, folder = f"preference@{run}", start_path(params.start, f"preference.runs.{run}")
    text = ChatText(load_tokenizer(folder), str(folder), today=params.date)
    device = Device(params.device)
    objective = PreferenceObjective(PreferenceKnobs(**params.model_dump(include=_set_knobs(params))))
    reference = load_policy(folder).to(device.torch) if "ref_logp" in objective.needs else None
    modules = Modules(load_policy(folder).to(device.torch), device, reference, micro_tokens=params.micro_tokens)
    table = FEEDBACK if "label" in objective.needs else PAIRS
    frame = read_table(table, "feedback" if table is FEEDBACK else "pairs").filter(split="train")
    rows = (feedback if table is FEEDBACK else comparisons)(
        text, frame.iter_rows(named=True), params.max_tokens, str(table)
    )
    if params.parts > len(rows):
        what = f"preference.runs.{run}.parts = {params.parts} parts cannot be made of {len(rows)} rows"
        raise ParamsError(what=what, where=PARAMS_FILE, mend="Use fewer")
    source = preference_source(objective, rows, params.batch, params.epochs, params.seed, modules)
    update = adamw(modules, params, source.steps)
    watch = ("loss", "accuracy")
    log = run_training(name, params, [folder, table], objective, source, modules, update, watch)
    save_model(modules.policy, model_path(name), folder)
    shown: dict[str, float] = {key: log.tail(key, 10) for key in ("loss", "accuracy") if key in log.rows[-1]}
    write_json(metrics_path(name), {"algorithm": params.algorithm, "steps": source.steps, **rounded(shown)})


def preference_source(
    objective: PreferenceObjective, rows: list[Item], batch: int, epochs: float, seed: int, modules: Modules
) -> Source:
    """The rows in the order and company that the objective asks for."""
    if objective.knobs.parts > 1:
        return PartedEpochs(rows, batch, epochs, seed, parts=objective.knobs.parts, modules=modules)
    return (UnpairedEpochs if objective.mismatched else Epochs)(rows, batch, epochs, seed)


def _set_knobs(params: PreferenceRun) -> set[str]:
    """The objective's knobs that the row or the user set, so that none is read as set that was not."""
    return params.model_fields_set & set(PreferenceKnobs.model_fields)


def _accuracy(modules: Modules, items: list[Item]) -> dict[str, float]:
    """How often the better answer scores higher, over comparisons without noise."""
    scores = _scores(modules, items)
    won = scores[0::2] - scores[1::2]
    return {"heldout_accuracy": float((won > 0).float().mean()), "heldout_margin": float(won.mean())}


@phase("score")
@torch.no_grad()
def _scores(modules: Modules, items: list[Item]) -> Tensor:
    """The score of every answer."""
    parts = [
        score_rows(modules.policy, pack(m.prompts, m.completions).to(modules.device.torch))
        for m in modules.micros(stack(items))
    ]
    return torch.cat(parts).double().cpu()
