"""Every kind of table in turn."""

from __future__ import annotations

import pytest

from posttrain.data.columns import KINDS, Kind


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    value: Kind = request.param
    return value
