"""Models without weights, from the config on disk or of the run that will make it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.errors import ModelError
from posttrain.models.files.store import load_config
from posttrain.pipeline.checks import meta_models as module
from posttrain.pipeline.checks.meta_models import (
    config_of,
    config_source,
    context_length,
    rate_of,
    shape_of,
    size_of_run,
    template_of,
)
from posttrain.text.bpe import CHAT_TEMPLATE
from tests.library.models.tiny import tiny_folder

SETTINGS: dict[str, Any] = {
    "base": {
        "folders": {"own": {"path": "my/model"}},
        "hub": {"far": {"name": "Qwen/Qwen3-0.6B", "revision": "0" * 40}},
        "scratch": {"new": {"data": "d/corpus", "shape": {"layers": 1, "width": 32, "heads": 2, "context": 64}}},
    },
    "sft": {"runs": {
        "own": {"start": "base/own", "data": "d/chat"},
        "new": {"start": "base/new", "data": "d/chat"},
        "far": {"start": "base/far", "data": "d/chat"},
    }},
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("meta")
    tiny_folder(folder / "my")
    (folder / "params.yaml").write_text(yaml.safe_dump(SETTINGS))
    return folder


@pytest.fixture(autouse=True)
def inside(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


def test_the_config_of_a_model() -> None:
    assert config_source("sft/own", SETTINGS) == config_source("base/own", SETTINGS) == Path("my/model")
    assert config_of("sft/own", SETTINGS).to_dict() == load_config(Path("my/model")).to_dict()
    assert config_source("sft/new", SETTINGS).shape.width == 32
    made = config_of("sft/new", SETTINGS)
    assert (made.hidden_size, made.num_hidden_layers) == (32, 1)
    with pytest.raises(ModelError, match=r"it has no config\.json yet\. Run `dvc repro base_hub@far`"):
        config_source("sft/far", SETTINGS)
    with pytest.raises(ModelError, match=r"no config\.json there"):
        config_source("no/such", SETTINGS)


def test_the_context_of_a_model() -> None:
    assert context_length("sft/own", SETTINGS) == 256 and context_length("sft/new", SETTINGS) == 64
    file = Path("my/model/config.json")
    text = file.read_text()
    config = json.loads(text)
    del config["max_position_embeddings"]
    file.write_text(json.dumps(config))
    assert context_length("sft/own", SETTINGS) == load_config(Path("my/model")).max_position_embeddings
    file.write_text(text)


def test_a_folder_of_a_run_counts_only_with_its_present_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models/base/new"
    folder.mkdir(parents=True)
    assert module._has_config(folder) is False
    (folder / "config.json").write_text("{}")
    assert module._has_config(folder) is True
    run = SETTINGS["base"]["scratch"]["new"]
    lock = {"base_scratch@new": {"params": {"params.yaml": {"base.scratch.new": run}}}}
    assert (
        module._is_current("base/new", SETTINGS, lock) is True and module._is_current("base/new", SETTINGS, {}) is False
    )
    assert not isinstance(config_source("base/new", SETTINGS), Path)
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": lock}))
    assert config_source("base/new", SETTINGS) == Path("models/base/new")
    Path("dvc.lock").unlink()
    far = tmp_path / "models/base/far"
    far.mkdir()
    (far / "config.json").write_text("{}")
    assert config_source("base/far", SETTINGS) == Path("models/base/far"), "its stage was run without DVC"


def test_sizes_and_rates() -> None:
    size = size_of_run("sft.runs", "own", SETTINGS)
    model = shape_of(config_of("base/own", SETTINGS))
    assert size == sum(weight.numel() for weight in model.parameters()) and {
        weight.device.type for weight in model.parameters()
    } == {"meta"}
    scorer = shape_of(config_of("base/own", SETTINGS), scores=True)
    assert type(scorer).__name__ == "Qwen3ForSequenceClassification" and type(model).__name__ == "Qwen3ForCausalLM"
    assert size_of_run("base.scratch", "new", SETTINGS) == size_of_run("sft.runs", "new", SETTINGS) > 0
    assert rate_of("sft.runs", "own").startswith(f"0.0001, the default for sft with all weights of {size:,} parameters")


def test_the_template_of_a_model() -> None:
    assert template_of("sft/new", SETTINGS) == CHAT_TEMPLATE
    assert template_of("sft/own", SETTINGS) == Path("my/model/tokenizer_config.json").read_text()
    assert template_of("sft/far", SETTINGS) is None and template_of("no/such", SETTINGS) is None
