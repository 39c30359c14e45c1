"""Load a model of transformers and sample it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.api.model import load_model, sample
from posttrain.errors import DataError, ParamsError
from tests.library.models.tiny import tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[Any, Any]:
    return load_model(folder)


def test_load_model(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    assert model.config._attn_implementation == "eager" and model.runs_in_rows is False
    assert len(tokenizer) == model.config.vocab_size


def test_samples_do_not_depend_on_other_prompts(loaded: tuple[Any, Any]) -> None:
    both = sample(*loaded, ["1+1", "12+3"], n=2, max_tokens=3)
    assert len(both.texts) == 4 and both.ids.shape == both.mask.shape == both.logp.shape
    assert bool((both.logp[both.mask] < 0).all()) and not both.logp[~both.mask].any()
    alone = sample(*loaded, "12+3", n=2, max_tokens=3)
    assert alone.texts == both.texts[2:]
    talk = sample(*loaded, [{"role": "user", "content": "12+3"}], n=2, max_tokens=3)
    assert talk.texts == alone.texts
    twice = sample(*loaded, ["12+3", "12+3"], max_tokens=3)
    assert twice.texts == alone.texts


def test_what_is_refused(loaded: tuple[Any, Any]) -> None:
    with pytest.raises(DataError, match="is not a prompt"):
        sample(*loaded, [{"prompt": "a"}, 3])  # type: ignore[list-item]
    with pytest.raises(ParamsError, match="longer than the model's context"):
        sample(*loaded, ["1+1"], max_tokens=5000)
