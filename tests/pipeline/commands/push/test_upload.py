"""What a push uploads, and what it deletes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from posttrain.errors import ParamsError, PipelineError
from posttrain.pipeline.commands.push import upload as module
from posttrain.pipeline.commands.push.upload import left_over, push, scored_policy, upload


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(
        "evaluate: {runs: {text: {policy: sft/a, data: my/chat}, asked: {policy: sft/a, data: my/prompts}}}\n"
    )


def test_files_of_the_earlier_model_are_left_over() -> None:
    found = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "pytorch_model.bin",
        "notes.md",
        "old/config.json",
        "README.md",
    ]
    assert left_over(found, ["config.json"]) == ["model-00001-of-00002.safetensors", "pytorch_model.bin"]
    assert left_over([], ["config.json"]) == []


def test_a_policy_needs_a_score() -> None:
    assert scored_policy("sft/a") == ("text", "sft/a") and scored_policy("sft/a", "prompts") == ("asked", "sft/a")
    with pytest.raises(ParamsError, match="text has no score on prompts"):
        scored_policy("text", "prompts")


def test_names_of_repositories(monkeypatch: pytest.MonkeyPatch) -> None:
    for to in ("a/b", "hf:a", "hf:a/b--c"):
        with pytest.raises(ParamsError, match="is not a repository"):
            push("text", to, "private", "show")
    files = [SimpleNamespace(rfilename="a"), SimpleNamespace(rfilename="b/c")]
    assert module._names(SimpleNamespace(siblings=files)) == ["a", "b/c"]
    assert module._names(SimpleNamespace(siblings=None)) == []
    assert module._deleted(["a", "b/c"]) == "     deleted  a\n     deleted  b/c\n" and module._deleted([]) == ""
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(PipelineError, match="no token was found"):
        upload("a/b", {}, "private")
