"""The stages alone choose the CPU's instructions, whatever the environment says, and the choice is recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.measure.provenance import differences
from posttrain.measure.record import write_record
from posttrain.pipeline.runs.stage_maker import stage_maker
from tests.cpu import HOSTILE, ISA
from tests.workspace import ROOT

SHOW = (
    "import stages, json, os, torch; "
    "print(json.dumps([torch.backends.cpu.get_cpu_capability(), torch.backends.mkldnn.is_available(), "
    "{k: v for k, v in os.environ.items() if k.startswith(('ATEN', 'MKL', 'ONEDNN', 'DNNL', 'OPENBLAS', 'CUBLAS', "
    "'NVIDIA_TF32', 'NPY_', 'POSTTRAIN'))}]))"
)
MORE = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "NVIDIA_TF32_OVERRIDE": "1", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}


def begun(**changes: str) -> subprocess.CompletedProcess[str]:
    """A process that has begun as a stage does, in an environment with these changes."""
    kept = {name: value for name, value in os.environ.items() if name != ISA}
    command = [sys.executable, "-c", SHOW]
    return subprocess.run(command, cwd=ROOT, env={**kept, **changes}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_library_variables_do_not_change_the_instruction_set() -> None:
    usual, other = begun(), begun(**HOSTILE, **MORE)
    assert usual.returncode == 0, usual.stderr
    assert json.loads(other.stdout) == json.loads(usual.stdout)
    if "avx2" in Path("/proc/cpuinfo").read_text():
        assert json.loads(usual.stdout)[0] == "AVX2"


@pytest.mark.skipif("avx512f" not in Path("/proc/cpuinfo").read_text(), reason="needs a CPU with AVX-512")
def test_posttrain_cpu_isa_chooses_the_instruction_set() -> None:
    assert json.loads(begun(**{ISA: "avx512"}, **HOSTILE).stdout)[0] == "AVX512"
    assert json.loads(begun(**{ISA: "default"}).stdout)[0] == "DEFAULT"


def test_an_unknown_instruction_set_is_a_one_line_error() -> None:
    done = begun(**{ISA: "avx"})
    assert done.returncode == 1
    assert done.stderr == "error: POSTTRAIN_CPU_ISA = 'avx' is unknown. Use one of default, avx2, avx512, or unset it\n"


def test_the_instruction_set_is_recorded_and_separates_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    makers = []
    for choice in ("avx2", "avx512", "avx2"):
        monkeypatch.setenv(ISA, choice)
        write_record("sft", {})
        assert json.loads(Path("records/sft.json").read_text())["cpu_isa"] == choice
        makers.append(stage_maker("sft"))
    assert differences(makers[0], makers[1]) == ["cpu_isa avx2 -> avx512"]
    assert not differences(makers[0], makers[2])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_a_waiting_thread_spins_briefly_unless_its_user_chose(given: dict[str, str], kept: dict[str, str]) -> None:
    waits = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    show = f"import stages, json, os; print(json.dumps({{k: os.environ[k] for k in {waits} if k in os.environ}}))"
    environment = {name: value for name, value in os.environ.items() if name not in waits} | given
    done = subprocess.run(
        [sys.executable, "-c", show], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == kept
