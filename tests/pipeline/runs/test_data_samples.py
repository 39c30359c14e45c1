"""The inputs of a run of `data.samples`, and the tables that it makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.data.columns import from_rows
from posttrain.measure.record import noted
from posttrain.pipeline.runs.data_samples import SamplesStage, samples_stage
from posttrain.pipeline.tables.store import write_table
from tests.library.models.tiny import tiny_folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and a table of prompts of which one has no answer."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "models/sft").mkdir(parents=True)
    tiny_folder(folder / "tiny").rename(folder / "models/sft/main")
    splits = ["train"] * 6 + ["heldout"] * 4 + ["test"] * 2
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{nth}+1="}], "answer": str(nth + 1) if nth else "",
            "problem": str(nth), "split": split, "task": "", "info": "{}",
        }
        for nth, split in enumerate(splits)
    ]  # fmt: skip
    write_table(from_rows(rows, "prompts"), folder / "data/mine/prompts.parquet", "prompts")
    run = "{policy: sft/main, data: mine/prompts, reward_model: none, prompts: 3, heldout_prompts: 2, seed: 5}"
    (folder / "params.yaml").write_text(f"data: {{samples: {{own: {run}}}}}\n")
    return folder


@pytest.fixture
def stage(made: Path, monkeypatch: pytest.MonkeyPatch) -> SamplesStage:
    monkeypatch.chdir(made)
    return samples_stage("own")


def test_settings_come_from_params_yaml(stage: SamplesStage) -> None:
    assert (stage.run, stage.section, stage.params.seed) == ("own", "data.samples.own", 5)
    assert noted("seed") == 5 and stage.reward_model is None and callable(stage.sampler)


def test_the_first_prompts_that_can_be_judged(stage: SamplesStage) -> None:
    rows = stage.rows()
    assert [(row["split"], row["answer"]) for row in rows] == [
        ("train", "2"), ("train", "3"), ("train", "4"), ("heldout", "7"), ("heldout", "8"),
    ]  # fmt: skip
    policy = stage.policy()
    prompts = stage.prompts(policy)
    assert policy.folder == Path("models/sft/main")
    assert [prompt.answer for prompt in prompts] == ["2", "3", "4", "7", "8"] and all(prompt.ids for prompt in prompts)
