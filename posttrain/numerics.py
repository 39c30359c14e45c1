"""Choose the CPU instructions of torch's libraries, which determine the order of sums."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Final

from posttrain.errors import ParamsError
from posttrain.late_imports import is_late

VARIABLE: Final = "POSTTRAIN_CPU_ISA"
CHOICES: Final = {
    "default": ("default", "COMPATIBLE", "SSE41"),
    "avx2": ("avx2", "AVX2", "AVX2"),
    "avx512": ("avx512", "AVX512", "AVX512_CORE"),
}
"""Value of the variable -> values of torch's, MKL's and oneDNN's own variables."""
REMOVED: Final = (
    "DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "NVIDIA_TF32_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE",
    "OPENBLAS_CORETYPE", "PYTORCH_TUNABLEOP_ENABLED", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)  # fmt: skip
"""Settings of single libraries that would give other results than the record claims."""


def fix_numerics() -> None:
    """Use one CPU instruction set, so that machines with and without AVX-512 sum in the same order.

    Stages do the same. Call it before torch is imported. POSTTRAIN_CPU_ISA chooses the set: avx2 (the default), avx512
    or default (SSE). Without this call, the same arguments give the same bytes only in the same environment on the same
    kind of CPU.

    Example: `import posttrain; posttrain.fix_numerics(); import torch`
    """
    if "torch" in sys.modules and not is_late("torch"):
        what = "torch is already imported and has chosen its CPU instructions"
        raise ParamsError(what=what, where="fix_numerics", fix="Call posttrain.fix_numerics() before `import torch`")
    set_numerics()


def set_numerics() -> None:
    """Set the variables that torch's libraries read on import."""
    chosen = os.environ.setdefault(VARIABLE, "avx2")
    if chosen not in CHOICES:
        fix = f"Use one of {', '.join(CHOICES)}, or unset it"
        raise ParamsError(what=f"{VARIABLE} = '{chosen}' is unknown", where="environment", fix=fix)
    linux = sys.platform == "linux" and platform.machine() == "x86_64"
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if linux else chosen
    if chosen != "default" and not re.search(rf"\b{chosen}", flags):
        fix = f"Set {VARIABLE} to a supported one: {', '.join(CHOICES)}"
        raise ParamsError(what=f"this CPU lacks {chosen}", where="environment", fix=fix)
    for name in REMOVED:
        os.environ.pop(name, None)
    names = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
    os.environ |= dict(zip(names, CHOICES[chosen], strict=True), CUBLAS_WORKSPACE_CONFIG=":4096:8")
