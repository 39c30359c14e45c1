"""A port of this machine."""

from __future__ import annotations

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.serve.loopback import HOST, listening


def test_listening() -> None:
    with listening(0) as first:
        host, port = first.getsockname()
        assert host == HOST and port > 0
        with pytest.raises(PipelineError, match="the port cannot be used"):
            listening(port)
