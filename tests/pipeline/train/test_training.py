"""The loop and its checkpoints: a run that was cut off ends with the same bytes as one that was not."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.gpt2.configuration_gpt2 import GPT2Config

from posttrain.algorithms.distillation import DISTILL_ROWS
from posttrain.algorithms.policy_config import TrpoOptions
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_loss import PairLoss
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.data.columns import with_ids
from posttrain.errors import CheckpointError, ModelError, TrainingError
from posttrain.formulas.distill import forward_kl
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_model, load_scorer, load_tokenizer, new_model, save_model, scorer_of
from posttrain.models.forward.forward import value_tokens
from posttrain.models.master_weights import master_of
from posttrain.online.distill import MixedSource
from posttrain.online.ptx import PtxSource
from posttrain.online.rollout_params import RolloutParams
from posttrain.online.rounds import Rounds
from posttrain.online.sampled import SAMPLED_ROWS
from posttrain.online.sampled.pairs import BestAgainstWorst, pair_rule
from posttrain.online.trpo import Trpo
from posttrain.pipeline.params.named_runs import typed_run
from posttrain.pipeline.runs.distill import DISTILL
from posttrain.pipeline.runs.online import ONLINE, OnlineParams
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints, run_key
from posttrain.pipeline.tables.store import write_table
from posttrain.rewards.reward import WeightedReward
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.distributed import DistributedSampler
from posttrain.settings.params import check
from posttrain.settings.plain import merge
from posttrain.supervised.preference import preference_source
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import with_system_prompt
from posttrain.text.packing import pack
from posttrain.train import randomness
from posttrain.train.batch_sources import BatchSource, EpochSource, Example
from posttrain.train.checkpoint import CheckpointData, fingerprint
from posttrain.train.examples import RowLimit
from posttrain.train.loop import TrainingParams, TrainingRun, checkpoint_settings
from posttrain.train.loop import training_loop as train_with
from posttrain.train.metrics import CsvRecorder, MetricsLog
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.optimizer import AdamW, OptimizerParams, Update
from posttrain.train.step import Batch, StepClosure
from posttrain.train.tokenize_tables import rankings
from stages import base_scratch
from tests.library.models.tiny import function_reward, tiny_folder
from tests.library.online.rounds import rounds_of
from tests.marks import slow_except

DEVICE = Runtime(DeviceParams(threads=1))
OPTIMIZER = OptimizerParams(lr=3e-3)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dapo": ("dapo", {"overlong": 0.375}),
    "exact_penalty": ("ppo_penalty", {"penalty": {"type": "exact", "target": 1e-5}}),
    "corrected": ("cispo", {"correction": {"type": "mask", "level": "sequence"}}),
    "moving_average": ("reinforce", {"advantage": "moving_average"}),
    "adaptive_kl": ("ppo", {"kl": {"target": 1e-3, "horizon": 50}}),
    "ahead": ("grpo", {"correction": "truncate", "rollout": {"ahead": 1}}),
    "ahead_dapo": ("dapo", {"correction": "truncate", "rollout": {"ahead": 1, "replay": {"groups": 1}}}),
    "replay": ("grpo", {"rollout": {"replay": {"groups": 2, "rounds": 1}}}),
    "parts": ("gdpo", {"reward": {"correct": 1.0}, "overlong": 0.375}),
    "ptx": ("ppo", {"ptx": 1.0, "corpus": "mine/corpus"}),
    "renewed": ("grpo", {"renew_reference": {"every": 1, "keep": 0.5}}),
    "renewed_replay": ("grpo", {"renew_reference": {"every": 1}, "rollout": {"replay": {"groups": 1, "rounds": 1}}}),
    "renewed_mixture": ("nash_md", {"renew_reference": {"every": 2}}),
    "by_pass_rate": ("grpo", {"rollout": {"pass_rates": {"pass_score": 0.1}}}),
    "experts": ("gspo", {"router": {"replay": True}, "rollout": {"epochs": 2}}),
}
"""Policy rows with some settings: what they need besides is supplied by the same run."""

ALL_WEIGHTS = TrainingParams()


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "muon": {"matrices": "muon"},
    "averaged": {"average": 0.6},
    "averaged_muon": {"average": 0.9, "matrices": "muon", "weight_decay": 0.1},
}
"""SFT with other updates."""


class MovingReference(TrainingParams):
    """Those of a run whose reference moves."""

    @property
    def reference_moves(self) -> bool:
        return True


def moving(trained: TrainingParams) -> TrainingParams:
    """The same settings of a run whose reference moves."""
    return MovingReference.model_construct(**dict(trained))


class WholeModels(TrainingParams):
    """Those of a run whose update differentiates twice, which FSDP does not do."""

    @property
    def divides_models(self) -> bool:
        return False


def settings(adapter: str) -> TrainingParams:
    """The settings of a run with an adapter of rank 4: `lora`, `dora`, or one with dropout."""
    options = {"type": adapter.removesuffix("_dropout"), "rank": 4, "alpha": 8}
    options |= {"dropout": 0.3} if adapter.endswith("_dropout") else {}
    return check(TrainingParams, {"adapter": options}, where="test")


ADAPTED = [
    *("sft+lora_dropout", "dpo+lora"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            *("ppo+lora", "sft+lora", "sft+dora", "sft+qlora", "sdpo+lora", "renewed+lora", "trpo+lora"),
            *("ppo_penalty+lora", "nash_md+lora", "gkd+lora"),
        )
    ),
]
"""Runs of an adapter: with a reference that is it turned off, one that moves, a critic, copies of the policy."""
ROLLOUT = {"rounds": 3, "prompts": 4, "group_size": 3, "minibatches": 2, "sampling": {"max_tokens": 8}}


class CutError(Exception):
    """Stands for the moment at which a run ends by force."""


class CutSource:
    """A source that ends the run when it is asked for one batch too many."""

    def __init__(self, inner: BatchSource, last: int) -> None:
        self._inner, self._last = inner, last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def batch(self, step: int) -> Batch:
        if step >= self._last:
            raise CutError
        return self._inner.batch(step)


def few_numbers(rollouts: Sequence[Rollout]) -> list[float]:
    return [sum(token % 7 for token in one.row.rest) / 40 for one in rollouts]


def items(folder: Path, kind: str) -> list[Example]:
    text = ChatText(load_tokenizer(folder))
    made = []
    for i in range(12):
        asked, answers = [{"role": "user", "content": f"{i}+{i}"}], (f"#### {i + i}", f"so the answer is {i}")
        one, two = text.exchanges([(asked, [{"role": "assistant", "content": answer}]) for answer in answers])
        columns = {"side": [1.0, -1.0]} if kind == "pairs" else {"label": [1.0 if i % 2 else -1.0]}
        rows = [one, two] if kind == "pairs" else [one]
        columns = {} if kind == "plain" else columns
        made.append(Example(rows, columns))
    return made


def groups(
    folder: Path,
    models: ModelSet,
    needs: frozenset[str],
    params: RolloutParams | None = None,
    terms: Mapping[str, WeightedReward] | None = None,
    **options: Any,
) -> Rounds:
    text = ChatText(load_tokenizer(folder))
    prompts = [Prompt(f"p{i}", asked(i), text.prompt(asked(i)), "1") for i in range(5)]
    sampler = DistributedSampler(LocalSampler(models.policy, text.stops, models.runtime))
    added = {name: term for name, term in (terms or {}).items() if name == "overlong"}
    reward = function_reward(few_numbers, added, (params or RolloutParams()).sampling.max_tokens)
    params = params or RolloutParams.model_validate(ROLLOUT)
    return rounds_of(prompts, sampler, reward, models, needs, params, text, **options)


def asked(i: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{i}+1"}]


def settings_of(name: str) -> OnlineParams:
    """A run as params.yaml would hold it."""
    inputs = {"start": "base/tiny", "data": "mine/prompts", "reward_model": "none"}
    if name in DISTILL_ROWS:
        inputs |= {"teacher": "base/other", "demonstrations": "none"}
        over = {"algorithm": name, **inputs, "own": 1.0, "rollout": ROLLOUT}
        over |= {"context": "Be brief."} if name == "context_distill" else {}
        return check(DISTILL[name].model, DISTILL[name].row.merged(over), where=name)
    row, over = VARIANTS.get(name, (name, {}))
    over = merge({"algorithm": row, **inputs, "corpus": "none", "rollout": ROLLOUT}, over)
    over |= {"select": {"threshold": 0.1}} if name == "rest_em" else {}  # the untrained model hardly reaches 1
    return check(ONLINE[row].model, ONLINE[row].row.merged(over), where=name)


def sampled_run(
    folder: Path, name: str, place: Path, trained: TrainingParams = ALL_WEIGHTS
) -> tuple[Any, ModelSet, BatchSource]:
    """The objective, models and source of a run that samples, as the stage makes them."""
    params = settings_of(name)
    objective = params.objective()
    needs = objective.needs
    trained = moving(trained) if params.reference_moves else trained
    teacher = load_model(tiny_folder(place / "teacher", seed=3)) if "teacher_kl" in needs else None
    text = ChatText(load_tokenizer(folder))
    told_apart = {
        tuple(text.prompt(asked(i))): text.prompt(with_system_prompt(asked(i), "Be brief.")) for i in range(5)
    }
    contexts = told_apart if name == "context_distill" else None
    models = ModelSet.load(
        DEVICE,
        folder,
        needs | {"ref_logp"},
        trained,
        teachers=[] if teacher is None else [Teacher(teacher, params.formula(), contexts)],
    )
    samples = groups(
        folder, models, needs, params.rollout, params.terms,
        tries=params.tries, mixture=params.mixture_share, opponents=params.has_opponents,
        renewal=params.renew_reference, replays=params.router.replays,
    )  # fmt: skip
    if name == "ptx":
        windows = [Example([TokenRow([], list(range(9 + i, 20 + i)))]) for i in range(5)]
        return objective, models, PtxSource(samples, windows, 2, 0)
    if name == "gkd":
        return objective, models, MixedSource(samples, EpochSource(items(folder, "plain"), 4, 1, 0), 0.5, 0)
    return objective, models, params.source(samples, text)


def make_run(folder: Path, name: str, place: Path) -> TrainingRun:
    """One small run of each kind, all objects built again, as a new process does; NAME+lora trains an adapter."""
    label, (name, _, adapter) = name, name.partition("+")
    trained = settings(adapter) if adapter else WholeModels() if name == "trpo" else ALL_WEIGHTS
    objective: Any
    update: Update
    source: Any
    if name == "sft" or name in OPTIMIZERS:
        objective = LikelihoodObjective(LikelihoodConfig())
        models = ModelSet.load(DEVICE, folder, objective.needs, trained)
        source = EpochSource(items(folder, "plain"), 4, 2, 0)
    elif name in PREFERENCE_ROWS:
        objective = PreferenceObjective(PREFERENCE_ROWS[name].settings())
        trained = moving(trained) if objective.config.parts > 1 else trained
        models = ModelSet.load(DEVICE, folder, objective.needs | {"ref_logp"}, trained)
        kind = "feedback" if "label" in objective.needs else "pairs"
        source = preference_source(objective, items(folder, kind), 4, 2, 0, models)
    else:
        objective, models, source = sampled_run(folder, name, place, trained)
    modules = {part: (module, OPTIMIZER.lr) for part, module in models.trained.items()}
    update = AdamW(modules, OPTIMIZER.model_copy(update=OPTIMIZERS.get(name)), source.steps)
    if name == "trpo":
        update = Trpo(models.policy, TrpoOptions(delta=0.02, iterations=4))
    return TrainingRun(label, TrainingParams(checkpoint_every=1), objective, source, models, update, 0)


def train(run: TrainingRun, place: Path) -> MetricsLog:
    """Train with checkpoints of its own and its metrics in `place`."""
    return train_with(run, Checkpoints(run.name, {}, []), CsvRecorder(place / f"{run.name}.csv"))


def digest(run: TrainingRun) -> str:
    total = hashlib.sha256()
    for module in run.models.trained.values():
        for parameter in module.parameters():
            total.update(master_of(parameter).detach().cpu().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


CUT = [
    *("sft", "dpo", "kto", "bco", "sdpo", "grpo", "ppo", "ppo_penalty", "trpo", "nash_md", "gmpo", "kl_cov"),
    *(name for name in VARIANTS if name != "experts"),
    *OPTIMIZERS,
    *SAMPLED_ROWS,
    *(name for name in DISTILL_ROWS if name != "distill"),
]
QUICK = {
    *("sft", "dpo", "sdpo", "grpo", "ppo", "ppo_penalty", "trpo", "nash_md"),
    *("ahead", "replay", "renewed", "averaged_muon", "online_dpo", "gkd"),
}
"""One run of each kind of state: references and copies that move, a critic, groups kept or sampled ahead, averages."""


@pytest.mark.parametrize("name", [*slow_except(QUICK, CUT), *ADAPTED])
def test_a_cut_run_goes_on_to_the_same_weights_and_the_same_log(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_and_whole(name, folder, tmp_path, monkeypatch)


def cut_and_whole(name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is cut twice and resumed ends with the weights and the log of one that is not."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "whole"))
    whole = make_run(folder, name, tmp_path)
    start = digest(whole)
    train(whole, tmp_path)
    expected, log = digest(whole), (tmp_path / f"{name}.csv").read_text()
    assert expected != start, "the run changed nothing, so the test would prove nothing"

    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "cut"))
    for last in (3, 4):
        cut = make_run(folder, name, tmp_path)
        object.__setattr__(cut, "source", CutSource(cut.source, last))
        with pytest.raises(CutError):
            train(cut, tmp_path)
    again = make_run(folder, name, tmp_path)
    train(again, tmp_path)
    assert digest(again) == expected
    assert (tmp_path / f"{name}.csv").read_text() == log


@pytest.mark.parametrize("name", ["grpo", "dpo"])
def test_a_models_own_dropout_is_off_where_log_probs_are_compared(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    config = GPT2Config(
        vocab_size=300,
        n_positions=256,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.3,
        embd_pdrop=0.3,
        eos_token_id=1,
        bos_token_id=1,
    )
    save_model(new_model(config, 0), tmp_path / "gpt2", folder)
    run = make_run(tmp_path / "gpt2", name, tmp_path)
    first = train(run, tmp_path).rows[0]
    if name == "grpo":
        assert first["ratio_min"] == pytest.approx(1, abs=1e-6) == first["ratio_max"]
    else:
        assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert run.models.policy.transformer.drop.p == 0.3


class Shaken:
    """An update rule that draws from every random state of the process, as a model's dropout may."""

    def __init__(self, inner: Update) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, closure: StepClosure, progress: float) -> dict[str, float]:
        found = self._inner.step(closure, progress)
        drawn = random.gauss(0, 1) + np.random.standard_normal() + float(torch.randn(()))  # noqa: NPY002
        with torch.no_grad():
            for parameter in closure.models.policy.parameters():
                parameter.add_(1e-3 * drawn)
        return found


def test_a_cut_run_goes_on_with_the_same_random_numbers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shaken() -> TrainingRun:
        run = make_run(folder, "sft", tmp_path)
        object.__setattr__(run, "update", Shaken(run.update))
        return run

    expected = []
    for place in ("one", "two"):
        monkeypatch.setenv("DVC_ROOT", str(tmp_path / place))
        randomness.seed(7)
        whole = shaken()
        train(whole, tmp_path)
        expected.append(digest(whole))
    assert expected[0] == expected[1], "the seed does not decide the random numbers"

    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "cut"))
    randomness.seed(7)
    cut = shaken()
    object.__setattr__(cut, "source", CutSource(cut.source, 3))
    with pytest.raises(CutError):
        train(cut, tmp_path)
    randomness.seed(8)  # a new process is anywhere
    again = shaken()
    train(again, tmp_path)
    assert digest(again) == expected[0]


PAIR_SETTINGS = {
    name: row.settings()
    for name, row in PREFERENCE_ROWS.items()
    if isinstance(entry := row.settings().loss_entry, PairLoss) and entry.match is None
} | {"dpo with nll": PREFERENCE_ROWS["dpo"].settings(nll=1.0)}


@pytest.mark.parametrize("name", PAIR_SETTINGS)
def test_groups_that_agree_make_a_step_that_teaches_nothing(name: str, folder: Path) -> None:
    policy = load_model(folder)
    models = ModelSet(policy, DEVICE, tiny_other(folder))
    objective = PreferenceObjective(PAIR_SETTINGS[name])
    batch = groups(folder, models, objective.needs).batch(0)
    flat = batch.with_columns(batch.columns.with_rows(reward=torch.zeros(len(batch))))
    chosen = pair_rule(BestAgainstWorst(), 0)(flat, 0)
    prepared = objective.prepare(chosen.columns, {})
    StepClosure(objective, models, chosen.with_prepared(prepared.step))()
    assert len(chosen) == 2
    assert max(float(p.grad.abs().max()) for p in policy.parameters()) < 1e-6


def tiny_other(folder: Path) -> Any:
    """The same model moved a little, so that the reference is not the policy."""
    model = load_model(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    return model


def test_a_round_names_the_weights_that_sampled_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where demonstrations took the first step of a round, its samples are of the next one's weights."""
    names: list[str] = []
    sync = LocalSampler.sync

    def noted(sampler: LocalSampler, model: Any, version: str) -> None:
        names.append(version)
        sync(sampler, model, version)

    monkeypatch.setattr(LocalSampler, "sync", noted)
    models = ModelSet(load_model(folder), DEVICE)
    source = groups(folder, models, frozenset())
    per_round = RolloutParams.model_validate(ROLLOUT).steps_a_round
    assert per_round > 1
    for step in (1, per_round):
        source.batch(step)
    assert [name.split(" step ")[1] for name in names] == ["1", str(per_round)]


def test_a_sampled_pair_is_the_best_of_its_group_against_the_worst(folder: Path) -> None:
    models = ModelSet(load_model(folder), DEVICE)
    batch = groups(folder, models, frozenset()).batch(0)
    chosen = pair_rule(BestAgainstWorst(), 0)(batch, 0)
    reward, group = chosen.columns.rows["reward"], chosen.columns.rows["group"]
    all_reward, all_group = batch.columns.rows["reward"], batch.columns.rows["group"]
    assert len(chosen) >= 2, "no group differs, so the test would prove nothing"
    for good, bad, of in zip(reward[0::2], reward[1::2], group[0::2], strict=True):
        mine = all_reward[all_group == of]
        assert good == mine.max() > mine.min() == bad
    assert chosen.columns.items.tolist() == [i // 2 for i in range(len(chosen))]


def test_replayed_groups_are_of_earlier_rounds_and_not_too_old(folder: Path) -> None:
    params = settings_of("replay")
    models = ModelSet(load_model(folder), DEVICE, load_model(folder))
    source = groups(folder, models, params.objective().needs, params.rollout)
    ages = [source.batch(step).columns.rows["age"] for step in range(source.steps)]
    fresh = [len(age) - 6 for age in ages[2:]]
    assert [len(age) for age in ages[:2]] == [6, 6], "there is no earlier round yet"
    assert fresh == [6] * 4, "two groups of three join each later step"
    assert [sorted(set(age.tolist())) for age in ages] == [[0], [1], [0, 2], [1, 3], [0, 2], [1, 3]]
    rows = source.batch(5).columns.rows
    for group in rows["group"].unique():
        assert rows["age"][rows["group"] == group].unique().numel() == 1, "a replayed group was taken for a fresh one"


def test_a_row_is_fresh_once(folder: Path) -> None:
    params = settings_of("replay")
    params = params.model_copy(update={"rollout": params.rollout.model_copy(update={"epochs": 2})})
    models = ModelSet(load_model(folder), DEVICE, load_model(folder))
    source = groups(folder, models, params.objective().needs, params.rollout)
    fresh = [int(source.batch(step).columns.rows["fresh"].sum()) for step in range(2 * params.rollout.steps_a_round)]
    assert fresh == [6, 6, 0, 0] * 2, "replayed groups and second passes are not"


def test_a_replayed_group_is_compared_with_the_reference_as_it_is_now(folder: Path) -> None:
    objective, models, source = sampled_run(folder, "renewed_replay", folder.parent)
    per_round = settings_of("renewed_replay").rollout.steps_a_round
    for step in range(per_round):
        source.batch(step)
    with torch.no_grad():
        for part in models.policy.parameters():
            part.add_(0.05)
    columns = source.batch(per_round).columns
    old = columns.rows["age"] >= per_round
    assert 0 < int(old.sum()) < len(old)
    batch = source.batch(per_round)
    tokens = {name: part for name, part in columns.tokens.items() if name != "ref_logp"}
    again = models.add_scored_columns(batch.with_columns(replace(columns, tokens=tokens)), objective.needs)
    assert torch.allclose(again.columns.tokens["ref_logp"], columns.tokens["ref_logp"], atol=1e-5)


def test_feedback_in_parts_has_mismatched_rows_in_each(folder: Path) -> None:
    """Without them KTO's shift would be 0."""
    objective = PreferenceObjective(PREFERENCE_ROWS["kto"].settings(parts=2))
    models = ModelSet(load_model(folder), DEVICE, load_model(folder))
    source = preference_source(objective, items(folder, "feedback"), 4, 1, 0, models)
    labels = [source.batch(step).columns.rows["label"] for step in range(source.steps)]
    assert [int((label == 0).sum()) for label in labels] == [4, 2] * 2


def test_an_average_of_a_rounded_reference_is_refused(folder: Path) -> None:
    models = ModelSet(load_model(folder), DEVICE, load_model(folder).bfloat16())
    models.copy_policy(models.reference)
    with pytest.raises(ModelError, match="would not change"):
        models.copy_policy(models.reference, 0.9)


def test_a_critic_that_starts_from_a_centred_reward_model_values_what_it_scores(folder: Path) -> None:
    scorer = scorer_of(load_model(folder), "tiny")
    packed = pack([TokenRow([3, 4], [5, 6])])
    before = value_tokens(scorer, packed)
    scorer.config.reward_shift = 1.5
    assert torch.equal(value_tokens(scorer, packed), before - 1.5)


def test_text_beside_samples_is_learned_from_and_changes_no_advantage(folder: Path) -> None:
    objective, models, source = sampled_run(folder, "ptx", folder.parent)
    batch = models.add_scored_columns(source.batch(0), objective.needs)
    text_B = batch.columns.rows["pretrain"]
    assert text_B.tolist() == [False] * 6 + [True] * 2
    prepared = objective.prepare(batch.columns, objective.initial_state()).step
    alone, _, plain = sampled_run(folder, "ppo", folder.parent)
    other = alone.prepare(models.add_scored_columns(plain.batch(0), alone.needs).columns, alone.initial_state()).step
    acted_N = ~prepared.repeat_to_tokens(text_B)
    torch.testing.assert_close(prepared.tokens["advantage"][acted_N], other.tokens["advantage"])
    assert float(prepared.tokens["ptx_weight"][~acted_N].sum()) == pytest.approx(1.0)


def test_a_teacher_with_a_context_is_asked_with_it(folder: Path, tmp_path: Path) -> None:
    objective, models, source = sampled_run(folder, "context_distill", tmp_path)
    batch = source.batch(0)
    plain = [
        AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager")
        for place in (folder, tiny_folder(tmp_path / "same", seed=3))
    ]
    seen = models.forward(batch, objective.needs).tokens["teacher_kl"].detach()
    expected = []
    for prompt, completion in ((row.prompt, row.rest) for row in batch.rows):
        theirs = models.teachers[0].prompts[tuple(prompt)]  # type: ignore[index]
        assert len(theirs) > len(prompt)
        logits = [
            model(input_ids=torch.tensor([[*before, *completion]]), use_cache=False).logits[0, len(before) - 1 : -1]
            for model, before in zip(plain, (prompt, theirs), strict=True)
        ]
        expected.append(forward_kl(*logits))
    torch.testing.assert_close(seen, torch.cat(expected).detach(), rtol=1e-4, atol=1e-5)


def test_opponents_come_from_the_mixture_and_are_not_learned_from(folder: Path) -> None:
    objective, models, source = sampled_run(folder, "nash_md", folder.parent)
    batch = models.add_scored_columns(source.batch(0), objective.needs)
    opponent_B = batch.columns.rows["opponent"]
    assert opponent_B.tolist() == [False, False, True] * 2
    prepared = objective.prepare(batch.columns, objective.initial_state()).step
    assert float(prepared.tokens["weight"][prepared.repeat_to_tokens(opponent_B)].abs().max()) == 0.0
    own = prepared.tokens["weight"][~prepared.repeat_to_tokens(opponent_B)]
    torch.testing.assert_close(own, torch.full_like(own, 1 / 4))


@pytest.mark.slow
def test_trpo_never_leaves_its_region(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    log = train(make_run(folder, "trpo", tmp_path), tmp_path)
    assert all(row["trust_kl"] <= 0.02 for row in log.rows)
    assert any(row["step_share"] > 0 for row in log.rows), "no step was ever taken"


def test_micro_batches_do_not_change_the_gradient(folder: Path) -> None:
    gradients = []
    for budget in (10**6, 90):
        policy = load_model(folder)
        models = ModelSet(policy, DEVICE, load_model(folder), micro_tokens=budget)
        objective = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings())
        batch = models.add_scored_columns(EpochSource(items(folder, "pairs"), 12, 1, 0).batch(0), objective.needs)
        prepared = objective.prepare(batch.columns, {})
        StepClosure(objective, models, batch.with_prepared(prepared.step))()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    run = make_run(folder, "sft", tmp_path)
    cut = make_run(folder, "sft", tmp_path)
    object.__setattr__(cut, "source", CutSource(cut.source, 2))
    with pytest.raises(CutError):
        train(cut, tmp_path)
    monkeypatch.setattr(LikelihoodObjective, "loss", _broken(LikelihoodObjective.loss))
    with pytest.raises(TrainingError, match="loss and grad_norm not finite at step 2"):
        train(run, tmp_path)
    kept = Checkpoints("sft", {}, []).resume(lambda saved: saved)
    assert kept is not None and kept.step == 2


def _broken(inner: Any) -> Any:
    def loss(self: Any, micro: Any, state: Any) -> Any:
        good = inner(self, micro, state)
        return type(good)(good.total * float("nan"), good.metrics)

    return loss


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    train(make_run(folder, "sft", tmp_path), tmp_path)
    checkpoints = Checkpoints("sft", {}, [])
    newest = checkpoints.resume(lambda saved: saved)
    assert newest is not None
    file = next((tmp_path / "checkpoints/sft").glob(f"*/step-{newest.step:08d}/tensors.safetensors"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    for _ in range(2):
        older = checkpoints.resume(lambda saved: saved)
        assert older is not None and older.step == newest.step - 1
        assert "tensors.safetensors does not match its checksum" in capsys.readouterr().err
        file.unlink(missing_ok=True)  # a file that is missing is a wrong one


def test_weights_may_change_as_soon_as_save_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums and the name follow in a thread while training continues."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    checkpoints, weight = Checkpoints("sft", {}, []), torch.zeros(1_000_000)
    for step in range(1, 6):
        weight.fill_(step)
        checkpoints.save(CheckpointData(step, {"weight": weight}, {}))
    weight.fill_(9)
    kept = checkpoints.resume(lambda saved: saved)
    assert kept is not None and kept.step == 5 and kept.tensors["weight"].unique().tolist() == [5]
    assert len([*checkpoints.folder.glob("*step-*")]) == 2, "the number of checkpoints is bounded"


def test_a_checkpoint_that_cannot_be_completed_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may fail after `save` has returned; else the run would silently continue without checkpoints."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    checkpoints = Checkpoints("sft", {}, [])
    checkpoints.save(CheckpointData(1, {"weight": torch.ones(3)}, {}))
    checkpoints.wait()
    (checkpoints.folder / "step-00000002").write_text("in the way")
    checkpoints.save(CheckpointData(2, {"weight": torch.ones(3)}, {}))
    with pytest.raises(CheckpointError, match="step-00000002: cannot be written"):
        checkpoints.save(CheckpointData(3, {"weight": torch.ones(3)}, {}))
    assert not [*checkpoints.folder.glob(".step-*")] and (checkpoints.folder / "step-00000001").is_dir()


@pytest.mark.parametrize(
    "changed",
    [
        {"checkpoint_every": 7},
        {"save_dtype": "bfloat16"},
        {"activations": "recompute"},
        {"on_failures": "wait"},
        {"limits": {"kl": 9.0}},
        {"processes": 2},
        {"rollout": {"sampling": {"kv_gb": 1.5}}},
    ],
    ids=str,
)
def test_a_run_resumes_with_other_settings_that_change_no_result(changed: dict[str, Any]) -> None:
    """As docs/reproducibility.md says; another learning rate or number of samples starts again."""
    given = {"algorithm": "grpo", "start": "base/a", "data": "a/prompts", "corpus": "none", "reward_model": "none"}
    kept, other = (checkpoint_settings(typed_run({**given, **more}, "online.runs.a", ONLINE)) for more in ({}, changed))
    assert kept == other
    for moving in (
        {"optimizer": {"lr": 0.5}},
        {"rollout": {"group_size": 5}},
        {"rollout": {"sampling": {"top_p": 0.5}}},
    ):
        assert kept != checkpoint_settings(typed_run({**given, **moving}, "online.runs.a", ONLINE))


def test_the_fingerprint_follows_parameters_and_inputs(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text("one")
    before = fingerprint(run_key("stage", {"lr": 1}, [file]))
    assert before == fingerprint(run_key("stage", {"lr": 1}, [file]))
    assert before != fingerprint(run_key("stage", {"lr": 2}, [file]))
    assert before != fingerprint(run_key("other", {"lr": 1}, [file]))
    file.write_text("two")
    assert before != fingerprint(run_key("stage", {"lr": 1}, [file]))


def test_a_log_with_a_new_column_is_written_anew(tmp_path: Path) -> None:
    log = MetricsLog(CsvRecorder(tmp_path / "log.csv"))
    log.add({"step": 0, "loss": 1.5})
    log.add({"step": 1, "loss": 1.25, "kl": 0.5})
    assert (tmp_path / "log.csv").read_text() == "step,loss,kl\n0,1.5,\n1,1.25,0.5\n"


@pytest.mark.parametrize("steps", [1, 7, 15])
def test_a_scratch_model_on_a_small_corpus_makes_exactly_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"{number} and {number} is {2 * number}, as all know." for number in range(24)]
    table = pl.DataFrame({"split": ["train"] * 16 + ["heldout"] * 8, "text": texts})
    write_table(with_ids(table, "corpus"), Path("data/mine/corpus.parquet"), "corpus")
    run = f"data: mine/corpus, steps: {steps}, batch: 4, window: 16, tokenizer: {{vocabulary: 300}}"
    Path("params.yaml").write_text(f"base: {{scratch: {{small: {{{run}, shape: {{layers: 1, width: 16}}}}}}}}\n")
    base_scratch.main("small")
    found = json.loads(Path("metrics/base/small.json").read_text())
    assert found["steps"] == steps and found["rows"] % 4, "the last batch of a pass is smaller"
    assert len(Path("plots/base/small.csv").read_text().splitlines()) == 1 + steps


def test_judged_answers_of_a_prompt_are_ranked_together(folder: Path) -> None:
    text = ChatText(load_tokenizer(folder))
    judged = [("1+1", "#### 2", True), ("2+2", "#### 9", False), ("1+1", "#### 3", False), ("1+1", "#### 5", False)]
    rows = [
        {
            "prompt": [{"role": "user", "content": question}],
            "completion": [{"role": "assistant", "content": answer}],
            "label": liked,
        }
        for question, answer, liked in judged
    ]
    frame = pl.DataFrame(rows).with_columns(id=pl.Series(["a", "b", "c", "d"]))
    (item,) = rankings(text, frame, RowLimit(), "judged")
    assert list(item.columns["rank"]) == [0.0, 1.0, 1.0], "a prompt whose answers all agree teaches nothing"
    models = ModelSet(load_scorer(folder), DEVICE)
    objective = RewardObjective(RewardConfig(compare="ranks"))
    run_update = AdamW({"policy": (models.policy, 1e-2)}, OPTIMIZER, 40)
    source = EpochSource([item], 1, 40, 0)
    for step in range(source.steps):
        batch = source.batch(step)
        prepared = objective.prepare(batch.columns, {})
        closure = StepClosure(objective, models, batch.with_prepared(prepared.step))
        metrics = run_update.step(closure, step / source.steps)
    assert metrics["accuracy"] == 1.0
