"""Speed on a GPU: a Qwen3-0.6B with random weights compared with TRL, and SFT's share of the device's peak.

python -m benchmarks.speed.gpu [-n 5] [--peak 989]    writes docs/reports/performance-gpu.md
python -m benchmarks.speed.gpu -n 0                   writes the page of what has been measured; needs no GPU
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks import RESULTS, ROOT
from benchmarks.speed.case import Row, Shape, batches
from benchmarks.speed.cases import GPU
from benchmarks.speed.run import MACHINE_GPU, Reports, alternate, load, median, median_ratio, ratios

PAGE = ROOT / "docs" / "reports" / "performance-gpu.md"
EARLIER = (RESULTS / "h100", RESULTS / "torch-2.11")
"""What was measured on another GPU or with older versions, of the sides that ran there."""
Measured = tuple[str, dict[str, Reports]]
H100_PEAK = 989.0
"""Dense bf16 teraflops that NVIDIA states for an H100 SXM; the H200's are the same."""
SIDES = {
    "sft/Q": (
        "posttrain",
        "posttrain_free",
        "posttrain_compiled",
        "posttrain_offload",
        "posttrain_lora",
        "trl",
        "trl_lora",
        "trl_packing",
    ),
    "dpo/Q": ("posttrain", "posttrain_lora", "trl", "trl_lora"),
    "grpo/Q": ("posttrain", "posttrain_no_graphs", "posttrain_lora", "trl"),
    "grpo/Q-rounds": ("posttrain",),
    "sft/Q-32k": ("posttrain_recompute",),
    "sft/8B": ("posttrain_lora_recompute",),
    "dpo/8B": ("posttrain_lora_recompute",),
}
VLLM_SIDES = {
    "grpo/Q": ("posttrain_vllm", "trl_vllm"),
    "grpo/Q-rounds": ("posttrain_vllm", "posttrain_vllm_ahead"),
}
TARGETS = {
    ("sft/Q", "peak"): 0.30,
    ("dpo/Q", "peak"): 0.25,
    ("sft/Q", "posttrain_free"): 1 / 1.15,
    ("sft/Q", "trl"): 1.0,
    ("dpo/Q", "trl"): 1.0,
    ("grpo/Q", "trl"): 2.0,
    ("grpo/Q", "trl_vllm"): 1 / 1.5,
}
"""What to reach at least: the share of the device's peak, or posttrain's speed over that of a side."""
MEMORY_GB = {"sft/8B": 60.0, "dpo/8B": 60.0, "sft/Q-32k": 141.0}
"""The most memory that a case may take."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.gpu", description=__doc__)
    parser.add_argument("-n", "--rounds", type=int, default=5, help="alternations")
    parser.add_argument("--peak", type=float, default=H100_PEAK, help="the device's dense bf16 teraflops")
    options = parser.parse_args(arguments)
    import torch

    if options.rounds and not torch.cuda.is_available():
        print("error: no CUDA device here. Run it where there is one; on a CPU: make bench", file=sys.stderr)
        return 1
    for case in GPU if options.rounds else ():
        alternate(case, sides_of(case), options.rounds, RESULTS)
    write(
        [measured_in(folder) for folder in (RESULTS, *EARLIER) if (folder / MACHINE_GPU).is_file()], options.peak, PAGE
    )
    return 0


def measured_in(folder: Path) -> Measured:
    """Return the machine and the reports of a folder."""
    found = {case: load(case, folder) for case in GPU}
    machine = json.loads((folder / MACHINE_GPU).read_text(encoding="utf-8"))
    return machine, {case: reports for case, reports in found.items() if reports}


def sides_of(case: str) -> tuple[str, ...]:
    """Return the sides that can run here: those with vLLM only where vLLM is."""
    return (*SIDES[case], *(VLLM_SIDES.get(case, ()) if find_spec("vllm") is not None else ()))


def flops(shape: Shape, rows: Sequence[Row]) -> float:
    """Return what forward and backward of these rows need, the output head at scored tokens only.

    6 for each weight and token; 12 for each pair of tokens of which one sees the other, and unit of the heads' width.
    """
    width = shape.heads * shape.head
    keys = (shape.kv_heads or shape.heads) * shape.head
    layer = 2 * shape.width * width + 2 * shape.width * keys + 3 * shape.width * shape.feed_forward
    tokens = sum(len(row) for row in rows)
    scored = sum(len(row.completion) for row in rows)
    seen = sum(len(row) * (len(row) + 1) / 2 for row in rows)
    dense = 6 * (shape.layers * layer * tokens + shape.vocabulary * shape.width * scored)
    return dense + 12 * shape.layers * width * seen


def share_of_peak(name: str, reports: Reports, peak: float) -> float:
    """Model flops in a second over the device's; DPO's reference adds a forward pass, a third of the policy's work."""
    case, pairs = GPU[name], name.startswith("dpo")
    counted = [row for items in batches(case, 1 + pairs)[case.warm :] for item in items for row in item]
    work = flops(case.shape, counted) * (4 / 3 if pairs else 1)
    return work / median(reports["posttrain"], lambda one: one.seconds) / (peak * 1e12)


def write(measured: Sequence[Measured], peak: float, page: Path) -> None:
    """The page; no figure is written by hand."""
    lines = [
        "# Speed and memory on a GPU", "",
        "[What ran and how](../gpu.md#what-ran) says what these figures are worth. Made by `make bench-gpu`.", "",
        "Qwen3-0.6B's shape with random weights, bf16 weights with float32 masters, fresh",
        "processes in turn, time on the wall with all work done. SFT: rows of up to 2,048 tokens, padding 2.35; DPO:",
        "16 pairs of up to 1,024; GRPO: 8 prompts x 8 completions of up to 512 tokens, two updates a round.",
        "`posttrain_free`: `device.deterministic` off: what repeatable bits cost. `posttrain_compiled`: `compile` on.",
        "`posttrain_no_graphs`: `device.cuda_graphs` off. `_vllm`: vLLM samples on the same GPU, for posttrain in a",
        "process of its own, whose memory is not in the table. `8B`: Qwen3-8B's shape with LoRA of rank 16. `Q-32k`:",
        "one row of 32,768 tokens.", "",
        "Peak: model flops in a second over the device's in bf16. Model flops are 6 for each weight and token (the",
        "head at scored tokens only), and 12 for each pair of tokens of which one sees the other and unit of the",
        "heads' width; DPO's reference adds a third. What is computed again is not counted.", "",
    ]  # fmt: skip
    for machine, found in measured:
        lines += [
            f"Machine: {machine}.", "",
            "| case | side | units/s | posttrain / side | peak MB | turns |", "|---|---|---|---|---|---|",
            *(line for case, reports in found.items() for line in _sides(case, reports)), "",
        ]  # fmt: skip
    lines += ["| target | wanted | measured | |", "|---|---|---|---|"]
    for (case, what), target in TARGETS.items():
        for machine, found in measured:
            if (value := _reached(found, case, what, peak)) is not None:
                old = "" if machine == measured[0][0] else ", by a lower table"
                said = f"{'reached' if value >= target else 'missed'}{old}"
                lines.append(f"| {case} / {what} | {target:.2f} | {value:.2f} | {said} |")
                break
        else:
            lines.append(f"| {case} / {what} | {target:.2f} | not measured | |")
    for case, most in MEMORY_GB.items():
        used = [one.peak_mb for _, found in measured for many in found.get(case, {}).values() for one in many]
        value = max(used, default=0.0) * 2**20 / 1e9
        shown = f"{value:.0f} | {'reached' if value <= most else 'missed'}" if used else "not measured | "
        lines.append(f"| {case} / GB, at most | {most:.0f} | {shown} |")
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"written: {page}")


def _sides(case: str, reports: Reports) -> Iterator[str]:
    """Return a case's lines of the table."""
    for side, many in reports.items():
        rate, memory = (median(many, value) for value in (lambda one: one.rate, lambda one: one.peak_mb))
        values = sorted(ratios(reports, side)) if "posttrain" in reports else []
        spread = f"{values[len(values) // 2]:.2f} [{values[0]:.2f}, {values[-1]:.2f}]" if values else ""
        yield f"| {case} | {side} | {rate:.4g} | {spread} | {memory:.0f} | {len(many)} |"


def _reached(found: dict[str, Reports], case: str, what: str, peak: float) -> float | None:
    """Return a target's value; None where its sides were not measured on one machine."""
    reports = found.get(case, {})
    if "posttrain" not in reports or (what != "peak" and what not in reports):
        return None
    return share_of_peak(case, found[case], peak) if what == "peak" else median_ratio(reports, what)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
