"""Packages that only a part of posttrain needs."""

from __future__ import annotations

import sys

import pytest

from posttrain import extras
from posttrain.extras import EXTRAS, need, need_or_exit, package_error


def test_package_error() -> None:
    found = package_error(ModuleNotFoundError(name="peft.tuners"))
    assert found is not None and found.what == "peft is not installed; it is part of the extra `lora`"
    assert found.fix == 'Run pip install "posttrain[lora]"' and found.where == sys.executable
    assert package_error(ModuleNotFoundError(name="own_module")) is None


def test_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "EXTRAS", {**EXTRAS, "mine": ("torch", "nothing_here"), "there": ("torch",)})
    need("there")
    need_or_exit("there")
    with pytest.raises(extras.PackageError, match="nothing_here is not installed; it is part of the extra `mine`"):
        need("mine")
    with pytest.raises(SystemExit) as ended:
        need_or_exit("mine")
    assert str(ended.value.code).startswith("error: ") and "nothing_here" in str(ended.value.code)


def test_an_environment_without_posttrain_s_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extras._is_installed("torch") is True and extras._is_installed("nothing_here") is False
    assert extras._is_installed("nothing_here.inside") is False
    monkeypatch.setattr(extras, "CORE", ("nothing_here",))
    found = package_error(ModuleNotFoundError(name="peft"))
    assert found is not None and found.what == "the packages of posttrain are not installed"
    with pytest.raises(extras.PackageError, match="the packages of posttrain are not installed"):
        need("lora")
