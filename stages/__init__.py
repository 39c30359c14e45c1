"""The stages of the pipeline, one short file each. This file sets what must be set before torch is imported."""

from __future__ import annotations

import gc
import os
import platform
import re
import sys
from pathlib import Path

from posttrain.extras import PIPELINE, need_or_exit

need_or_exit(PIPELINE)

from posttrain.pipeline.inputs import watch_code  # noqa: E402  starts the clock of posttrain.measure.phases too
from posttrain.processes.children import follow  # noqa: E402

watch_code()  # before the rest of the library is imported
follow()

# Imports create a million objects that are never freed; checking them at every collection costs a second.
gc.set_threshold(200_000, 20, 100)

# One instruction set by default, so that machines with and without AVX-512 sum in the same order. It is recorded. Only
# this variable changes it: settings of single libraries in the environment are overwritten or removed.
_CHOICES = {
    "default": ("default", "COMPATIBLE", "SSE41"),
    "avx2": ("avx2", "AVX2", "AVX2"),
    "avx512": ("avx512", "AVX512", "AVX512_CORE"),
}
_chosen = os.environ.setdefault("POSTTRAIN_CPU_ISA", "avx2")
if _chosen not in _CHOICES:
    sys.exit(f"error: POSTTRAIN_CPU_ISA = '{_chosen}' is unknown. Use one of {', '.join(_CHOICES)}, or unset it")
_linux = sys.platform == "linux" and platform.machine() == "x86_64"
_flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if _linux else _chosen
if _chosen != "default" and not re.search(rf"\b{_chosen}", _flags):
    sys.exit(f"error: this CPU lacks {_chosen}. Set POSTTRAIN_CPU_ISA to one that it has: {', '.join(_CHOICES)}")
for _name in (
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "NPY_ENABLE_CPU_FEATURES",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "OPENBLAS_CORETYPE",
    "PYTORCH_TUNABLEOP_ENABLED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
):
    os.environ.pop(_name, None)
os.environ |= dict(
    zip(("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA"), _CHOICES[_chosen], strict=True),
    CUBLAS_WORKSPACE_CONFIG=":4096:8",
)
for _name, _value in {
    # polars and Arrow return freed memory at once: reading a large table takes a fifth less memory
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0",
    "MIMALLOC_PURGE_DELAY": "0",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}.items():
    os.environ.setdefault(_name, _value)
