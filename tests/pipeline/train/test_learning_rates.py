"""The table of default learning rates: which row a run gets, where the value is shown, and what check says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from posttrain.models.nf4 import Nf4Linear
from posttrain.pipeline.checks.check_models import check_models
from posttrain.pipeline.commands.params.describe import effective
from posttrain.train.learning_rates import RATES, RateKind, default_rate, parameters_of
from posttrain.train.loop import TrainingParams, adamw
from tests.library.models.imported_models import policy_folder

PARAMS = """format: 2
base: {folders: {start: {path: my/model}}}
sft:
  runs:
    a: {start: base/start, data: mine/chat, epochs: 1.0}
    b: {start: base/start, data: mine/chat, optimizer: {lr: RATE}}
data: {files: {mine: {path: my/data, chat: rows.jsonl}}}
"""


@pytest.mark.parametrize(
    ("kind", "billions", "adapter", "lr"),
    [
        ("online", 7.0, False, 1e-6),
        ("online", 0.6, False, 5e-6),
        ("online", 0.135, False, 2e-5),
        ("online", 0.135, True, 2e-4),
        ("online", 0.0002, False, 1e-4),
        ("online", 0.0002, True, 1e-3),
        ("preference", 7.0, False, 5e-7),
        ("preference", 1.7, False, 1e-6),
        ("sft", 1.7, False, 2e-5),
        ("sft", 0.6, True, 1e-3),
        ("reward", 0.6, False, 1e-4),
        ("scratch", 0.125, False, 6e-4),
    ],
)
def test_a_run_gets_the_row_of_its_kind_and_size(kind: RateKind, billions: float, adapter: bool, lr: float) -> None:
    found = default_rate(kind, int(billions * 1e9), adapter=adapter)
    assert found.lr == pytest.approx(lr, rel=1e-12) and found.source


def test_larger_models_never_get_larger_rates_and_every_row_has_a_source() -> None:
    for kind in {row.kind for row in RATES if row.kind is not None}:
        rates = [row.lr for row in RATES if row.kind == kind]
        assert rates == sorted(rates), "the table begins with the largest models"
    assert all(row.source for row in RATES)


def test_weights_in_4_bits_count_as_they_are_whole() -> None:
    linear = nn.Linear(128, 64, bias=False)
    model = nn.Sequential(linear)
    whole = parameters_of(model)
    packed = nn.Sequential(Nf4Linear(linear))
    assert whole == 128 * 64
    assert whole <= parameters_of(packed) <= whole * 1.1, "and the scales of its blocks"


def test_the_optimizer_uses_it_and_says_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(4, 4)
    made = adamw({"policy": model}, TrainingParams(), 10, model)
    (optimizer,) = made._optimizers.values()
    assert {group["peak"] for group in optimizer.param_groups} == {1e-4}
    assert "optimizer.lr: 0.0001, the default for sft with all weights of 20 parameters" in capsys.readouterr().err
    given = adamw({"policy": model}, TrainingParams.model_validate({"optimizer": {"lr": 0.5}}), 10, model)
    assert {group["peak"] for one in given._optimizers.values() for group in one.param_groups} == {0.5}
    assert not capsys.readouterr().err
    assert torch.isfinite(model.weight).all()


def test_params_and_check_say_what_a_rate_is_compared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    policy_folder(tmp_path / "my/model")
    for rate, notes in (("5.0e-4", 0), ("6.0e-4", 1)):
        Path("params.yaml").write_text(PARAMS.replace("RATE", rate))
        found = check_models().splitlines()
        assert len(found) == notes, found
    assert found[0].startswith("note: sft.runs.b.optimizer.lr = 0.0006 is 6 times 0.0001, the default for sft")
    shown = effective("sft.runs", "a")
    assert "  optimizer.lr: null   (0.0001, the default for sft with all weights of " in shown
    assert "* optimizer.lr: 0.0006" in effective("sft.runs", "b")


def test_check_is_silent_about_models_that_are_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PARAMS.replace("RATE", "9.0e-2")
    Path("params.yaml").write_text(
        text.replace("folders: {start: {path: my/model}}", "scratch: {start: {data: mine/corpus}}")
    )
    assert check_models() == ""
