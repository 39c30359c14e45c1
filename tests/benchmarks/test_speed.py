"""The speed benchmarks in small: that every side does the same work, not how fast."""

from __future__ import annotations

import importlib
import platform
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import sft, theirs
from benchmarks.speed.case import SHAPES, Row, batches, language_model, lengths, padding, words
from benchmarks.speed.cases import COMPARED, SCALING, TINY, WORKLOADS, case_of
from benchmarks.speed.gpu import flops, share_of_peak, sides_of, write
from benchmarks.speed.meter import Report
from benchmarks.speed.ours import RANK, device, models_of
from benchmarks.speed.run import SideError, agree, alternate, load, ratios, save
from docs.make.performance import write_page


@pytest.mark.parametrize("workload", WORKLOADS)
def test_posttrain_and_the_bound_do_the_same_work(workload: str) -> None:
    sides = importlib.import_module(f"benchmarks.speed.{workload}").SIDES
    case = TINY[f"{workload}/tiny"]
    ours, bound = (sides[side](case) for side in ("posttrain", "bound"))
    agree(f"{workload}/tiny", {"posttrain": [ours], "bound": [bound]})
    assert ours.units == bound.units > 0
    assert len(ours.losses) == case.warm + case.updates


def test_the_shape_for_gpus_trains_in_small() -> None:
    case = TINY["sft/tiny-qwen3"]
    report = sft.SIDES["posttrain"](case)
    assert len(report.losses) == case.updates and all(0 < loss < 10 for loss in report.losses)
    assert case_of("sft/Q").device == "cuda"


def test_model_flops_are_those_that_torch_counts() -> None:
    shape = SHAPES["tiny-qwen3"]
    model, size = language_model(shape), 24
    model.set_attn_implementation("eager")  # of the others' attention torch counts nothing
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(1, size, dtype=torch.long), attention_mask=None)
    unseen = 12 * shape.layers * shape.heads * shape.head * (size**2 - size * (size + 1) / 2)
    assert flops(shape, [Row([], [5] * size)]).step == 3 * counter.get_total_flops() - unseen
    half = flops(shape, [Row([5] * 12, [5] * 12)])
    assert flops(shape, [Row([], [5] * size)]).step - half.step == 6 * shape.vocabulary * shape.width * 12


def test_model_flops_of_lora_are_those_that_torch_counts() -> None:
    """Frozen weights have no gradient, so torch multiplies with them twice and not three times."""
    shape, size = replace(SHAPES["tiny-qwen3"], width=128), 24
    case = replace(TINY["sft/tiny-qwen3"], shape=shape)
    policy = models_of(case, device(case), reference=False, lora=True).policy
    policy.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        policy(input_ids=torch.ones(1, size, dtype=torch.long), attention_mask=None).logits.sum().backward()
    counted = flops(shape, [Row([], [5] * size)])
    unseen = 12 * shape.layers * shape.heads * shape.head * (size**2 - size * (size + 1) / 2)
    first = 2 * size * (shape.width * (2 * shape.heads + 4 * (shape.kv_heads or 0)) * shape.head) / 2
    low = 2 * size * 3 * RANK * shape.width
    assert counted.lora_step - counter.get_total_flops() == pytest.approx(first + low - unseen)


def test_the_share_of_peak_of_lora_counts_four_operations() -> None:
    """8B LoRA at 9,286 tokens a second: 0.28 of an H200, and not the 0.42 that 6 operations would give."""
    many = [Report(3.0032, 27_888, 0.0, [])]
    assert share_of_peak("sft/8B", "posttrain_lora_recompute", many, 989.0) == pytest.approx(0.28, abs=0.01)
    assert share_of_peak("sft/8B", "posttrain", many, 989.0) == pytest.approx(0.42, abs=0.01)


def test_the_page_of_a_gpu_names_targets_and_what_is_missing(tmp_path: Path) -> None:
    fast, slow = (Report(seconds, 10.0, 100.0, [1.0]) for seconds in (1.0, 2.0))
    found = {
        "grpo/Q": {"posttrain": [fast], "trl_padded": [slow]},
        "dpo/Q": {"posttrain": [fast]},
        "sft/8B": {"posttrain_lora_recompute": [fast]},
    }
    older = {
        "grpo/Q": {"posttrain": [fast], "trl_padded": [fast]},
        "sft/Q": {"posttrain": [fast], "trl_padded": [slow]},
    }
    write([("a machine", found), ("an older one", older)], 989.0, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| grpo/Q / default TRL | 2.00 | 2.00 | reached |" in text
    assert "| sft/Q / default TRL | 1.00 | 2.00 | reached, by a lower table |" in text
    assert "| sft/Q / tuned TRL | 1.00 | not measured | |" in text and "Tuned TRL has not been measured" in text
    assert "| sft/Q / posttrain_free | 0.87 | not measured | |" in text
    assert "| dpo/Q / peak | 0.25 | " in text and "| sft/8B / GB, at most | 60 | 0 | reached |" in text
    assert "| grpo/Q / tuned TRL, vLLM | 0.67 | not measured | |" in text
    write([("a machine", {"sft/Q": {"posttrain": [fast], "trl": [slow]}})], 989.0, tmp_path / "page.md")
    assert "Tuned TRL has not been measured" not in (tmp_path / "page.md").read_text()


def test_tuned_trl_has_liger_on_a_gpu_or_does_not_run() -> None:
    cpu, gpu = case_of("sft/T"), case_of("sft/Q")
    assert theirs.tuned(cpu) == theirs.near_defaults(cpu) and theirs.unpadded(cpu) == {}
    assert "use_liger_kernel" not in theirs.near_defaults(gpu)
    if theirs.has_liger():
        assert theirs.tuned(gpu)["use_liger_kernel"]
    else:
        with pytest.raises(SystemExit, match="pip install liger-kernel"):
            theirs.tuned(gpu)
        assert not {"trl", "trl_lora", "trl_packing"} & {*sides_of("sft/Q")} and "trl_padded" in sides_of("sft/Q")


@pytest.mark.parametrize("workload", ["sft", "dpo"])
def test_trl_does_the_same_work(workload: str) -> None:
    pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[trl]'")
    sides = importlib.import_module(f"benchmarks.speed.{workload}").SIDES
    case = TINY[f"{workload}/tiny"]
    ours, theirs = (sides[side](case) for side in ("posttrain", "trl"))
    agree(f"{workload}/tiny", {"posttrain": [ours], "trl": [theirs]})
    assert ours.units == theirs.units > 0


@pytest.mark.slow
def test_a_side_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    reports = alternate("sft/tiny", ("posttrain",), 1, tmp_path)
    assert load("sft/tiny", tmp_path) == reports
    assert reports["posttrain"][0].peak_mb > 50


def test_sides_that_differ_are_an_error() -> None:
    ours, theirs = Report(1.0, 1.0, 1.0, [0.5, 0.4]), Report(1.0, 1.0, 1.0, [0.5, 0.3])
    with pytest.raises(SideError, match="differ"):
        agree("sft/tiny", {"posttrain": [ours], "trl": [theirs]})


def test_batches_waste_what_they_claim() -> None:
    for name, answers in (("sft/T", 1), ("dpo/S", 2)):
        case = case_of(name)
        for items in batches(case, answers)[case.warm :]:
            assert padding(items) == pytest.approx(case.padding, rel=0.02)
            assert max(len(row) for item in items for row in item) == case.longest
    assert padding(batches(case_of("sft/control"))[-1]) == 1
    assert lengths(4, 10, 1.0) == [10] * 4
    assert words([5, 1]) == "w5 <stop>"


def test_the_page_has_every_case_and_ratios_by_turn(tmp_path: Path) -> None:
    fast, slow = (Report(seconds, 10.0, 100.0, [1.0]) for seconds in (1.0, 2.0))
    reports = {"posttrain": [fast, slow], "bound": [fast, fast], "trl": [slow, slow]}
    assert ratios(reports, "trl") == [2.0, 1.0]
    save("sft/T", reports, tmp_path)
    write_page(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "1.50 [1.00, 2.00]" in text
    assert f"Python {platform.python_version()}, torch " in text, "the machine is kept with the reports"
    assert all(case in text for case in COMPARED)
    assert all(title in text for title in SCALING)
    assert "dpo/S | not measured yet" in text
