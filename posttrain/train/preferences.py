"""The stages `reward` and `preference`: learning from comparisons and from unpaired feedback."""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import Tensor

from posttrain.algorithms.preference import PreferenceObjective
from posttrain.algorithms.preference_rows import PREFERENCE_ROWS, PreferenceKnobs
from posttrain.algorithms.reward import RewardKnobs, RewardObjective
from posttrain.errors import ParamsError
from posttrain.measure.phases import phase
from posttrain.models.device import Device
from posttrain.models.forward import score_rows
from posttrain.models.rounding import round_weights
from posttrain.models.store import load_policy, load_scorer, load_tokenizer, save_model
from posttrain.params import PARAMS_FILE, load
from posttrain.slots import NONE, model_slot, needed_model, table_of, table_slot
from posttrain.tables.columns import Kind
from posttrain.tables.store import read_table
from posttrain.text.chat import ChatText
from posttrain.text.layout import pack
from posttrain.train.batch import Source
from posttrain.train.epochs import Epochs, Item, PartedEpochs, UnpairedEpochs, stack
from posttrain.train.estimate import most_tokens
from posttrain.train.modules import Modules
from posttrain.train.named import Algorithm, load_run
from posttrain.train.rows import comparisons, demonstrations, feedback, rankings
from posttrain.train.settings import TrainingParams, adamw, run_training
from posttrain.workspace import metrics_path, model_path, rounded, table_path, write_json


class RewardRun(TrainingParams):
    """One run of `reward.runs`: a reward model."""

    start: str = model_slot("the model whose backbone it takes")
    data: str = table_slot("pairs", description="the comparisons")
    feedback: str = table_slot("feedback", description="judged answers, for objective.compare ranks", optional=True)
    demonstrations: str = table_slot("chat", description="answers whose mean score becomes 0", optional=True)
    epochs: float = Field(2.0, gt=0, description="times through the comparisons")
    batch: int = Field(16, ge=1, description="comparisons per step")
    max_tokens: int = Field(256, ge=8, description="longer rows are left out, and counted")
    shown: int = Field(500, ge=1, description="so many demonstrations are scored")
    objective: RewardKnobs = Field(default_factory=RewardKnobs)

    @model_validator(mode="after")
    def _supplied(self) -> RewardRun:
        if (self.objective.compare == "ranks") != (self.feedback != NONE):
            raise ValueError(
                "feedback is read where objective.compare is ranks, and only there. "
                "Name a table of feedback with compare ranks, or feedback: none"
            )
        if self.objective.compare == "ranks" and self.objective.margins == "column":
            raise ValueError(
                "objective.margins column comes with pairs, and the table of feedback that ranks are made of has none. "
                "Use compare pairs, or margins constant"
            )
        return self


class PreferenceRun(TrainingParams, PreferenceKnobs):
    """One run of `preference.runs`: an algorithm, any of its settings, and how it is trained."""

    algorithm: str = Field(description="a row of docs/algorithms.md")
    start: str = model_slot("the model it starts from")
    data: str = table_slot("pairs", "feedback", description="comparisons, or feedback for kto and bco")
    epochs: float = Field(1.0, gt=0, description="times through the data")
    batch: int = Field(16, ge=1, description="comparisons or judged answers per step")
    max_tokens: int = Field(256, ge=8, description="longer rows are left out, and counted")


PREFERENCE: dict[str, Algorithm] = {name: Algorithm(row, PreferenceRun) for name, row in PREFERENCE_ROWS.items()}


def train_reward(run: str) -> None:
    """Train a scalar head and its backbone on comparisons."""
    name, section = f"reward@{run}", f"reward.runs.{run}"
    params = load(RewardRun, section)
    folder, pairs = needed_model(params.start, f"{section}.start"), table_path(params.data)
    text = ChatText(load_tokenizer(folder), str(folder), today=params.date)
    device = Device(params.device)
    modules = Modules(load_scorer(folder).to(device.torch), device, micro_tokens=params.micro_tokens)
    frame = read_table(pairs, "pairs")
    items, heldout = (
        comparisons(text, frame.filter(split=split).iter_rows(named=True), params.max_tokens, str(pairs))
        for split in ("train", "heldout")
    )
    objective, inputs = RewardObjective(params.objective), [folder, pairs]
    if judged := table_of(params.feedback):
        rows = read_table(judged, "feedback").filter(split="train")
        items = rankings(text, rows.iter_rows(named=True), params.max_tokens, str(judged))
        inputs.append(judged)
    source = Epochs(items, params.batch, params.epochs, params.seed)
    shown: list[Item] = []
    if chat := table_of(params.demonstrations):
        rows = read_table(chat, "chat").filter(split="train").head(params.shown)
        shown = demonstrations(text, rows.iter_rows(named=True), params.max_tokens, str(chat))
        inputs.append(chat)
    update = adamw(modules, params, source.steps)
    watch = ("loss", "accuracy")
    tokens = most_tokens(items, params.batch)
    run_training(name, params, inputs, objective, source, modules, update, watch, step_tokens=tokens)
    round_weights(modules.policy, folder, params.save_dtype)  # what is measured is what is saved
    measured = _accuracy(modules, heldout)
    if shown:
        measured["demonstrations_score"] = float(_scores(modules, shown).mean())
        modules.policy.config.reward_shift = measured["demonstrations_score"]
    save_model(modules.policy, model_path(name), folder, params.save_dtype)
    write_json(metrics_path(name), {"steps": source.steps, "pairs": len(items), **rounded(measured)})
    print(f"{name}: held-out accuracy {measured['heldout_accuracy']:.3f}, saved in {model_path(name)}")


def train_preference(run: str) -> None:
    """Train the start model as one run of `preference.runs` says."""
    name, section = f"preference@{run}", f"preference.runs.{run}"
    params: PreferenceRun = load_run(section, PREFERENCE)
    folder, table = needed_model(params.start, f"{section}.start"), table_path(params.data)
    text = ChatText(load_tokenizer(folder), str(folder), today=params.date)
    device = Device(params.device)
    objective, kind = PreferenceObjective(params), needed_kind(params, section)
    reference = load_policy(folder).to(device.torch) if "ref_logp" in objective.needs else None
    modules = Modules(load_policy(folder).to(device.torch), device, reference, micro_tokens=params.micro_tokens)
    frame = read_table(table, kind).filter(split="train")
    rows = (feedback if kind == "feedback" else comparisons)(
        text, frame.iter_rows(named=True), params.max_tokens, str(table)
    )
    if params.parts > len(rows):
        what = f"{section}.parts = {params.parts} parts cannot be made of {len(rows)} rows"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Use fewer")
    source = preference_source(objective, rows, params.batch, params.epochs, params.seed, modules)
    update = adamw(modules, params, source.steps)
    watch = ("loss", "accuracy")
    tokens = most_tokens(rows, params.batch) * (2 if objective.mismatched else 1)
    log = run_training(name, params, [folder, table], objective, source, modules, update, watch, step_tokens=tokens)
    save_model(modules.policy, model_path(name), folder, params.save_dtype)
    shown: dict[str, float] = {key: log.tail(key, 10) for key in ("loss", "accuracy") if key in log.rows[-1]}
    write_json(metrics_path(name), {"algorithm": params.algorithm, "steps": source.steps, **rounded(shown)})


def preference_source(
    objective: PreferenceObjective, rows: list[Item], batch: int, epochs: float, seed: int, modules: Modules
) -> Source:
    """The rows in the order and company that the objective asks for."""
    if objective.knobs.parts > 1:
        return PartedEpochs(rows, batch, epochs, seed, parts=objective.knobs.parts, modules=modules)
    return (UnpairedEpochs if objective.mismatched else Epochs)(rows, batch, epochs, seed)


def needed_kind(params: PreferenceRun, section: str) -> Kind:
    """The kind of table that the run learns from; refuses another one."""
    kind: Kind = "pairs" if params.paired else "feedback"
    run, _, named = params.data.partition("/")
    if named != kind:
        what = f"{section}.data = '{params.data}': {params.algorithm} learns from a table of {kind}"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Name one, e.g. {run}/{kind}")
    return kind


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
