"""Where a call writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.api.output import _weights, known_by, places
from posttrain.errors import ParamsError
from posttrain.files import file_digest
from posttrain.models.device import DeviceParams, Runtime
from posttrain.train.checkpoint import FolderCheckpoints, NoCheckpoints
from posttrain.train.metrics import CsvRecorder, NoRecorder
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import tiny_folder, tiny_model

CONFIG = posttrain.SftConfig()


def models() -> ModelSet:
    return ModelSet(tiny_model(), Runtime(DeviceParams(device="cpu")))


def placed(output: Path | None, *given: Any, checkpoints: Any = None, recorder: Any = None) -> tuple[Any, Any]:
    return places("test", CONFIG, models(), output, given, checkpoints, recorder)


def test_without_an_output_nothing_is_written_but_to_own_stores(tmp_path: Path) -> None:
    store, log = placed(None)
    assert (type(store), type(log)) == (NoCheckpoints, NoRecorder)
    own = NoCheckpoints(), CsvRecorder(tmp_path / "m.csv")
    assert placed(None, checkpoints=own[0], recorder=own[1]) == own


def test_an_output_has_its_own_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, log = placed(tmp_path, "a")
    assert (type(store), type(log)) == (FolderCheckpoints, CsvRecorder)
    assert store.folder.parent == tmp_path / "checkpoints" and log._path == tmp_path / "metrics.csv"
    assert placed(tmp_path, "a")[0].folder == store.folder != placed(tmp_path, "b")[0].folder
    with pytest.raises(ParamsError, match="output already has its own checkpoints and metrics"):
        placed(tmp_path, checkpoints=NoCheckpoints())
    assert capsys.readouterr().err == ""
    (tmp_path / "model").mkdir()
    placed(tmp_path, "c")
    assert capsys.readouterr().err == f"test: {tmp_path} contains the model of another call, which this call replaces\n"


def test_a_model_is_known_by_its_files_or_itself(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b", "sub/a"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    digests = {name: file_digest(tmp_path / name) for name in ("b", "sub/a")}
    assert known_by(tmp_path) == known_by(str(tmp_path)) == digests
    model = tiny_model()
    assert known_by(model) is model and known_by(None) is None


def test_weights_have_digests() -> None:
    first = _weights(models())
    assert first.keys() == dict(tiny_model().named_parameters()).keys() and first == _weights(models())
    other = models()
    other.policy.model.norm.weight.data.add_(1)
    assert {name for name, digest in _weights(other).items() if digest != first[name]} == {"model.norm.weight"}


def test_what_is_saved_can_be_loaded(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "start")
    rows = [{"prompt": "1+1", "completion": "2"}] * 4
    trained = posttrain.train_model(*posttrain.load_model(folder), rows, batch_size=2, output=tmp_path / "out")
    assert (tmp_path / "out/metrics.csv").read_text(encoding="utf-8").count("\n") == 1 + trained.steps
    assert posttrain.load_model(tmp_path / "out/model")[0].config.vocab_size > 0
