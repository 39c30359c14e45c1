"""The table of training rollouts: what a run sampled and was trained on, bounded, and the same after a resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.data.columns import TRAINING_TEXT
from posttrain.errors import DataError, TrainingError
from posttrain.formulas.ragged import Ragged
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_model, load_tokenizer
from posttrain.online import rollout_log
from posttrain.online.rollout_log import RolloutLog, Sampling, Stored
from posttrain.online.rollout_params import RolloutParams
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.pipeline.runs.stored_rollouts import StoredRollouts
from posttrain.pipeline.tables.store import read_table
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.chat import ChatText
from posttrain.train.loop import TrainingParams, TrainingRun, training_loop
from posttrain.train.metrics import CsvRecorder
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams
from tests.library.models.tiny import function_reward, tiny_folder
from tests.library.online.rounds import rounds_of

ROLLOUT: dict[str, Any] = {"rounds": 3, "prompts": 4, "group_size": 3, "minibatches": 2, "sampling": {"max_tokens": 8}}
ROWS = 36
SETTINGS = SamplingParams(max_tokens=8).model_dump_json()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def judge(rollouts: Sequence[Rollout]) -> list[Score]:
    """Fails for some samples, and is the same for all samples of some prompts."""
    return [
        Score(0.0, "timeout") if one.sample == 2 and one.prompt.id == "p3" else Score(sum(one.row.rest) % 3 / 2)
        for one in rollouts
    ]


class CutError(Exception):
    """Stands for the moment at which a run is killed."""


class Cut:
    """An update rule that is killed at one of its steps."""

    def __init__(self, inner: AdamW, last: float) -> None:
        self._inner, self._last = inner, last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, closure: Any, progress: float) -> dict[str, float]:
        if progress >= self._last:
            raise CutError
        return self._inner.step(closure, progress)


def run_of(
    folder: Path, stored: Stored = "full", limit: float = 1e9, *, resample: int = 0, cut: float = 2.0
) -> tuple[TrainingRun, RolloutLog]:
    """A new small run that logs its rollouts, as a fresh process would make it."""
    runtime, text = Runtime(DeviceParams(threads=1)), ChatText(load_tokenizer(folder))
    models = ModelSet(load_model(folder), runtime)
    asked = [[{"role": "user", "content": f"{i}+1"}] for i in range(5)]
    prompts = [Prompt(f"p{i}", one, text.prompt(one), "1", problem=f"secret {i}") for i, one in enumerate(asked)]
    objective = PolicyObjective(POLICY_ROWS["dr_grpo"].settings(), 8)
    log = RolloutLog(Sampling("online/a", 0, SETTINGS, text.vocabulary, 3, ROWS * (1 + resample), 200), stored, limit)
    reward = function_reward(judge)
    source = rounds_of(
        prompts, LocalSampler(models.policy, text.stops, runtime), reward, models, objective.needs,
        RolloutParams.model_validate(ROLLOUT), text, tries=1 + resample, max_failed=1.0, log=log, name="online@a",
    )  # fmt: skip
    optimizer = OptimizerParams(lr=3e-3)
    update: Any = Cut(AdamW({"policy": (models.policy, optimizer.lr)}, optimizer, source.steps), cut)
    return TrainingRun(
        "online@a", TrainingParams(checkpoint_every=2), objective, source, models, update, 0, step_log=log
    ), log


def logged(
    folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch, cuts: Sequence[float] = (), **options: Any
) -> Path:
    """The folder of rollouts of a run that was killed at these shares of its steps and resumed each time."""
    monkeypatch.setenv("DVC_ROOT", str(place))
    for cut in (*cuts, 2.0):
        run, log = run_of(folder, cut=cut, **options)
        checkpoints = Checkpoints(run.name, {}, [])
        log.open(checkpoints.folder)
        if cut < 1:
            with pytest.raises(CutError):
                training_loop(run, checkpoints, CsvRecorder(place / "a.csv"))
        else:
            log.finish(place / "rollouts", training_loop(run, checkpoints, CsvRecorder(place / "a.csv")).rows)
    return place / "rollouts"


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.slow
def test_every_sample_is_there_once_with_what_became_of_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = logged(folder, tmp_path, monkeypatch)
    table = read_table(made / "part-00000.parquet", "training_rollouts")
    assert table.select("draw", "sample").rows() == [(draw, sample) for draw in range(12) for sample in range(3)]
    failed = table.filter((pl.col("prompt_id") == "p3") & (pl.col("sample") == 2))
    assert failed.height >= 2 and failed["reward"].null_count() == failed["step"].null_count() == failed.height
    assert failed["scores"].to_list()[0][0]["status"] == "timeout"
    others = table.filter(pl.col("reward").is_not_null())
    assert others["step"].is_in([0, 1, 2, 3, 4, 5]).all() and (others["step"] // 2 == others["round"]).all()
    assert others["version"].to_list() == [f"online@a step {2 * number}" for number in others["round"]]
    # Dr. GRPO's advantage is the reward less the mean of its group's rewards
    expected = others["reward"] - others.select(pl.col("reward").mean().over("draw")).to_series()
    assert (others["advantage"] - expected).abs().max() < 1e-6  # type: ignore[operator]
    assert others["reward"].to_list() == [sum(ids) % 3 / 2 for ids in others["completion_ids"]]
    steps = json.loads((made / "run.json").read_text())["steps"]
    assert len(steps) == 6 and all(set(one) == {"loss", "grad_norm"} for one in steps)


@pytest.mark.parametrize("resample", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_killed_run_leaves_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resample: int
) -> None:
    whole = logged(folder, tmp_path / "whole", monkeypatch, resample=resample)
    cut = logged(folder, tmp_path / "cut", monkeypatch, [0.1, 0.5, 0.7, 0.7], resample=resample)
    assert contents(cut) == contents(whole)
    table = pl.read_parquet(whole / "*.parquet")
    assert (table["attempt"].max() > 0) == (resample > 0), "no group was replaced, so the test would prove less"  # type: ignore[operator]


@pytest.mark.slow
def test_long_runs_are_written_more_often_and_in_parts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = logged(folder, tmp_path / "whole", monkeypatch, resample=2)
    monkeypatch.setattr(rollout_log, "PENDING_TOKENS", 1)
    often = logged(folder, tmp_path / "often", monkeypatch, [0.5], resample=2)
    assert contents(often) == contents(whole)
    files = [len(list((tmp_path / name / "checkpoints").rglob("draw-*"))) for name in ("whole", "often")]
    assert files[0] < files[1], "nothing was written between checkpoints, so the test would prove nothing"

    monkeypatch.setattr(rollout_log, "PART_BYTES", 1)
    parts = logged(folder, tmp_path / "parts", monkeypatch, resample=2)
    assert len(list(parts.glob("part-*.parquet"))) == files[1]
    table = pl.read_parquet(whole / "*.parquet")
    assert pl.read_parquet(parts / "*.parquet").equals(table)
    stored = StoredRollouts(parts, "a test")
    for first, count in ((0, 4), (3, 5), (table["draw"].max(), 1)):
        ids = table.filter(pl.col("sample") == 0)["prompt_id"][first : first + count]  # type: ignore[operator]
        drawn = stored.drawn(first, [Prompt(one, [], [1]) for one in ids])  # type: ignore[arg-type]
        expected = table.filter(pl.col("draw").is_between(first, first + count - 1))  # type: ignore[operator]
        assert [one.row.rest for one in drawn] == expected["completion_ids"].to_list()
        assert [one.logps for one in drawn] == expected["logps"].to_list()
    with pytest.raises(DataError, match="draw 0 is not of prompt other"):
        stored.drawn(0, [Prompt("other", [], [1])])


@pytest.mark.slow
def test_a_limit_keeps_figures_of_all_and_text_of_the_first_rounds(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = logged(folder, tmp_path / "full", monkeypatch)
    first = next((tmp_path / "full").rglob("draw-0000000000.parquet")).stat().st_size
    assert "may take" not in capsys.readouterr().out
    limit = first + 24 * 160 + 2000.0
    made = logged(folder, tmp_path / "limited", monkeypatch, [0.7], limit=limit)
    printed = capsys.readouterr()
    assert "may need up to" in printed.out and "rollouts_gb" in printed.err
    table = read_table(made / "part-00000.parquet", "training_rollouts")
    assert table.height == ROWS and json.loads((made / "run.json").read_text())["text_ends_at_round"] == 1
    assert table.filter(pl.col("completion_ids").is_null())["round"].unique().to_list() == [1, 2]
    same = [name for name in table.columns if name not in (*TRAINING_TEXT, "id")]
    assert table.select(same).equals(pl.read_parquet(full / "*.parquet").select(same))
    assert sum(file.stat().st_size for file in made.glob("*.parquet")) <= limit


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["none", "sampled"])
def test_what_is_not_to_be_stored_is_nowhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: Stored
) -> None:
    made = logged(folder, tmp_path, monkeypatch, stored=stored)
    for file in [*made.glob("*.parquet"), *(tmp_path / "checkpoints").rglob("draw-*.parquet")]:
        table = pl.read_parquet(file)
        nulls = table.select(pl.col(TRAINING_TEXT).null_count()).row(0)
        assert nulls == (table.height,) * len(TRAINING_TEXT)  # no id is low enough
        assert not any("secret" in one for one in table["problem"])
    assert pl.read_parquet(made / "*.parquet")["length"].min() > 0  # type: ignore[operator]


@pytest.mark.slow
def test_a_round_that_is_missing_is_noticed_before_training_resumes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CutError):
        logged_until(folder, tmp_path, monkeypatch)
    next((tmp_path / "checkpoints").rglob("draw-0000000000.parquet")).unlink()
    with pytest.raises(TrainingError, match=r"draw-0000000000\.parquet is missing"):
        logged(folder, tmp_path, monkeypatch)


def logged_until(folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", str(place))
    run, log = run_of(folder, cut=0.7)
    checkpoints = Checkpoints(run.name, {}, [])
    log.open(checkpoints.folder)
    training_loop(run, checkpoints, CsvRecorder(place / "a.csv"))


def test_the_columns_survive_the_mixed_sources_of_a_step(folder: Path) -> None:
    """Rows of pretraining text and given answers are no rollouts, and must not be noted as such."""
    log = RolloutLog(Sampling("online/a", 0, "{}", "", 3, 6, 20))
    rows = {"rollout": torch.tensor([4, 0]), "pretrain": torch.tensor([False, True])}
    log.trained(7, Ragged(torch.tensor([1, 1]), rows, {"advantage": torch.tensor([0.5, 0.0])}))
    log.trained(8, Ragged(torch.tensor([1]), {}, {}))
    assert log.state_dict()["trained"][:2].tolist() == [[4], [7]]
