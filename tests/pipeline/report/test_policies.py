"""The evaluated policies of a workspace."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import polars as pl
import pytest

from posttrain.errors import DataError
from posttrain.pipeline.report.policies import (
    Policy,
    check_recorded,
    need_numbers,
    output_digests,
    prompt_ids,
    read_json,
    read_policies,
    reference,
)


def policy(label: str, **metrics: float) -> Policy:
    return Policy(label, f"sft/{label}", metrics, pl.DataFrame({"prompt_id": ["b", "a", "b"]}))


def test_prompts_and_the_reference() -> None:
    assert prompt_ids(policy("a")) == ["b", "a"]
    assert (
        reference([policy("a", kl_k1=1.0), policy("b", kl_k1=0.0)]) == "b" and reference([policy("a")]) == "reference"
    )


def test_metrics_files(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text('{"score": 1.0}')
    assert read_json(file) == {"score": 1.0}
    need_numbers({"score": 1.0}, ["score"], file)
    for value in (True, "a"):
        with pytest.raises(DataError, match="not a number: score"):
            need_numbers({"score": value}, ["score"], file)
    for text, message in [("[]", "not a JSON object"), ("{", "not readable as JSON")]:
        file.write_text(text)
        with pytest.raises(DataError, match=message):
            read_json(file)
    with pytest.raises(DataError, match="file not found"):
        read_json(tmp_path / "none.json")


def test_what_dvc_has_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("m.json")
    file.write_text("a")
    digest = hashlib.md5(b"a").hexdigest()
    stages = {"s": {"cmd": "c", "outs": [{"path": "m.json", "md5": digest}, {"path": "n"}]}}
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
    assert output_digests() == {"m.json": digest}
    check_recorded(file, {"m.json": digest})
    with pytest.raises(DataError, match="it differs from the stage's output"):
        check_recorded(file, {"m.json": "0"})


def test_policies_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"evaluate": {"policies": {"a": "sft/a", "b": "sft/b"}}}
    found, errors = read_policies(settings, {"a": "not run yet"})
    assert found == [] and errors["a"] == "not run yet" and "file not found" in errors["b"]
