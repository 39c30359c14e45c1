"""Speed on a GPU: a Qwen3-0.6B with random weights compared with TRL, and SFT's share of the device's peak.

python -m benchmarks.speed.gpu [-n 5] [--peak 989]    writes docs/reports/performance-gpu.md
python -m benchmarks.speed.gpu -n 0                   writes the page of what has been measured; needs no GPU
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks import RESULTS, ROOT
from benchmarks.speed.case import Row, Shape, batches
from benchmarks.speed.cases import GPU
from benchmarks.speed.meter import Report
from benchmarks.speed.ours import RANK
from benchmarks.speed.run import MACHINE_GPU, Reports, alternate, load, median, median_ratio, ratios
from benchmarks.speed.theirs import has_liger

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
        "trl_padded",
        "trl",
        "trl_lora",
        "trl_packing",
    ),
    "dpo/Q": ("posttrain", "posttrain_lora", "trl_padded", "trl", "trl_lora"),
    "grpo/Q": ("posttrain", "posttrain_no_graphs", "posttrain_lora", "trl_padded", "trl"),
    "grpo/Q-rounds": ("posttrain",),
    "sft/Q-32k": ("posttrain_recompute",),
    "sft/8B": ("posttrain_lora_recompute",),
    "dpo/8B": ("posttrain_lora_recompute",),
}
VLLM_SIDES = {
    "grpo/Q": ("posttrain_vllm", "trl_vllm"),
    "grpo/Q-rounds": ("posttrain_vllm", "posttrain_vllm_ahead"),
}
TUNED = ("trl", "trl_lora", "trl_packing", "trl_vllm")
"""TRL's sides that need Liger's kernels."""
TITLES = {"trl_padded": "default TRL", "trl": "tuned TRL", "trl_lora": "tuned TRL, LoRA"}
TITLES |= {"trl_packing": "tuned TRL, packing", "trl_vllm": "tuned TRL, vLLM"}
TARGETS = {
    ("sft/Q", "peak"): 0.30,
    ("dpo/Q", "peak"): 0.25,
    ("sft/Q", "posttrain_free"): 1 / 1.15,
    ("sft/Q", "trl_padded"): 1.0,
    ("sft/Q", "trl"): 1.0,
    ("dpo/Q", "trl_padded"): 1.0,
    ("dpo/Q", "trl"): 1.0,
    ("grpo/Q", "trl_padded"): 2.0,
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
    """Return the sides that can run here: vLLM's only with vLLM, and tuned ones of TRL only with Liger."""
    sides = (*SIDES[case], *(VLLM_SIDES.get(case, ()) if find_spec("vllm") is not None else ()))
    return tuple(side for side in sides if side not in TUNED or has_liger())


@dataclass(frozen=True)
class Flops:
    """The floating-point operations of rows, the output head at scored tokens only."""

    dense: float
    """2 for each weight and token."""
    attention: float
    """4 for each pair of tokens of which one sees the other, and unit of the heads' width."""
    adapters: float
    """2 for each weight of an adapter and token."""

    @property
    def forward(self) -> float:
        """Return a forward pass of the model without adapters."""
        return self.dense + self.attention

    @property
    def step(self) -> float:
        """Return forward and backward with all weights trained: a product has two gradients."""
        return 3 * self.forward

    @property
    def lora_step(self) -> float:
        """Return forward and backward of adapters: frozen weights have no gradient of their own, so 4 for each."""
        return 2 * self.dense + 3 * self.attention + 3 * self.adapters


def flops(shape: Shape, rows: Sequence[Row]) -> Flops:
    """Return the operations of a forward pass over these rows, and those of adapters on all linear layers."""
    width = shape.heads * shape.head
    keys = (shape.kv_heads or shape.heads) * shape.head
    sizes = [(shape.width, width), (shape.width, keys), (shape.width, keys), (width, shape.width)]
    sizes += [(shape.width, shape.feed_forward), (shape.width, shape.feed_forward), (shape.feed_forward, shape.width)]
    tokens = sum(len(row) for row in rows)
    scored = sum(len(row.completion) for row in rows)
    seen = sum(len(row) * (len(row) + 1) / 2 for row in rows)
    layers = shape.layers * tokens
    return Flops(
        2 * (layers * sum(rows * columns for rows, columns in sizes) + shape.vocabulary * shape.width * scored),
        4 * shape.layers * width * seen,
        2 * layers * RANK * sum(rows + columns for rows, columns in sizes),
    )


def share_of_peak(name: str, side: str, many: Sequence[Report], peak: float) -> float:
    """Return model flops in a second over the device's. DPO's reference adds a forward pass."""
    case, pairs = GPU[name], name.startswith("dpo")
    work = flops(case.shape, [row for items in batches(case, 1 + pairs)[case.warm :] for item in items for row in item])
    total = (work.lora_step if "lora" in side else work.step) + (work.forward if pairs else 0)
    return total / median(many, lambda one: one.seconds) / (peak * 1e12)


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
        "`default TRL` has TRL's defaults, but recomputes no layers: padded rows, torch's attention, no Liger kernels.",
        "`tuned TRL` has Liger's kernels; SFT with a FlashAttention package also has no padding.",
        f"{_tuned_runs(measured)}", "",
        f"Of peak: model flops in a second over {peak:.0f} teraflops in bf16. A step has 6 for each weight and token",
        "(the head at scored tokens only), and 12 for each pair of tokens of which one sees the other and unit of the",
        "heads' width. With LoRA each frozen weight counts 4, because it has no gradient, and each weight of an",
        "adapter 6. DPO's reference adds a forward pass. What is computed again is not counted. The column is empty",
        "for GRPO, which also samples, and for TRL.", "",
    ]  # fmt: skip
    for machine, found in measured:
        lines += [
            f"Machine: {machine}.", "",
            "| case | side | units/s | posttrain / side | of peak | peak MB | turns |", "|---|---|---|---|---|---|---|",
            *(line for case, reports in found.items() for line in _sides(case, reports, peak)), "",
        ]  # fmt: skip
    lines += ["| target | wanted | measured | |", "|---|---|---|---|"]
    for (case, what), target in TARGETS.items():
        title = f"{case} / {TITLES.get(what, what)}"
        for machine, found in measured:
            if (value := _reached(found, case, what, peak)) is not None:
                old = "" if machine == measured[0][0] else ", by a lower table"
                said = f"{'reached' if value >= target else 'missed'}{old}"
                lines.append(f"| {title} | {target:.2f} | {value:.2f} | {said} |")
                break
        else:
            lines.append(f"| {title} | {target:.2f} | not measured | |")
    for case, most in MEMORY_GB.items():
        used = [one.peak_mb for _, found in measured for many in found.get(case, {}).values() for one in many]
        value = max(used, default=0.0) * 2**20 / 1e9
        shown = f"{value:.0f} | {'reached' if value <= most else 'missed'}" if used else "not measured | "
        lines.append(f"| {case} / GB, at most | {most:.0f} | {shown} |")
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"written: {page}")


def _tuned_runs(measured: Sequence[Measured]) -> str:
    """Return a sentence that says whether TRL's tuned sides have run."""
    ran = any(side in TUNED for _, found in measured for reports in found.values() for side in reports)
    return "Both were measured." if ran else "Tuned TRL has not been measured on a GPU yet."


def _sides(case: str, reports: Reports, peak: float) -> Iterator[str]:
    """Return a case's lines of the table."""
    for side, many in reports.items():
        rate, memory = (median(many, value) for value in (lambda one: one.rate, lambda one: one.peak_mb))
        values = sorted(ratios(reports, side)) if "posttrain" in reports else []
        spread = f"{values[len(values) // 2]:.2f} [{values[0]:.2f}, {values[-1]:.2f}]" if values else ""
        counted = side.startswith("posttrain") and not case.startswith("grpo")
        share = f"{share_of_peak(case, side, many, peak):.2f}" if counted else ""
        yield f"| {case} | {TITLES.get(side, side)} | {rate:.4g} | {spread} | {share} | {memory:.0f} | {len(many)} |"


def _reached(found: dict[str, Reports], case: str, what: str, peak: float) -> float | None:
    """Return a target's value; None where its sides were not measured on one machine."""
    reports = found.get(case, {})
    if "posttrain" not in reports or (what != "peak" and what not in reports):
        return None
    return (
        share_of_peak(case, "posttrain", reports["posttrain"], peak) if what == "peak" else median_ratio(reports, what)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
