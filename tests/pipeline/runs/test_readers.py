"""Readers of other people's rollouts."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from posttrain.pipeline.runs.readers import READERS, Format


def test_formats() -> None:
    pytest.importorskip("posttrain.plugins.rollouts")
    assert {"trl", "prime_rl", "inspect"} <= set(READERS) and callable(READERS["trl"])
    assert TypeAdapter(Format).validate_python("trl") == "trl"
    with pytest.raises(ValueError, match="'trll' is unknown"):
        TypeAdapter(Format).validate_python("trll")
