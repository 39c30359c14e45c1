from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lm_eval: needs lm-eval's own environment (`make env-lm-eval`)")
    config.addinivalue_line("markers", "inspect: needs Inspect AI's own environment (`make env-inspect`)")
