"""The loop and its checkpoints: a run that was cut off ends with the same bytes as one that was not."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.algorithms.policy import POLICY_ROWS, PolicyObjective, TrpoKnobs
from posttrain.algorithms.preference import PREFERENCE_ROWS, PreferenceObjective, RewardKnobs, RewardObjective
from posttrain.algorithms.supervised import DistillKnobs, DistillObjective, LikelihoodKnobs, LikelihoodObjective
from posttrain.errors import TrainingError
from posttrain.models.device import Device, DeviceParams
from posttrain.models.store import load_model, load_scorer, load_tokenizer
from posttrain.online.rollouts import Prompt, RolloutParams, Rollouts
from posttrain.online.selected import Choose, Selected, best, best_pairs, reaching, rising, telling_pairs
from posttrain.online.trpo import Trpo
from posttrain.rewards.blend import Blend
from posttrain.rewards.verifiable import Sampled
from posttrain.rollout.engine import SamplingParams
from posttrain.text.chat import ChatText
from posttrain.train.batch import Batch, Source
from posttrain.train.checkpoint import Checkpoints, fingerprint
from posttrain.train.epochs import Epochs, Item
from posttrain.train.loop import GradientProblem, Run, train
from posttrain.train.metrics import MetricsLog
from posttrain.train.modules import Modules
from posttrain.train.optimizer import AdamW, OptimizerParams, Update
from posttrain.train.preferences import preference_source
from posttrain.train.rows import rankings
from tests.library.models import tiny_folder

DEVICE = Device(DeviceParams(threads=1))
OPTIMIZER = OptimizerParams(lr=3e-3)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dapo": ("dapo", {"overlong": 3}),
    "exact_penalty": ("ppo_penalty", {"penalty": {"kind": "exact", "target": 1e-5}}),
    "corrected": ("cispo", {"correction": 2.0}),
}
"""Policy rows with some knobs set: what they need besides is supplied by the same run."""

SEAMS: dict[str, tuple[Any, Choose | None]] = {
    "online_dpo": (PreferenceObjective(PREFERENCE_ROWS["dpo"].settings()), best_pairs()),
    "online_ipo": (PreferenceObjective(PREFERENCE_ROWS["ipo"].settings()), telling_pairs(0.501)),
    "raft": (LikelihoodObjective(LikelihoodKnobs()), best()),
    "rest": (LikelihoodObjective(LikelihoodKnobs()), rising((0.2, 0.5, 0.8), 2)),
    "rest_em": (LikelihoodObjective(LikelihoodKnobs()), reaching(0.5)),
    "gkd": (DistillObjective(DistillKnobs(divergence="jensen_shannon")), None),
}
"""Objectives of other tables, trained on the policy's own samples."""


class CutError(Exception):
    """Stands for the moment at which a run ends by force."""


class CutSource:
    """A source that ends the run when it is asked for one batch too many."""

    def __init__(self, inner: Source, last: int) -> None:
        self._inner, self._last = inner, last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def batch(self, step: int) -> Batch:
        if step >= self._last:
            raise CutError
        return self._inner.batch(step)


def few_numbers(samples: list[Sampled]) -> list[float]:
    return [sum(token % 7 for token in sample.completion_ids) / 40 for sample in samples]


def items(folder: Path, kind: str) -> list[Item]:
    text = ChatText(load_tokenizer(folder))
    made = []
    for i in range(12):
        one, two = (
            text.exchange([{"role": "user", "content": f"{i}+{i}"}], [{"role": "assistant", "content": answer}])
            for answer in (f"#### {i + i}", f"so the answer is {i}")
        )
        columns = {"side": [1.0, -1.0]} if kind == "pairs" else {"label": [1.0 if i % 2 else -1.0]}
        rows = [one, two] if kind == "pairs" else [one]
        columns = {} if kind == "plain" else columns
        made.append(Item([row.prompt for row in rows], [row.completion for row in rows], columns))
    return made


def groups(folder: Path, modules: Modules, needs: frozenset[str], resample: int, overlong: int | None) -> Rollouts:
    text = ChatText(load_tokenizer(folder))
    prompts = [Prompt(f"p{i}", text.prompt([{"role": "user", "content": f"{i}+1"}]), "1") for i in range(5)]
    params = RolloutParams(rounds=3, prompts=4, group_size=3, minibatches=2, sampling=SamplingParams(max_tokens=8))
    blend = Blend({"few": (1.0, few_numbers)})
    return Rollouts(prompts, blend, modules, needs, params, text=text, seed=0, resample=resample, overlong=overlong)


def make_run(folder: Path, name: str, place: Path) -> Run:
    """One small run of each kind, everything made anew as a fresh process would."""
    policy = load_model(folder)
    objective: Any
    update: Update
    source: Any
    if name == "sft":
        modules, objective = Modules(policy, DEVICE), LikelihoodObjective(LikelihoodKnobs())
        source = Epochs(items(folder, "plain"), 4, 2, 0)
    elif name in PREFERENCE_ROWS:
        objective = PreferenceObjective(PREFERENCE_ROWS[name].settings())
        modules = Modules(policy, DEVICE, load_model(folder))
        kind = "feedback" if "label" in objective.needs else "pairs"
        source = preference_source(objective, items(folder, kind), 4, 2, 0, modules)
    elif name in SEAMS:
        objective, choose = SEAMS[name]
        teacher = tiny_folder(place / "teacher", seed=3) if "teacher_kl" in objective.needs else None
        modules = Modules(
            policy, DEVICE, load_model(folder),
            teacher=None if teacher is None else load_model(teacher),
            divergence=None if teacher is None else objective.knobs.formula(),
        )  # fmt: skip
        source = groups(folder, modules, objective.needs, 0, None)
        source = source if choose is None else Selected(source, choose)
    else:
        row, over = VARIANTS.get(name, (name, {}))
        objective = PolicyObjective(POLICY_ROWS[row].settings(**over), 8)
        critic = load_scorer(folder, 0) if "value" in objective.needs else None
        old = load_model(folder) if "kl_old" in objective.needs else None
        modules = Modules(policy, DEVICE, load_model(folder), critic, old)
        source = groups(folder, modules, objective.needs, objective.knobs.resample, objective.knobs.overlong)
    trained = [(module, OPTIMIZER.lr) for module in modules.trained.values()]
    update = AdamW(trained, OPTIMIZER, source.steps)
    if name == "trpo":
        update = Trpo(policy, TrpoKnobs(delta=0.02, iterations=4))
    return Run(name, objective, source, modules, update, Checkpoints(name, "mark"), place / f"{name}.csv", 1)


def digest(run: Run) -> str:
    total = hashlib.sha256()
    for module in run.modules.trained.values():
        for parameter in module.parameters():
            total.update(parameter.detach().numpy().tobytes())
    return total.hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    "name",
    [
        "sft",
        "dpo",
        "kto",
        "bco",
        "sdpo",
        "grpo",
        "dapo",
        "ppo",
        "ppo_penalty",
        "exact_penalty",
        "corrected",
        "trpo",
        *SEAMS,
    ],
)
def test_a_cut_run_goes_on_to_the_same_weights_and_the_same_log(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "whole"))
    whole = make_run(folder, name, tmp_path)
    start = digest(whole)
    train(whole)
    expected, log = digest(whole), (tmp_path / f"{name}.csv").read_text()
    assert expected != start, "the run changed nothing, so the test would prove nothing"

    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "cut"))
    for last in (3, 4):
        cut = make_run(folder, name, tmp_path)
        object.__setattr__(cut, "source", CutSource(cut.source, last))
        with pytest.raises(CutError):
            train(cut)
    again = make_run(folder, name, tmp_path)
    train(again)
    assert digest(again) == expected
    assert (tmp_path / f"{name}.csv").read_text() == log


def test_groups_that_agree_make_a_step_that_teaches_nothing(folder: Path) -> None:
    policy = load_model(folder)
    modules = Modules(policy, DEVICE, tiny_other(folder))
    objective = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings())
    batch = groups(folder, modules, objective.needs, 0, None).batch(0)
    flat = batch.with_columns(batch.columns.with_rows(reward=torch.zeros(len(batch))))
    chosen = best_pairs()(flat, 0)
    prepared = objective.prepare(chosen.columns, {})
    GradientProblem(objective, modules, chosen.with_columns(prepared.step)).backward()
    assert len(chosen) == 2
    assert max(float(p.grad.abs().max()) for p in policy.parameters()) < 1e-6


def tiny_other(folder: Path) -> Any:
    """The same model moved a little, so that the reference is not the policy."""
    model = load_model(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    return model


def test_a_sampled_pair_is_the_best_of_its_group_against_the_worst(folder: Path) -> None:
    modules = Modules(load_model(folder), DEVICE)
    batch = groups(folder, modules, frozenset(), 0, None).batch(0)
    chosen = best_pairs()(batch, 0)
    reward, group = chosen.columns.rows["reward"], chosen.columns.rows["group"]
    all_reward, all_group = batch.columns.rows["reward"], batch.columns.rows["group"]
    assert len(chosen) >= 2, "no group differs, so the test would prove nothing"
    for good, bad, of in zip(reward[0::2], reward[1::2], group[0::2], strict=True):
        mine = all_reward[all_group == of]
        assert good == mine.max() > mine.min() == bad
    assert chosen.columns.items.tolist() == [i // 2 for i in range(len(chosen))]


def test_trpo_never_leaves_its_region(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    log = train(make_run(folder, "trpo", tmp_path))
    assert all(row["trust_kl"] <= 0.02 for row in log.rows)
    assert any(row["step_share"] > 0 for row in log.rows), "no step was ever taken"


def test_micro_batches_do_not_change_the_gradient(folder: Path) -> None:
    gradients = []
    for budget in (10**6, 90):
        policy = load_model(folder)
        modules = Modules(policy, DEVICE, load_model(folder), micro_tokens=budget)
        objective = PreferenceObjective(PREFERENCE_ROWS["dpo"].settings())
        batch = modules.fill(Epochs(items(folder, "pairs"), 12, 1, 0).batch(0), objective.needs)
        prepared = objective.prepare(batch.columns, {})
        GradientProblem(objective, modules, batch.with_columns(prepared.step)).backward()
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
        train(cut)
    monkeypatch.setattr(LikelihoodObjective, "loss", _broken(LikelihoodObjective.loss))
    with pytest.raises(TrainingError, match="loss and grad_norm not finite at step 2"):
        train(run)
    kept = Checkpoints("sft", "mark").resume(lambda saved: saved)
    assert kept is not None and kept.step == 2


def _broken(inner: Any) -> Any:
    def loss(self: Any, micro: Any) -> Any:
        good = inner(self, micro)
        return type(good)(good.total * float("nan"), good.metrics)

    return loss


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    train(make_run(folder, "sft", tmp_path))
    checkpoints = Checkpoints("sft", "mark")
    newest = checkpoints.resume(lambda saved: saved)
    assert newest is not None
    file = tmp_path / "checkpoints" / "sft" / "mark" / f"step-{newest.step:08d}" / "tensors.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    older = checkpoints.resume(lambda saved: saved)
    assert older is not None and older.step == newest.step - 1
    assert file.parent.name in capsys.readouterr().err


def test_the_fingerprint_follows_parameters_and_inputs(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text("one")
    before = fingerprint("stage", {"lr": 1}, [file])
    assert before == fingerprint("stage", {"lr": 1}, [file])
    assert before != fingerprint("stage", {"lr": 2}, [file])
    file.write_text("two")
    assert before != fingerprint("stage", {"lr": 1}, [file])


def test_a_log_with_a_new_column_is_written_anew(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "log.csv")
    log.add({"step": 0, "loss": 1.5})
    log.add({"step": 1, "loss": 1.25, "kl": 0.5})
    assert (tmp_path / "log.csv").read_text() == "step,loss,kl\n0,1.5,\n1,1.25,0.5\n"


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
    (item,) = rankings(text, rows, 256, "judged")
    assert list(item.columns["rank"]) == [0.0, 1.0, 1.0], "a prompt whose answers all agree teaches nothing"
    modules = Modules(load_scorer(folder, 0), DEVICE)
    objective = RewardObjective(RewardKnobs(compare="ranks"))
    run_update = AdamW([(modules.policy, 1e-2)], OPTIMIZER, 40)
    source = Epochs([item], 1, 40, 0)
    for step in range(source.steps):
        batch = source.batch(step)
        prepared = objective.prepare(batch.columns, {})
        problem = GradientProblem(objective, modules, batch.with_columns(prepared.step))
        metrics = run_update.step(problem, step / source.steps)
    assert metrics["accuracy"] == 1.0
