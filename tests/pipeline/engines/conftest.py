from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "vllm: needs vLLM's own environment (`make env-vllm`); skipped where it is missing"
    )
