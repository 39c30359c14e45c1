"""The stages of the pipeline, one short file each. This file applies settings that must precede importing torch."""

from __future__ import annotations

import gc
import os
import sys

from posttrain.extras import PIPELINE, need_or_exit

need_or_exit(PIPELINE)

from posttrain.errors import PosttrainError  # noqa: E402
from posttrain.numerics import set_numerics  # noqa: E402
from posttrain.pipeline.lock.inputs import watch_code  # noqa: E402  starts the clock of posttrain.measure.phases too
from posttrain.pipeline.params.parsed import import_late_parts  # noqa: E402
from posttrain.pipeline.processes.children import follow  # noqa: E402

watch_code()  # before the rest of the library is imported

# Imports create a million objects that are never freed; checking them at every collection costs a second.
gc.set_threshold(200_000, 20, 100)

try:
    follow()
    import_late_parts()  # before torch and transformers are imported
    set_numerics()  # before torch is imported; it is recorded
except PosttrainError as error:
    sys.exit(f"error: {error.what}. {error.fix}")
if "OMP_WAIT_POLICY" not in os.environ:
    # A thread that waits for the others spins briefly, then sleeps (python -m benchmarks.threads). If it slept at once,
    # two threads would gain little. If it spun as long as libgomp's default, a busy machine would be much slower.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
for _name, _value in {
    # polars and Arrow return freed memory at once: reading a large table takes a fifth less memory
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0",
    "MIMALLOC_PURGE_DELAY": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}.items():
    os.environ.setdefault(_name, _value)
