from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gym: needs the environment of reasoning-gym; skipped where it is missing")
