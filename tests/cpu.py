"""Run the smoke pipeline with the instructions of an old CPU, AVX2 and AVX-512, and compare every output: make cpu.

AVX2 is run twice, the second time with an environment that asks the libraries for other instructions: the control.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.reproduce import lock_of
from tests.workspace import ROOT, dvc, make_workspace

ISA = "POSTTRAIN_CPU_ISA"
HOSTILE = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "DNNL_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Prescott",
}
RUNS = {
    "avx2": {},
    "avx2, other environment": HOSTILE,
    "default": {ISA: "default"},
    "avx512": {ISA: "avx512"},
}


def outputs(workspace: Path) -> dict[str, str]:
    """The digest of every output but the records, which name the instructions."""
    stages = lock_of(workspace)["stages"].values()
    found = {out["path"]: out["md5"] for stage in stages for out in stage.get("outs", ())}
    return {path: digest for path, digest in found.items() if not path.startswith("records/")}


def made(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """The outputs of a pipeline that ran from nothing in this environment."""
    workspace = make_workspace(folder, ROOT / "recipes" / "smoke.yaml")
    os.environ.update(environment)
    done = dvc(workspace, "repro")
    for name in environment:
        del os.environ[name]
    if done.returncode:
        raise RuntimeError(f"dvc repro failed in {workspace}:\n{done.stdout}")
    found = outputs(workspace)
    shutil.rmtree(workspace)
    return found


def main() -> int:
    """0 when what is promised holds: the environment changes nothing."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        found = {
            name: made(Path(folder) / str(number), environment)
            for number, (name, environment) in enumerate(RUNS.items())
            if name != "avx512" or "avx512f" in flags
        }
    first, *others = found
    for name in others:
        differ = sorted(path for path, digest in found[first].items() if found[name].get(path) != digest)
        print(f"{first} and {name}: {len(found[first]) - len(differ)} of {len(found[first])} outputs are equal")
        print("".join(f"  differs: {path}\n" for path in differ), end="", flush=True)
    return int(found[first] != found[others[0]])


if __name__ == "__main__":
    sys.exit(main())
