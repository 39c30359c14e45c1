"""Compile device.cpp once, into a cache folder, and load it before torch asks for CUDA."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

NAME = "second_device"
SOURCE = Path(__file__).with_name("device.cpp")
LIBRARIES = ("c10", "torch_cpu", "torch", "torch_python")


def compiler() -> str | None:
    """The C++ compiler, None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def why_not() -> str | None:
    """Say why there is no second device here; None: there can be."""
    if compiler() is None:
        return "the second device needs g++ once"
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return "torch is not installed"
    version = Path(spec.submodule_search_locations[0], "version.py").read_text(encoding="utf-8")
    if re.search(r"^(?:cuda|hip)\b.* = '", version, re.MULTILINE):
        return "the second device takes CUDA's place, and this torch has its own: it needs a CPU build"
    return None


def load() -> Any:
    """The compiled module; torch must not have been imported."""
    if "torch" in sys.modules:
        raise ImportError("import the second device before torch, which asks for CUDA once")
    if reason := why_not():
        raise ImportError(reason)
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    file = _compiled(folder)
    ctypes.CDLL(str(folder / "lib/libtorch_global_deps.so"), ctypes.RTLD_GLOBAL)
    for name in LIBRARIES:
        ctypes.CDLL(str(folder / f"lib/lib{name}.so"))
    ctypes.CDLL(str(file))  # registers the device before torch looks for it
    import torch  # noqa: F401

    own = importlib.util.spec_from_file_location(NAME, file)
    assert own is not None and own.loader is not None
    module = importlib.util.module_from_spec(own)
    own.loader.exec_module(module)
    return module


def _compiled(torch_folder: Path) -> Path:
    """The library of this source and this torch: half a minute the first time."""
    version = (torch_folder / "version.py").read_bytes()
    mark = hashlib.sha256(SOURCE.read_bytes() + version + sys.version.encode()).hexdigest()[:12]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posttrain-second-device"
    target = folder / f"{mark}.so"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    found = compiler()
    assert found is not None
    made = folder / f".{mark}-{os.getpid()}.so"
    include, lib = torch_folder / "include", torch_folder / "lib"
    folders = (include, include / "torch/csrc/api/include", sysconfig.get_paths()["include"])
    command = [found, "-shared", "-fPIC", "-std=c++20", "-O1", "-g0", "-w", str(SOURCE), "-o", str(made)]
    command += [f"-DTORCH_EXTENSION_NAME={NAME}", *(f"-I{one}" for one in folders), f"-L{lib}"]
    subprocess.run([*command, *(f"-l{name}" for name in LIBRARIES)], check=True)
    made.replace(target)
    return target
