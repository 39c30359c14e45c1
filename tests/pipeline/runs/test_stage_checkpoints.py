"""The checkpoints of a stage: which run they belong to, and who may resume them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from posttrain.errors import PipelineError
from posttrain.locks import HELD
from posttrain.measure.provenance import Maker
from posttrain.pipeline.runs.stage_checkpoints import ACCEPTED, ASKED, Checkpoints, nearest_checkpoint, run_key
from posttrain.pipeline.workspace import DONE
from posttrain.train.checkpoint import CheckpointData, plain_key
from tests.pipeline.lock.project import md5

MAKER: Maker = {"files": {"a.py": "1"}, "packages": {}, "cpu": {"cpu_isa": "avx2"}}
OTHER: Maker = {**MAKER, "files": {"a.py": "2"}}
TABLE = Path("data/a.parquet")


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DVC_ROOT", "DVC_STAGE", "POSTTRAIN_ROOT"):
        monkeypatch.delenv(name, raising=False)
    TABLE.parent.mkdir()
    TABLE.write_text("a")


def checkpoints(lr: float = 0.1, maker: Maker = MAKER) -> Checkpoints:
    return Checkpoints("sft@main", {"lr": lr}, [TABLE], maker=maker)


def save(kept: Checkpoints, *steps: int) -> None:
    for step in steps:
        kept.save(CheckpointData(step, {"weight": torch.full((2,), float(step))}, {}))
    kept.wait()


def test_a_run_is_known_by_its_settings_and_inputs() -> None:
    key = run_key("sft@main", {"lr": 0.1}, [TABLE])
    assert key == plain_key("sft@main", {"lr": 0.1}, {"data/a.parquet": md5("a")})
    TABLE.write_text("b")
    assert run_key("sft@main", {"lr": 0.1}, [TABLE]) != key


def test_the_nearest_checkpoint() -> None:
    save(checkpoints(), 2, 4)

    def near(step: int, lr: float = 0.1) -> int | None:
        found = nearest_checkpoint("sft@main", {"lr": lr}, [TABLE], step)
        return None if found is None else found.step

    assert (near(9), near(4), near(3), near(1), near(9, lr=0.2)) == (4, 4, 2, None, None)


def test_other_runs_of_the_stage(capsys: pytest.CaptureFixture[str]) -> None:
    first = checkpoints()
    save(first, 1)
    second = checkpoints(lr=0.2)
    assert second.folder.parent == first.folder.parent
    assert second._other_runs() == [first.folder] and first._other_runs() == [second.folder]
    assert second._other_unfinished_runs() == [], "the first still holds its folder"
    free = first.folder.with_name("free")
    (free / "step-00000001").mkdir(parents=True)
    (free / HELD).touch()
    assert second._other_unfinished_runs() == [free]
    checkpoints(lr=0.3).open()
    assert "1 unfinished runs with other parameters or inputs use" in capsys.readouterr().out
    (free / DONE).touch()
    assert second._other_unfinished_runs() == []
    save(second, 1)
    assert not free.exists(), "it was finished"


def test_a_finished_run_names_its_plot() -> None:
    kept = checkpoints()
    save(kept, 1)
    Path("plots/sft").mkdir(parents=True)
    Path("plots/sft/main.csv").write_text("step,loss\n")
    kept.finish()
    assert (kept.folder / DONE).read_text() == f"md5: {md5('step,loss' + chr(10))}"


def test_other_code_needs_consent() -> None:
    kept = checkpoints()
    save(kept, 1)
    step = kept.folder / "step-00000001"
    saved = CheckpointData(1, {}, {"maker": MAKER, "edits": ["an earlier edit"]})
    assert kept._edits_since(saved, step) == ["an earlier edit"]
    other = Checkpoints("sft@main", {"lr": 0.1}, [TABLE], maker=OTHER)
    with pytest.raises(PipelineError, match=r"was made with other code or packages: a\.py changed"):
        other._edits_since(saved, step)
    assert json.loads((other._folder / ASKED).read_text()) == OTHER
    (other._folder / ACCEPTED).write_text(json.dumps(OTHER))
    assert other._edits_since(saved, step) == ["an earlier edit", "step 1: a.py changed"]
