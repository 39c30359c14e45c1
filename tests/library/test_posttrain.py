"""Names of the package, which are imported on first use."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version

import pytest

import posttrain
from posttrain.api.train import train_model
from posttrain.errors import ParamsError
from posttrain.numerics import fix_numerics


def test_a_public_name_is_that_of_its_module() -> None:
    assert posttrain.__version__ == version("posttrain")
    assert posttrain.fix_numerics is fix_numerics
    assert posttrain.losses is import_module("posttrain.losses")
    assert posttrain.train_model is train_model
    assert posttrain.ParamsError is ParamsError


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'posttrain' has no attribute 'train'"):
        posttrain.__getattr__("train")


def test_the_names_are_listed_once() -> None:
    listed = dir(posttrain)
    assert set(posttrain.__all__) <= set(listed)
    assert listed.count("train_online") == listed.count("evaluate_model") == 1
