"""The arguments of `posttrain push`."""

from __future__ import annotations

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands import push as module
from posttrain.pipeline.commands.line import parse
from posttrain.pipeline.commands.push import upload


def test_a_model_is_pushed_or_written_as_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "push", lambda *given: f"push {given}")
    monkeypatch.setattr(upload, "export", lambda *given: f"export {given}")

    def said(*words: str) -> str:
        return module.run(parse(["push", "grpo", *words]))

    assert said("--to", "hf:a/b") == "push ('grpo', 'hf:a/b', 'private', 'upload')"
    assert said("--to", "hf:a/b", "--public", "--dry-run") == "push ('grpo', 'hf:a/b', 'public', 'show')"
    assert said("--gguf", "a.gguf") == "export ('grpo', 'gguf', 'a.gguf', 'float16')"
    assert said("--export", "mine", "a.x", "--dtype", "float32") == "export ('grpo', 'mine', 'a.x', 'float32')"
    with pytest.raises(ParamsError, match="it works only with --to"):
        said("--gguf", "a.gguf", "--dry-run")
    with pytest.raises(ParamsError, match="it works only with --gguf"):
        said("--to", "hf:a/b", "--dtype", "float32")
