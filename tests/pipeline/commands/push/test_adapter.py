"""The base of an adapter that is pushed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ModelError
from posttrain.pipeline.commands.push.adapter import HubModel, hub_base, push_note, uploaded
from posttrain.pipeline.lineage.lineage import Lineage

BASE = HubModel("them/small", "c" * 40)


def adapter(base: str) -> Path:
    folder = Path("models/sft") / base.replace("/", "-")
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "manifest.json").write_text(json.dumps({"a": "1", "adapter_config.json": "2"}))
    return folder


@pytest.fixture
def lineage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lineage:
    """A workspace with a model of the Hub."""
    monkeypatch.chdir(tmp_path)
    run: dict[str, Any] = {"base.hub.small": {"name": "them/small", "revision": "c" * 40}}
    entry = {"params": {"params.yaml": run}, "outs": [{"path": "models/base/small"}]}
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": {"base_hub@small": entry}}))
    return Lineage()


def test_the_base_is_a_model_of_the_hub(lineage: Lineage) -> None:
    folder = adapter("models/base/small")
    assert hub_base(folder, lineage) == BASE and push_note(folder, lineage) == ""
    Path("models/whole").mkdir()
    assert hub_base(Path("models/whole"), lineage) is None
    other = adapter("models/base/own")
    with pytest.raises(
        ModelError, match=r"it is an adapter of models/base/own, which was not made by a run of base\.hub"
    ):
        hub_base(other, lineage)
    assert push_note(other, lineage).startswith("note: `posttrain push --to` will reject it: it is an adapter of")


def test_the_uploaded_config_names_it(lineage: Lineage) -> None:
    found = uploaded(adapter("models/base/small"), BASE)
    config = json.loads(found["adapter_config.json"])
    assert (config["base_model_name_or_path"], config["revision"], config["r"]) == (*BASE, 8)
    digest = hashlib.sha256(found["adapter_config.json"]).hexdigest()
    assert json.loads(found["manifest.json"]) == {"a": "1", "adapter_config.json": digest}
