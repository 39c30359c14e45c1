"""Numbers of a config.json that no model can have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ModelError, ParamsError
from posttrain.models.files.store import load_config
from posttrain.pipeline.checks.check_models import check_models
from tests.library.models.imported_models import policy_folder

ODD = [
    ("num_hidden_layers", 10_000_000), ("num_hidden_layers", 1e7), ("num_local_experts", 10**7),
    ("max_position_embeddings", -1), ("max_position_embeddings", 0), ("max_position_embeddings", 2**40),
    ("eos_token_id", 10**6), ("eos_token_id", -1), ("eos_token_id", [0, 10**6]), ("eos_token_id", True),
    ("hidden_size", 2**40), ("vocab_size", 2**40),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), ODD)
def test_check_and_every_stage_refuse_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: Any
) -> None:
    policy_folder(tmp_path / "my/model")
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("format: 2\nbase:\n  folders:\n    mine: {path: my/model}\n")
    file = Path("my/model/config.json")
    load_config(file.parent)
    check_models()
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(ModelError, match=f"config.json: {key} = .* cannot be: "):
        load_config(file.parent)
    with pytest.raises(ParamsError, match=f"base.folders.mine: my/model/config.json: {key} = .* cannot be: "):
        check_models()


def test_inner_configs_count() -> None:
    from posttrain.models.files.config_limits import config_faults

    assert config_faults({"text_config": {"n_layers": 3000}}) == [
        "text_config.n_layers = 3000 cannot be: the most is 2,000"
    ]
    assert not config_faults({"eos_token_id": [1, 2], "vocab_size": 3, "num_hidden_layers": 126, "n_positions": 1024})
