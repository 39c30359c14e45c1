"""A run that evaluates itself: nothing of its training changes, and it stops, keeps its best and resumes exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posttrain.data.columns import from_rows, with_ids
from posttrain.errors import DataError, ParamsError, RewardError, TrainingError
from posttrain.evaluate.watch import HeldoutWatch
from posttrain.evaluate.watch_rules import Measured
from posttrain.models.files.store import load_model, load_tokenizer
from posttrain.online.config import WatchParams
from posttrain.online.heldout import HeldoutRewards
from posttrain.online.rollout_params import RolloutParams
from posttrain.online.rounds import Rounds
from posttrain.online.run import OnlineRun
from posttrain.pipeline.runs.online import ONLINE, heldout_prompts
from posttrain.pipeline.tables.store import write_table
from posttrain.rewards.reward import Reward, WeightedReward
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import SamplingParams
from posttrain.settings.params import check
from posttrain.text.chat import ChatText
from posttrain.train.limits import LimitParams
from posttrain.train.loop import TrainingParams, TrainingRun
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import function_reward, tiny_folder
from tests.library.online.rounds import rounds_of
from tests.pipeline.train.test_training import (
    DEVICE,
    ROLLOUT,
    CutError,
    CutSource,
    asked,
    digest,
    few_numbers,
    make_run,
    settings_of,
    train,
)

STEPS, PROMPTS = 6, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def lengths(rollouts: list[Rollout]) -> list[float]:
    return [float(len(one.row.rest)) for one in rollouts]


def watched(folder: Path, place: Path, params: WatchParams) -> tuple[TrainingRun, HeldoutWatch]:
    """A GRPO run with real evaluations of its policy."""
    run = make_run(folder, "grpo", place)
    text = ChatText(load_tokenizer(folder))
    prompts = [Prompt(f"h{i}", asked(i), text.prompt(asked(i)), "1") for i in range(5)]
    measure = HeldoutRewards(
        LocalSampler(run.models.policy, text.stops, run.models.runtime),
        run.models.policy,
        text,
        prompts,
        SamplingParams(max_tokens=8),
        samples=2,
        seed=0,
        rewards=(function_reward(lengths), function_reward(few_numbers)),  # type: ignore[arg-type]
        max_failed=0.1,
        where="watch",
    )
    watch = HeldoutWatch(params, measure, run.models.policy, run.source.steps, "watch")
    return replace(run, watch=watch), watch


def test_metrics_of_a_watch_are_measured_with_intervals_and_their_failures_counted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, text = make_run(folder, "grpo", tmp_path), ChatText(load_tokenizer(folder))
    prompts = [Prompt(f"h{i}", asked(i), text.prompt(asked(i)), "1") for i in range(5)]

    def fails_once(rollouts: Sequence[Rollout]) -> list[Score]:
        return [Score(0.5, "error" if one.prompt.id == "h0" and not one.sample else "ok") for one in rollouts]

    metric = WeightedReward(reward=Reward(lambda options, context: fails_once), weight=0.0)
    true = function_reward(lengths, {"valid": metric})  # type: ignore[arg-type]
    sampler = LocalSampler(run.models.policy, text.stops, run.models.runtime)
    measure = HeldoutRewards(
        sampler, run.models.policy, text, prompts, SamplingParams(max_tokens=8),
        samples=2, seed=0, rewards=(true, true), max_failed=0.1, where="watch",
    )  # fmt: skip
    watch = HeldoutWatch(WatchParams(every=1), measure, run.models.policy, 2, "watch")
    metrics = watch.look(0)
    found = {key: value for key, value in metrics.items() if "valid" in key}
    ends = {"": 0.5, "_low": 0.5, "_high": 0.5, "_failed": 1.0}
    assert found == {f"heldout_reward_valid{end}": value for end, value in ends.items()}
    assert "valid 0.500 [0.500, 0.500] (1 failed)" in capsys.readouterr().err
    again = HeldoutWatch(WatchParams(every=1), measure, run.models.policy, 2, "watch")
    again.load_state_dict(watch.state_dict())
    kept = again.finish()
    assert (kept["heldout_reward_valid"], kept["heldout_reward_valid_failed"]) == (0.5, 1.0), "a checkpoint keeps them"
    assert kept == watch.finish()
    many = HeldoutRewards(
        sampler, run.models.policy, text, prompts * 4, SamplingParams(max_tokens=8),
        samples=2, seed=0, rewards=(true, true), max_failed=0.0, where="watch",
    )  # fmt: skip
    with pytest.raises(RewardError, match="no value of metric 'valid'"):
        many()


def scripted(run: TrainingRun, params: WatchParams, true: dict[int, float], proxy: dict[int, float]) -> Any:
    """A watch of every step whose evaluations are given, and the digest of the weights at each of them."""
    seen: dict[int, str] = {}

    def measure() -> Measured:
        step = len(seen)
        seen[step] = digest(run)
        return Measured(*((np.arange(PROMPTS) < curve[step] * PROMPTS).astype(float) for curve in (true, proxy)))

    watch = HeldoutWatch(params, measure, run.models.policy, run.source.steps, "watch")
    return replace(run, watch=watch), watch, seen


def test_watching_changes_nothing_of_the_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "plain"))
    plain = make_run(folder, "grpo", tmp_path)
    rows = train(plain, tmp_path).rows
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "watched"))
    run, _ = watched(folder, tmp_path, WatchParams(every=2))
    log = train(run, tmp_path)
    assert digest(run) == digest(plain)
    looked = [row for row in log.rows if "heldout_true" in row]
    assert [row["step"] for row in looked] == [0, 2, 4, 6], "the start and the end are evaluated too"
    assert all(row["heldout_true_low"] <= row["heldout_true"] <= row["heldout_true_high"] for row in looked)
    kept = [{key: value for key, value in row.items() if not key.startswith("heldout")} for row in log.rows[:-1]]
    assert kept == rows


@pytest.mark.slow
def test_a_watched_run_that_was_cut_resumes_to_the_same_weights_and_log(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = WatchParams(every=2, keep="best")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "whole"))
    whole, watch = watched(folder, tmp_path, params)
    train(whole, tmp_path)
    expected, log = (watch.finish(), digest(whole)), (tmp_path / "grpo.csv").read_text()
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "cut"))
    for last in (3, 4):
        cut, _ = watched(folder, tmp_path, params)
        with pytest.raises(CutError):
            train(replace(cut, source=CutSource(cut.source, last)), tmp_path)  # type: ignore[arg-type]
    again, watch = watched(folder, tmp_path, params)
    train(again, tmp_path)
    assert (watch.finish(), digest(again)) == expected
    assert (tmp_path / "grpo.csv").read_text() == log


@pytest.mark.slow
def test_the_weights_of_the_best_evaluation_become_the_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, proxy = dict.fromkeys(range(STEPS + 1), 0.3) | {3: 0.9}, dict.fromkeys(range(STEPS + 1), 0.5)
    for keep, kept in (("best", 3), ("last", STEPS)):
        monkeypatch.setenv("DVC_ROOT", str(tmp_path / keep))
        params = WatchParams(every=1, keep=keep)  # type: ignore[arg-type]
        run, watch, seen = scripted(make_run(folder, "grpo", tmp_path), params, true, proxy)
        train(run, tmp_path)
        found = watch.finish()
        assert found["best_step"] == 3 and found["kept_step"] == kept
        assert digest(run) == seen[kept], "the model is not that of the step that is said"
        assert found["heldout_true"] == pytest.approx(true[kept])
    assert len(set(seen.values())) > 3


@pytest.mark.slow
def test_a_run_that_gets_clearly_worse_ends(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true = {0: 0.5, 1: 0.9, 2: 0.3, 3: 0.3, 4: 0.3, 5: 0.3, 6: 0.3}
    flat, rising = dict.fromkeys(true, 0.5), {step: step**2 / 36 for step in true}
    for params, proxy, rows, said in (
        (WatchParams(every=1, patience=2), flat, 3, "the run ends at step 3"),
        (WatchParams(every=1, over_optimisation="stop"), rising, 4, "OVER-OPTIMISATION at step 4"),
        (WatchParams(every=1), rising, 6, "OVER-OPTIMISATION at step 4"),
        (WatchParams(every=1), flat, 6, "best held-out true reward at step 1 of 6"),
    ):
        monkeypatch.setenv("DVC_ROOT", str(tmp_path / f"{rows}-{said[:4]}-{params.over_optimisation}"))
        run, watch, _ = scripted(make_run(folder, "grpo", tmp_path), params, true, proxy)
        log = train(run, tmp_path)
        assert [row["step"] for row in log.rows] == list(range(rows + 1))
        assert "loss" not in log.rows[-1] and "heldout_true" in log.rows[-1]
        assert watch.finish().get("over_optimised_step") == (4 if proxy is rising else None)
        printed = capsys.readouterr().err
        assert said in printed and printed.count("OVER-OPTIMISATION") <= 1


class StaleSampler(LocalSampler):
    """A sampler that never gets the trainer's weights."""

    def sync(self, model: Any, version: str) -> None:
        self.version = version


def source_with(folder: Path, models: ModelSet, sampler: LocalSampler, text: ChatText, **rollout: Any) -> Rounds:
    prompts = [Prompt(f"p{i}", asked(i), text.prompt(asked(i)), "1") for i in range(5)]
    params = RolloutParams.model_validate({**ROLLOUT, **rollout})
    needs = frozenset({"old_logp"})
    return rounds_of(prompts, sampler, function_reward(few_numbers), models, needs, params, text, name="online@grpo")


def test_a_sampler_with_other_weights_is_noticed_and_ends_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    run = make_run(folder, "grpo", tmp_path)
    text = ChatText(load_tokenizer(folder))
    same = source_with(folder, run.models, LocalSampler(run.models.policy, text.stops, DEVICE), text)
    same.batch(0)
    assert same.metrics()["sampler_gap_max"] < 1e-4
    off = source_with(folder, run.models, LocalSampler(run.models.policy, text.stops, DEVICE), text, gap_rows=0)
    off.batch(0)
    assert "sampler_gap" not in off.metrics()

    other = load_model(tiny_folder(tmp_path / "other", seed=1))
    stale = source_with(folder, run.models, StaleSampler(other, text.stops, DEVICE), text)
    limits = TrainingParams(limits=LimitParams(steps=3))
    with pytest.raises(TrainingError, match="sampler and trainer disagree") as caught:
        train(replace(run, source=stale, params=limits), tmp_path)
    assert "limits.sampler_gap: null" in str(caught.value) and "step 2" in str(caught.value)


def test_a_rollout_names_the_weights_that_sampled_it(folder: Path) -> None:
    models, text = ModelSet(load_model(folder), DEVICE), ChatText(load_tokenizer(folder))
    sampler = LocalSampler(models.policy, text.stops, DEVICE)
    source = source_with(folder, models, sampler, text)
    source.batch(0)
    assert sampler.version == "online@grpo step 0"
    source.batch(4)
    assert sampler.version == "online@grpo step 4", "two minibatches a round, so round 2 begins at step 4"


def test_a_table_without_held_out_prompts_is_refused_by_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shared = {"split": "train", "info": "{}", "task": ""}
    rows = [{"prompt": asked(i), "problem": f"{i}+1", "answer": str(i + 1), **shared} for i in range(3)]
    write_table(with_ids(from_rows(rows, "prompts"), "prompts"), Path("data/mine/prompts.parquet"), "prompts")
    params = settings_of("grpo").model_copy(update={"watch": WatchParams()})
    text = ChatText(load_tokenizer(folder))
    with pytest.raises(DataError, match="the split 'heldout' has 0 prompts") as caught:
        heldout_prompts(params, text, "online.runs.grpo")
    assert "data/mine/prompts.parquet" in str(caught.value)


def test_few_held_out_prompts_are_noted_and_an_error_of_memory_names_its_key(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shared = {"split": "heldout", "info": "{}", "task": ""}
    rows = [{"prompt": asked(i), "problem": f"{i}+1", "answer": str(i + 1), **shared} for i in range(3)]
    write_table(with_ids(from_rows(rows, "prompts"), "prompts"), Path("data/mine/prompts.parquet"), "prompts")
    models, text = ModelSet(load_model(folder), DEVICE), ChatText(load_tokenizer(folder))
    params = settings_of("grpo")
    sampling = params.rollout.sampling.model_copy(update={"kv_gb": 1e-9})
    params = params.model_copy(update={"rollout": params.rollout.model_copy(update={"sampling": sampling})})
    sampler = LocalSampler(models.policy, text.stops, DEVICE, section="online.runs.grpo.rollout.sampling")
    for prompts, noted in ((3, False), (4, True)):
        more = params.model_copy(update={"watch": WatchParams(prompts=prompts)})
        found = heldout_prompts(more, text, "online.runs.grpo")
        run = OnlineRun("online@grpo", more, text, found, models, found)
        watch = run.watch(function_reward(few_numbers), sampler, 6)
        said = "online.runs.grpo.watch.prompts = 4: data/mine/prompts.parquet has 3 held-out prompts"
        assert (said in capsys.readouterr().out) == noted
    assert watch is not None
    with pytest.raises(ParamsError) as caught:
        watch.look(0)
    assert caught.value.where == "online.runs.grpo.rollout.sampling.kv_gb"


@pytest.mark.parametrize(
    ("over", "because"),
    [
        ({"watch": {"every": 0}}, "watch.every"),
        ({"watch": {"reward": {"correct": {"weight": 1.0, "normalise": True}}}}, "watch.reward.correct has normalise"),
        ({"watch": {"reward": {"model": 1.0}}}, "reward_model and the reward `model` need each other"),
        ({"watch": {"reward": {"correct": 1.0, "format": 0.0}}}, "format: with weight 0 it is a metric"),
        ({"watch": {"metrics": ["model"]}}, "reward_model and the reward `model` need each other"),
        ({"watch": {"split": "test"}}, "watch.split: unknown key"),
    ],
)
def test_a_watch_that_cannot_be_is_refused(over: dict[str, Any], because: str) -> None:
    inputs = {"start": "sft/main", "data": "two_step/prompts", "corpus": "none", "reward_model": "none"}
    with pytest.raises(ParamsError, match=because):
        check(ONLINE["grpo"].model, ONLINE["grpo"].row.merged({"algorithm": "grpo", **inputs, **over}), where="a")
