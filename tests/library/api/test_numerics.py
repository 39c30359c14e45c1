"""`fix_numerics` sets what torch reads when it is imported, and nothing after that."""

from __future__ import annotations

import os
import subprocess
import sys


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "POSTTRAIN_CPU_ISA"} | variables
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_torch_uses_the_instructions_of_the_stages() -> None:
    code = "import posttrain; posttrain.fix_numerics(); import torch; print(torch.backends.cpu.get_cpu_capability())"
    assert run(code, NPY_DISABLE_CPU_FEATURES="AVX2").stdout.strip() == "AVX2"
    assert run(code, POSTTRAIN_CPU_ISA="default").stdout.strip() == "DEFAULT"


def test_it_is_too_late_once_torch_is_imported() -> None:
    found = run("import torch, posttrain; posttrain.fix_numerics()")
    assert found.returncode and "Call posttrain.fix_numerics() before `import torch`" in found.stderr


def test_an_unknown_choice_is_named() -> None:
    found = run("import posttrain; posttrain.fix_numerics()", POSTTRAIN_CPU_ISA="sse9")
    assert (
        found.returncode and "POSTTRAIN_CPU_ISA = 'sse9' is unknown. Use one of default, avx2, avx512" in found.stderr
    )
