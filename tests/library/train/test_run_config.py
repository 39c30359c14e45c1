"""Algorithms by name, with the model of a run."""

from __future__ import annotations

import pytest

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.supervised import LikelihoodConfig
from posttrain.errors import ParamsError
from posttrain.train.run_config import Algorithm, Algorithms

ROW = AlgorithmRow("p", "f", {})
TABLE = Algorithms(({"mine": ROW}, lambda row: LikelihoodConfig), ({"yours": ROW}, lambda row: LikelihoodConfig))


def test_rows() -> None:
    assert TABLE["mine"] == Algorithm(ROW, LikelihoodConfig) == TABLE.entry("yours")
    assert list(TABLE) == ["mine", "yours"] and len(TABLE) == 2 and "mine" in TABLE and "other" not in TABLE
    with pytest.raises(KeyError):
        TABLE["other"]


def test_what_is_unknown() -> None:
    with pytest.raises(ParamsError, match="'minee' is unknown"):
        TABLE.entry("minee")
    with pytest.raises(ParamsError, match="It is an algorithm of train_model and"):
        TABLE.entry("dpo")
