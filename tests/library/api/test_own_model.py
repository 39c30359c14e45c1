"""A caller's own model: its device, its text and its attention."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from posttrain.api.own_model import check_rows, device_of, frozen_of, our_attention, own_model, text_of, turns_of
from posttrain.errors import DataError, ModelError
from posttrain.models.files.store import load_tokenizer
from posttrain.models.forward.forward import NAME
from posttrain.text.bpe import BpeParams, train_tokenizer
from tests.library.models.tiny import TEXTS, tiny_model


def test_a_model_without_peft_s_wrapper() -> None:
    model = tiny_model()
    assert own_model(model) is model
    wrapped = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj"]))
    assert own_model(wrapped) is wrapped.get_base_model()
    prompted = get_peft_model(tiny_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ModelError, match="PROMPT_TUNING adds virtual tokens"):
        own_model(prompted)


def test_a_string_is_a_turn() -> None:
    assert turns_of("1+1", "user") == [{"role": "user", "content": "1+1"}]
    turns = [{"role": "assistant", "content": "2"}]
    assert turns_of(turns, "user") is turns


def test_the_text_has_the_stop_tokens_and_the_context_of_the_model(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), tmp_path)
    tokenizer, model = load_tokenizer(tmp_path), tiny_model()
    end = tokenizer.eos_token_id
    for given, stops in ((None, (end,)), (7, (end, 7)), ([7, 9], (end, 7, 9))):
        model.generation_config.eos_token_id = given
        found = text_of(model, tokenizer, "2025-01-02")
        assert found.stops.tokens == stops and (found.today, found.context) == ("2025-01-02", 256)


def test_rows_longer_than_the_context_are_refused() -> None:
    text: Any = SimpleNamespace(context=4)
    check_rows(text, [1, 4], "rows")
    check_rows(text, [], "rows")
    check_rows(SimpleNamespace(context=None), [99], "rows")  # type: ignore[arg-type]
    with pytest.raises(DataError) as refused:
        check_rows(text, [1, 6, 5], "rows")
    assert (refused.value.what, refused.value.where) == (
        "it has 6 tokens, more than the model's context of 4",
        "rows[1]",
    )


def test_the_device_of_a_model() -> None:
    found = device_of(tiny_model())
    assert (found.device, found.deterministic, found.threads) == ("cpu", False, torch.get_num_threads())


def test_the_model_s_own_attention_comes_back() -> None:
    model = tiny_model()
    model.set_attn_implementation("eager")
    with our_attention(model):
        assert model.config._attn_implementation == NAME and model.runs_in_rows is False
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ModelError, match=r"its weights are torch\.float16"), our_attention(tiny_model().half()):
        pass


def test_the_reference_of_a_run() -> None:
    model, given = tiny_model(), tiny_model(1)
    copied = frozen_of(model, None, moves=False)
    assert copied is not model and torch.equal(copied.model.norm.weight, model.model.norm.weight)
    assert frozen_of(model, given, moves=False) is given
    moving = frozen_of(model, given, moves=True)
    assert moving is not given and torch.equal(moving.lm_head.weight, given.lm_head.weight)
