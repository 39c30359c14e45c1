"""`watch` of runs on tables: what is measured is the objective's own loss, and watching changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.data.columns import from_rows
from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.table_watch import HeldoutLoss, TableWatch, heldout_rows, table_watch
from posttrain.models.files.store import load_scorer
from posttrain.online.heldout import sampled_demonstrations
from posttrain.pipeline.runs.typed import settings_of
from posttrain.train.batch_sources import collate
from posttrain.train.heldout import mean_loss
from posttrain.train.loop import TrainingRun
from posttrain.train.model_set import ModelSet
from posttrain.train.step import StepClosure
from tests.library.models.tiny import tiny_folder
from tests.pipeline.train.test_training import ALL_WEIGHTS, DEVICE, CutError, CutSource, digest, items, make_run, train

ROW_PAIRS = [name for name, row in PREFERENCE_ROWS.items() if "side" in PreferenceObjective(row.settings()).needs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def of_whole_batch(models: ModelSet, objective: Any, examples: Any) -> dict[str, float]:
    """The metrics of all examples as one optimizer step."""
    batch = models.add_scored_columns(collate(examples), objective.needs)
    prepared = objective.prepare(batch.columns, objective.initial_state())
    return StepClosure(objective, models, batch.with_prepared(prepared.step), state=prepared.state).measured()


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_the_loss_of_demonstrations_is_that_of_training(folder: Path, aggregation: Any) -> None:
    objective = LikelihoodObjective(LikelihoodConfig(aggregation=aggregation))
    models, examples = ModelSet.load(DEVICE, folder, objective.needs, ALL_WEIGHTS), items(folder, "plain")
    found = HeldoutLoss(models, objective, examples, "w")()
    assert -found.true_P.mean() == pytest.approx(of_whole_batch(models, objective, examples)["loss"], rel=1e-5)
    if aggregation == "token_mean":
        assert -found.true_P.mean() == pytest.approx(mean_loss(models, examples), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROW_PAIRS)
def test_the_loss_of_pairs_is_that_of_training(folder: Path, name: str) -> None:
    objective = PreferenceObjective(PREFERENCE_ROWS[name].settings())
    models = ModelSet.load(DEVICE, folder, objective.needs, ALL_WEIGHTS)
    with torch.no_grad():
        for parameter in models.policy.parameters():
            parameter.add_(0.02 * torch.sin(torch.arange(parameter.numel())).view_as(parameter))
    examples = items(folder, "pairs")
    measure = HeldoutLoss(models, objective, examples, "w")
    found, whole = measure(), of_whole_batch(models, objective, examples)
    assert -found.true_P.mean() == pytest.approx(whole["loss"], rel=1e-4, abs=1e-6)
    assert found.figures["heldout_accuracy"] == pytest.approx(whole["accuracy"])
    small = HeldoutLoss(replace(models, micro_tokens=64), objective, examples, "w")()
    np.testing.assert_allclose(small.true_P, found.true_P, rtol=1e-4, atol=1e-6)


def test_the_loss_of_a_reward_model_is_that_of_training(folder: Path) -> None:
    objective = RewardObjective(RewardConfig())
    models, examples = ModelSet(load_scorer(folder), DEVICE), items(folder, "pairs")
    found, whole = HeldoutLoss(models, objective, examples, "w")(), of_whole_batch(models, objective, examples)
    assert -found.true_P.mean() == pytest.approx(whole["loss"], rel=1e-5)
    assert found.figures == {
        "heldout_accuracy": pytest.approx(whole["accuracy"]),
        "heldout_margin": pytest.approx(whole["margin"], abs=1e-5),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kto", "bco"])
def test_judged_answers_are_measured_with_a_shift_of_0(folder: Path, name: str) -> None:
    objective = PreferenceObjective(PREFERENCE_ROWS[name].settings())
    models = ModelSet.load(DEVICE, folder, objective.needs, ALL_WEIGHTS)
    found = HeldoutLoss(models, objective, items(folder, "feedback"), "w")()
    assert len(found.true_P) == 12 and np.isfinite(found.true_P).all() and "heldout_both_fell" not in found.figures


def test_a_line_says_once_that_both_answers_of_most_pairs_have_fallen(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objective = PreferenceObjective(PREFERENCE_ROWS["simpo"].settings())
    models = ModelSet.load(DEVICE, folder, objective.needs, ALL_WEIGHTS)
    measure = HeldoutLoss(models, objective, items(folder, "pairs"), "preference.runs.a.watch")
    assert measure().figures["heldout_both_fell"] == 0 and not capsys.readouterr().err
    with torch.no_grad():
        for parameter in models.policy.parameters():
            parameter.mul_(8)  # sharp and wrong
    assert measure().figures["heldout_both_fell"] > 0.5
    measure()
    said = capsys.readouterr().err
    assert said.count("both answers became less likely than at the start") == 1 and "optimizer.lr" in said


def watched(folder: Path, name: str, place: Path, params: TableWatch) -> tuple[TrainingRun, Any]:
    run = make_run(folder, name, place)
    kind = {"sft": "plain", "kto": "feedback"}.get(name, "pairs")
    watch = table_watch(run, run.objective, params, items(folder, kind))  # type: ignore[arg-type]
    return replace(run, watch=watch), watch  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "dpo", "simpo", "kto", "sdpo"])
def test_watching_changes_nothing_and_a_cut_run_resumes_to_the_same_bytes(
    folder: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "plain"))
    plain = make_run(folder, name, tmp_path)
    train(plain, tmp_path)
    params = TableWatch(every=2)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "watched"))
    run, watch = watched(folder, name, tmp_path, params)
    log = train(run, tmp_path)
    assert digest(run) == digest(plain)
    assert [row["step"] for row in log.rows if "heldout_loss" in row] == list(range(0, run.source.steps + 1, 2))
    figures = watch.finish()
    text = (tmp_path / f"{name}.csv").read_text()

    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "cut"))
    cut, _ = watched(folder, name, tmp_path, params)
    with pytest.raises(CutError):
        train(replace(cut, source=CutSource(cut.source, 3)), tmp_path)  # type: ignore[arg-type]
    again, watch = watched(folder, name, tmp_path, params)
    train(again, tmp_path)
    assert (watch.finish(), digest(again)) == (figures, digest(run))
    assert (tmp_path / f"{name}.csv").read_text() == text


def test_the_rows_are_the_same_ones_each_time_and_two_are_needed(tmp_path: Path) -> None:
    rows = [{"split": "heldout" if n % 3 else "train", "text": f"document {n}"} for n in range(30)]
    table, file = from_rows(rows, "corpus"), tmp_path / "t.parquet"
    few = heldout_rows(table, TableWatch(rows=5), file)
    assert few.height == 5 and set(few["split"]) == {"heldout"}
    assert set(heldout_rows(table.reverse(), TableWatch(rows=5), file)["id"]) == set(few["id"])
    assert heldout_rows(table, None, file).is_empty()
    with pytest.raises(DataError, match="it has 0 held-out rows, and watch needs at least 2") as caught:
        heldout_rows(table.filter(pl.col("split") == "train"), TableWatch(), file)
    assert caught.value.where == str(file) and "heldout_share" in caught.value.fix


@pytest.mark.parametrize(
    ("watch", "because"),
    [
        ({"reward": {"model": 1.0}}, "reward 'model'"),
        ({"reward": {"correct": {"weight": 1.0, "normalise": True}}}, "normalise"),
        ({"prompts": 5}, "watch.prompts: unknown key"),
        ({"metrics": ["format"]}, "metrics need samples, which are only drawn if `reward` is set"),
        ({"reward": {"correct": 1.0}, "metrics": ["model"]}, "reward 'model' needs a reward model"),
        ({"reward": {"correct": 1.0, "format": 0.0}}, "format: with weight 0 it is a metric"),
        ({"patience": 0}, "watch.patience"),
    ],
)
def test_a_watch_of_demonstrations_that_cannot_be_is_refused(watch: dict[str, Any], because: str) -> None:
    with pytest.raises(ParamsError, match=because):
        settings_of("sft.runs", {"start": "base/a", "data": "a/chat", "watch": watch}, "sft.runs.a")


def test_a_watch_of_demonstrations_may_have_metrics() -> None:
    watch = {"reward": {"correct": 1.0}, "metrics": {"format": {"after": "####"}}}
    params: Any = settings_of("sft.runs", {"start": "base/a", "data": "a/chat", "watch": watch}, "sft.runs.a")
    assert params.watch.reward["correct"].counted == 1 and params.watch.metrics["format"].options.after == "####"


def test_samples_of_prompts_with_tools_are_refused() -> None:
    rows = pl.DataFrame({"id": ["plain", "weather"], "tools": [None, "[]"]})
    nothing: Any = None
    with pytest.raises(DataError, match="row weather has tools") as found:
        sampled_demonstrations(nothing, nothing, nothing, rows, nothing, "sft.runs.main.watch")
    assert found.value.where == "sft.runs.main.watch.reward"
