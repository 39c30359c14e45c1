"""The stored keys of TRL's configs are those of the TRL that is installed."""

from __future__ import annotations

import json

import pytest

from docs.make.trl_keys import FILE, keys

pytest.importorskip("trl", reason="make env-trl installs it")
pytestmark = pytest.mark.oracle


def test_the_stored_keys_are_those_of_trl() -> None:
    assert keys() == json.loads(FILE.read_text(encoding="utf-8"))
