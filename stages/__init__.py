"""The stages of the pipeline, one short file each. What must be set before torch is loaded is set here."""

from __future__ import annotations

import gc
import os

from posttrain.inputs import watch_code  # starts the clock of posttrain.measure.phases too

watch_code()  # before the rest of the library is imported

# Importing makes a million objects that stay; looking through them again and again costs a second.
gc.set_threshold(200_000, 20, 100)

# One instruction set for everyone, so that machines with and without AVX-512 add up in the same order.
for _name, _value in {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}.items():
    os.environ.setdefault(_name, _value)
