"""The check at load: a model runs packed, in padded rows, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import MistralConfig

from posttrain.errors import ModelError
from posttrain.models import self_check
from posttrain.models.decoder.step import OwnCacheDecoder
from posttrain.models.files.store import scorer_of
from posttrain.models.forward.forward import NAME, Scoring, runs_in_rows
from posttrain.models.forward.logp import head_of
from posttrain.models.self_check import (
    SOFTCAP_SCALE,
    _close,
    _decodes_from_its_own_cache,
    _fault,
    _packed_and_decoded,
    _reference,
    _scaled_head,
    _slides,
    _WindowRecorder,
    device_of,
    verify_forward,
)
from tests.library.models.tiny import tiny_model

ROWS = [[0, 1, 2], [3, 4, 5]]


def eager(model: Any) -> Any:
    model.set_attn_implementation("eager")
    return model


@torch.inference_mode()
def logits_of(model: Any) -> Tensor:
    """Each row alone, in transformers' own way."""
    was = model.config._attn_implementation
    found = [eager(model)(torch.tensor([row]), use_cache=False).logits[0] for row in ROWS]
    model.set_attn_implementation(was)
    return torch.cat(found)


def test_a_model_that_runs_packed_is_left_so(capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model()
    verify_forward(model, "here")
    assert capsys.readouterr().out == "" and not runs_in_rows(model)
    assert model.config._attn_implementation == NAME
    verify_forward(scorer_of(tiny_model(), "here"), "here")


@pytest.mark.parametrize(("decodes", "how"), [(True, "its own cache"), (False, "no cache: slow")])
def test_a_model_that_cannot_run_packed_runs_in_padded_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], decodes: bool, how: str
) -> None:
    def wrong(model: Any, rows: list[list[int]]) -> Tensor:
        return 2 * _packed_and_decoded(model, rows)

    monkeypatch.setattr(self_check, "_packed_and_decoded", wrong)
    monkeypatch.setattr(self_check, "_decodes_from_its_own_cache", lambda *_: decodes)
    model = tiny_model()
    verify_forward(model, "here")
    said = capsys.readouterr().out
    assert said.startswith("here: Qwen3ForCausalLM computes different values when packed (by ")
    assert said.endswith(f": it runs in padded rows and samples with {how}\n")
    assert runs_in_rows(model) and model.has_own_cache is decodes


def test_a_model_that_gives_no_numbers_is_refused() -> None:
    model = tiny_model()
    model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(ModelError, match="Qwen3ForCausalLM computes values that are not finite"):
        verify_forward(model, "here")


def test_logits_of_rows_alone() -> None:
    model = eager(tiny_model())
    with torch.inference_mode():
        assert torch.equal(_reference(model, ROWS), logits_of(model))
        states = _reference(model.model, ROWS)
        assert states.shape == (6, 32)
        assert_close(head_of(model).logits(states), logits_of(model))


def test_the_head_is_tried_on_scaled_states() -> None:
    model = eager(tiny_model())
    with torch.inference_mode():
        states, logits = _scaled_head(model, ROWS)
        assert_close(states, SOFTCAP_SCALE * _reference(model.model, ROWS))
        assert_close(logits, SOFTCAP_SCALE * logits_of(model), rtol=1e-4, atol=1e-4)
        assert torch.equal(_reference(model, ROWS), logits_of(model)), "the hook is gone"


def test_values_are_close_up_to_a_thousandth_of_the_largest() -> None:
    expected = torch.tensor([1.0, 100.0])
    assert _close(expected + 0.09, expected) is True
    assert _close(expected + 0.11, expected) is False


def test_what_is_wrong_with_a_run() -> None:
    model = tiny_model()
    head, expected = head_of(model), logits_of(model)

    def fails() -> Tensor:
        raise RuntimeError("no kernel")

    def refuses() -> Tensor:
        raise ModelError(what="no such layer", where="here", fix="Take another")

    with torch.inference_mode():
        states = _packed_and_decoded(model, ROWS)
        assert _fault(lambda: states, head, expected) is None
        assert _fault(lambda: expected, None, expected) is None
        size = float(expected.abs().max())
        assert _fault(lambda: expected + 2 * size, None, expected) == (
            f"computes different values when packed (by {2 * size:.2g} of {size:.2g})"
        )
    assert _fault(fails, head, expected) == "cannot be run packed (RuntimeError: no kernel)"
    assert _fault(refuses, head, expected) == "cannot be run packed (no such layer)"


def test_packed_and_decoded_states_are_those_of_rows_alone() -> None:
    model = tiny_model()
    with torch.inference_mode():
        assert_close(head_of(model).logits(_packed_and_decoded(model, ROWS)), logits_of(model), rtol=1e-4, atol=1e-4)
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(LookupError, match="layers of chunked_attention, which our cache does not support"):
        _packed_and_decoded(model, ROWS)


def test_windows_that_a_model_does_not_pass_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_slides", lambda config: True)
    with torch.inference_mode(), pytest.raises(LookupError, match="do not pass their sliding window"):
        _packed_and_decoded(tiny_model(), ROWS)


def test_a_recorder_attends_and_notes_the_windows() -> None:
    recorder = _WindowRecorder([[1, 2], [3]], torch.device("cpu"))
    query, key, value = torch.randn(3, 1, 2, 3, 4)
    out = recorder.attend(0, query, key, value, Scoring(1.0, window=5))
    assert out.shape == (1, 3, 2, 4) and torch.equal(out[0, 2], value[0, :, 2])
    recorder.attend(1, query, key, value, Scoring(1.0))
    assert recorder.windows == [5, None] and recorder.packed.ids_N.tolist() == [1, 2, 3]


def test_whether_a_model_decodes_from_its_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    model = eager(tiny_model())
    expected = logits_of(model)
    with torch.inference_mode():
        assert _decodes_from_its_own_cache(model, ROWS, expected) is True
        assert _decodes_from_its_own_cache(model, ROWS, 2 * expected) is False

        def fails(*_: Any) -> None:
            raise TypeError("unknown argument")

        monkeypatch.setattr(OwnCacheDecoder, "admit", fails)
        assert _decodes_from_its_own_cache(model, ROWS, expected) is False


def test_the_device_of_a_model() -> None:
    assert device_of(tiny_model()) == torch.device("cpu")
    with torch.device("meta"):
        assert device_of(torch.nn.Linear(1, 1)) == torch.device("meta")


@pytest.mark.parametrize(
    ("config", "slides"),
    [
        (MistralConfig(sliding_window=4), True),
        (MistralConfig(sliding_window=None), False),
        (tiny_model().config, False),
    ],
)
def test_which_configs_have_a_sliding_window(config: Any, slides: bool) -> None:
    assert _slides(config) is slides
