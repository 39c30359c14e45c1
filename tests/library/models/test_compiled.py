"""Which layers are compiled, and what runs in place of a layer's own forward."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from posttrain.errors import ModelError
from posttrain.models.forward.compiled import _first_line, _forward, compiled, compiled_layers
from posttrain.models.forward.forward import run_in_rows
from tests.library.models.tiny import tiny_model


def test_the_layers_of_a_model() -> None:
    model = tiny_model()
    assert compiled_layers(model) == list(model.model.layers)
    with compiled([model], on=False):
        assert "forward" not in vars(model.model.layers[0])
    run_in_rows(model)
    with pytest.raises(ModelError, match="cannot be compiled: it only runs in padded rows"):
        compiled_layers(model)
    with pytest.raises(ModelError, match="transformers does not list layers of it that can be compiled separately"):
        compiled_layers(nn.Linear(1, 1))


def test_the_compiled_body_runs_where_a_gradient_is_needed() -> None:
    def plain(layer: Any, x: int, *, more: int) -> tuple[str, int]:
        return "plain", x + more

    def body(layer: Any, x: int, *, more: int) -> tuple[str, int]:
        return "body", x + more

    def checkpointed(run: functools.partial[Any], *inputs: Any) -> Any:
        return "again", run(*inputs)

    layer = SimpleNamespace(gradient_checkpointing=False, training=True, _gradient_checkpointing_func=checkpointed)
    assert _forward(layer, plain, body, 1, more=2) == ("body", 3)
    with torch.no_grad():
        assert _forward(layer, plain, body, 1, more=2) == ("plain", 3)
    layer.gradient_checkpointing = True
    assert _forward(layer, plain, body, 1, more=2) == ("again", ("body", 3))


def test_the_first_line_of_an_error() -> None:
    assert _first_line(ValueError("\nno compiler\nhere")) == "ValueError: no compiler"
    assert _first_line(ValueError("x" * 300)) == f"ValueError: {'x' * 188}"
