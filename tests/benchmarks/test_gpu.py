"""`make gpu`: every part that a CPU can run does so in small, what is measured is kept, and a stopped run goes on.

What needs a GPU ran on none here: attention over rows of any length, Liger, CUDA graphs and vLLM. tests/second_device
runs the parts as on CUDA.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_parts.__main__ import PARTS, SKIPPED
from benchmarks.gpu_parts.__main__ import main as run_part
from benchmarks.gpu_parts.ceilings import shapes, step_tokens
from benchmarks.gpu_parts.figures import Figures, MissingError, Result, limit, predicted, read
from benchmarks.gpu_parts.kernels import split
from benchmarks.gpu_parts.profiled import kind_of
from benchmarks.gpu_parts.sizes import FULL, SMALL
from benchmarks.gpu_parts.training import Job, compiler, switched, tile_bytes, timed
from benchmarks.gpu_parts.variants import AS_IT_IS
from posttrain.models.forward import compiled, flash, kernels, logp, varlen
from posttrain.sampling.vllm.process import PYTHON, USUAL

COMPILED = ("compiled", "compiled, not deterministic", "compiled step of 2 rows")
"""Figures that take a compiler's half minute."""
VLLM = os.environ.get(PYTHON) or str(gpu.ROOT / USUAL)
OURS = [part for part in PARTS if part not in ("G", "E")]


def figures_of(part: str, file: Path, known: tuple[str, ...] = ()) -> dict[str, Result]:
    """Run a part in small on the CPU."""
    if known:
        file.write_text(json.dumps({part: {name: {"speed": 1.0, "verdict": "known"} for name in known}}))
    figures = Figures(file, part, 300.0)
    import_module(f"benchmarks.gpu_parts.{PARTS[part].module}").run(figures, "cpu", SMALL.on("cpu"))
    assert not figures.left
    return read(file)[part]


@pytest.mark.parametrize("part", OURS)
def test_a_part_runs_in_small_and_its_figures_have_verdicts(part: str, tmp_path: Path) -> None:
    found = figures_of(part, tmp_path / "gpu.json", COMPILED if part in "CD" else ())
    assert not [name for name, figure in found.items() if "failed" in figure]
    whole = {name: figure for name, figure in found.items() if "skipped" not in figure}
    assert len(whole) >= 4 and all(figure["verdict"] for figure in whole.values())
    for figure in whole.values():
        assert all(value >= 0 for key, value in figure.items() if key.endswith(("ms", "_s", "speed")))


def test_what_is_missing_is_skipped_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, str(tmp_path / "no-python"))
    arguments = ["E", "--file", str(tmp_path / "gpu.json"), "--seconds", "9", "--device", "cpu", "--small"]
    assert run_part(arguments) == SKIPPED
    kernels = figures_of("A", tmp_path / "gpu.json")
    skipped = kernels["attention backward of the case's rows, free"]["skipped"]
    assert "CUDA only" in skipped and "CUDA" in skipped
    if find_spec("liger_kernel") is None:
        assert "pip install liger-kernel" in kernels["RMS norm of q forward, liger"]["skipped"]
    if find_spec("trl") is None:
        assert "pip install" in figures_of("G", tmp_path / "gpu.json")["default TRL"]["skipped"]


def test_trl_is_measured_next_to_posttrains_speed_in_part_c(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[trl]'")
    file = tmp_path / "gpu.json"
    found = figures_of("G", file)
    sides = {"default TRL", "tuned TRL", "tuned TRL, packing"}
    assert {name for name in found if found[name].get("tokens_s", 0) > 0} == sides
    assert found["tuned TRL, packing"]["padding_free"] and not found["default TRL"]["padding_free"]
    assert all("run part C first" in found[f"posttrain / {side}"]["skipped"] for side in sides)
    file.write_text(json.dumps({"G": found, "C": {AS_IT_IS: {"tokens_s": 2 * found["tuned TRL"]["tokens_s"]}}}))
    import_module("benchmarks.gpu_parts.trl_tuned").run(Figures(file, "G", 100), "cpu", SMALL.on("cpu"))
    assert read(file)["G"]["posttrain / tuned TRL"]["ratio"] == pytest.approx(2.0)
    assert "faster than tuned TRL" in read(file)["G"]["posttrain / tuned TRL"]["verdict"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which(VLLM) is None, reason="vLLM's environment is not there: make env-vllm")
def test_a_server_of_vllm_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, VLLM)
    found = figures_of("E", tmp_path / "gpu.json")
    assert not [name for name, figure in found.items() if "failed" in figure]
    assert "unner" in found["start of the server"]["runner"]
    assert found["new weights"]["write_s"] > 0 and found["new weights"]["load_s"] > 0
    assert found["2 samples as a run takes them"]["tokens"] > 2 and found["2 answers alone"]["speed"] > 0


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file, calls = tmp_path / "gpu.json", list[str]()

    def measure(name: str) -> Callable[[], Result]:
        def taken() -> Result:
            calls.append(name)
            if name == "bad" and calls.count("bad") == 1:
                raise RuntimeError("CUDA error: an illegal memory access")
            if name == "absent":
                raise MissingError("no such package: pip install it")
            return {"ms": 2.0}

        return taken

    def run(figures: Figures) -> None:
        for name in ("good", "bad", "absent", "last"):
            figures.take(name, measure(name), limit("ms", 1.5, "suspect", "no cause"))

    run(Figures(file, "A", 100))
    assert calls == ["good", "bad", "absent", "last"], "a figure that fails does not stop the next ones"
    assert "illegal memory access" in read(file)["A"]["bad"]["failed"]
    run(Figures(file, "A", 100))
    assert calls[4:] == ["bad", "absent"], "what was measured is not measured again"
    assert read(file)["A"]["bad"]["verdict"] == "2 ms (limit 1.5): suspect"
    late = Figures(file, "B", -1.0)
    run(late)
    assert late.left == ["good", "bad", "absent", "last"] and "B" not in read(file)
    assert Figures(file, "A", 100, again=True).found("good") is None


def test_a_figure_during_which_the_process_ended_is_marked_and_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"

    def ends() -> Result:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Figures(file, "C", 100).take("compiled", ends)
    assert "the process ended" in read(file)["C"]["compiled"]["failed"]
    assert Figures(file, "C", 100).take("compiled", lambda: {"ms": 1.0}) is not None


def test_verdicts_decide_between_two_explanations() -> None:
    suspect = limit("ms", 0.12, "suspect", "no cause", note="bytes alone need 0.04")
    assert suspect({"ms": 0.17}) == "0.17 ms (limit 0.12; bytes alone need 0.04): suspect"
    assert suspect({"ms": 0.05}).endswith("no cause")
    verdict = predicted("ratio", 2.15, "verdict 1 holds", "verdict 1 falls")
    assert verdict({"ratio": 2.1}) == "2.1 (predicted 2.15, within 20%): verdict 1 holds"
    assert verdict({"ratio": 1.1}).endswith("falls")


def test_parts_run_in_their_order_until_the_time_is_over() -> None:
    ran = list[tuple[str, float]]()

    def start(part: str, seconds: float) -> int:
        ran.append((part, round(seconds)))
        return 1 if part == "A" else 0

    assert gpu.run_parts(["E", "A", "0"], start, time.monotonic() + 100) == {"0": 0, "A": 1, "E": 0}
    assert ran == [("0", 15), ("A", 45), ("E", 100)]
    assert gpu.run_parts(["0"], start, time.monotonic() - 1) == {}
    assert [*PARTS][-1] == "E" and sum(part.seconds for part in PARTS.values()) == 570


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_command_ends_with_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 1
    assert "no CUDA device here" in capsys.readouterr().err
    assert gpu.main(["--device", "cpu"]) == 1
    assert "needs --small" in capsys.readouterr().err


def test_the_command_runs_a_part_in_a_process_and_says_how_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gpu.json"
    arguments = ["--small", "--device", "cpu", "--parts", "0", "--file", str(file)]
    assert gpu.main(arguments) == 0
    assert "0: done; 8 figures, 0 skipped, 0 failed" in capsys.readouterr().out
    before = read(file)
    assert gpu.main(arguments) == 0 and read(file) == before, "nothing is measured twice"
    file.write_text(json.dumps({"0": {"copy": {"failed": "out of memory"}}}))
    assert gpu.summary(file, {"0": 1, "A": 4}) == [
        f"figures: {file}",
        "0: ended with status 1; 0 figures, 0 skipped, 1 failed: copy",
        "A: its time was over; 0 figures, 0 skipped, 0 failed",
    ]


def test_a_part_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "START_S", 0.0)
    options = ["--small", "--device", "cpu", "--file", str(tmp_path / "gpu.json")]
    assert gpu.in_a_process("C", options, 0.2) == -signal.SIGKILL
    assert "C: ended after 0 s; what it has measured is kept" in capsys.readouterr().out


def test_the_full_sizes_are_those_of_the_measured_cases() -> None:
    assert step_tokens(FULL.sft) == 13_944 and 8_000 < step_tokens(FULL.lora) < 8_400
    assert shapes(FULL.sft, FULL.tile_tokens)["q"] == (13_944, 1024, 2048)
    assert sum(FULL.tail) == 16_384 and all(case.device == "cuda" for case in (FULL.sft, FULL.long, FULL.lora))
    assert FULL.steps + 2 * FULL.replays + 1 <= FULL.answer, "a row's own pages hold all steps"
    assert SMALL.steps + 2 * SMALL.replays + 1 <= SMALL.answer
    assert split([1, 5, 3, 2], (1, 3)) == [[5], [3, 2], [1]]


def test_switches_change_what_runs_and_take_it_back() -> None:
    names = flash.NAMES
    before = (kernels.liger, flash.NAMES, varlen.split_of, logp.gpu_tile_bytes, compiled.OPTIONS)
    with switched():
        assert kernels.liger() is None and not flash.NAMES
        assert logp.gpu_tile_bytes(torch.device("cpu")) == 512 * 2**20
        with tile_bytes(2**31), compiler(deterministic=False):
            assert logp.gpu_tile_bytes(torch.device("cpu")) == 2**31
            assert compiled.OPTIONS == {"deterministic": False, "fallback_random": True}
    with pytest.raises(MissingError, match="flash-attn-4"), switched("newest attention"):
        assert names == flash.NAMES
    if kernels.liger() is None:
        with pytest.raises(MissingError, match="pip install liger-kernel"), switched("fused"):
            raise AssertionError("Liger is not there")
    assert before == (kernels.liger, flash.NAMES, varlen.split_of, logp.gpu_tile_bytes, compiled.OPTIONS)


def test_a_job_may_have_rows_of_its_own() -> None:
    job = Job(replace(SMALL.sft, device="cpu"), rows=SMALL.tail)
    assert [[len(item[0]) for item in step] for step in job.updates()] == [[*SMALL.tail]] * 2
    lora = timed(replace(job, lora=True))
    assert lora["ms"] > 0 and 0 < lora["share_of_peak"] < 1


def test_kernels_are_sorted_into_kinds() -> None:
    names = {
        "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>": "attention",
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT": "products",
        "void gemv2T_kernel_val<int, float>": "vector products",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>": "norms",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>": "optimizer",
        "void at::native::vectorized_elementwise_kernel<4, ...>": "element-wise",
        "void at::native::reduce_kernel<512, 1, ...>": "reductions",
        "Memcpy DtoD (Device -> Device)": "copies",
        "aten::mm": "products",
        "_rms_norm_forward_kernel": "norms",
        "_swiglu_backward_kernel": "rotary positions and SwiGLU",
        "something new": "other",
    }
    assert {name: kind_of(name) for name in names} == names
