"""The section of docs/reports/performance.md about speed and memory, from the measured results."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from benchmarks.speed.case import Shape, batches, lengths, padding
from benchmarks.speed.cases import COMPARED, SCALING, case_of
from benchmarks.speed.run import MACHINE, Reports, load, median, ratios

UNITS = {"sft": "tokens", "reward": "pairs", "dpo": "pairs", "grpo": "completions", "rloo": "completions"}
TARGETS: dict[str, dict[str, float]] = {
    "sft/T": {"trl": 2.2, "trl_packing": 1.5},
    "sft/S": {"trl": 3.0, "trl_packing": 1.5},
    "reward/T": {"trl": 2.2},
    "reward/S": {"trl": 2.2},
    "dpo/T": {"trl": 2.3},
    "dpo/S": {"trl": 3.2},
    "grpo/T": {"trl": 1.8},
    "grpo/S": {"trl": 1.8},
    "rloo/T": {"trl": 2.8},
}
MEMORY_TARGETS = {"sft/S": 1 / 3, "dpo/S": 1 / 3, "grpo/S": 0.6, "reward/S": 0.6}
BOUND_TARGET = 0.95
SIDES = ("posttrain", "bound", "trl")
VOCABULARY_TARGET = 1.15
BYTES_OF_WEIGHTS = 16
"""Weight, gradient and AdamW's two averages of a parameter, in float32."""

HEAD = """# Speed and memory

The cost of a step on one CPU core, next to TRL and to loops written by hand for one model and machine (the
*bound*). Made by `make bench` (`python -m benchmarks.speed`; `--page` writes only this page) from the reports in
`benchmarks/results`. Figures from a GPU are on [a page of their own](performance-gpu.md).

## How it is measured

- Each side runs in a fresh process on one pinned core with one thread. Sides take turns; a ratio is of two
  neighbours in time. Tables show the median and [lowest, highest] of all turns.
  The machine is a virtual one whose speed changes by up to a fifth between turns: differences below a tenth are noise.
- Time is CPU time (user + system) after a warm-up, without imports and model creation. Memory is the largest
  resident size, imports included.
- All sides have the same rows, order, starting weights, AdamW, clipping and number of updates. Losses must agree
  update by update (SFT, reward model, DPO); online, samples have the same length. Metrics stay on (entropy,
  gradient norm, KL by three estimators, clip fraction, ...). Checkpoints are not counted.
- TRL is tuned: without bf16 autocast and gradient checkpointing, which are for GPUs. `TRL as it comes` has its
  defaults, bf16 autocast among them; all other sides compute in float32.
- `bound` (benchmarks/speed/bound.py) does the same work without generality: what is left to gain.
- Weights and ids are random. Log-normal lengths: a batch padded to its longest row has 2.35 times its real tokens.
  Units are real tokens, pairs, completions.

Models: T is a Llama of 4 layers, width 128, 64 tokens; S has 8 layers, width 512, 32,000 tokens, tied. Online, T
samples 4 prompts x 8 completions of at most 64 tokens, S 2 x 8 of 128; each round is two updates.
"""

COMPILED = """## Compiled layers

`compile: true` in a run that trains compiles each decoder layer around its attention (torch.compile) before the first
step. That takes about half a minute of CPU time on a CPU, a few seconds once torch has it in its cache
(`TORCHINDUCTOR_CACHE_DIR`), and needs a C++ compiler. It pays in long runs alone. Gradients differ from those of
uncompiled layers by rounding, so it names a run's checkpoints; the bytes are
[the same each time](../reproducibility.md). Sampling, frozen models and log-probs without a gradient are not compiled.
Mixtures of experts, models that run over padded rows, `adapter: qlora`, `update: trpo` and `processes` above 1 are
refused.

| case | tokens per CPU second, compiled / not, each turn | peak MB, not and compiled |
|---|---|---|
| sft/T | 1.04, 1.04, 0.94 | 597, 628 |
| sft/T in bf16 | 1.15, 1.06, 1.09 | 585, 645 |
| sft/S | 1.01, 1.11, 1.04 | 2001, 1739 |
| sft/S in bf16 | 0.94, 1.01 | 1747, 1656 |

`python -m benchmarks.speed --case sft/T --sides posttrain posttrain_compiled posttrain_bf16 posttrain_bf16_compiled`,
without the time of compiling, on two cores under a load of 3 to 8 from other work: differences below 0.1 are noise.
The miniature's SFT ends at held-out losses of 0.211369 and 0.211036 for seeds 0 and 1, without `compile` at 0.211369
and 0.211054 (seed 2: 0.213260).
"""

HEADER = (
    "| case | unit | posttrain | bound | TRL | posttrain / bound | posttrain / TRL "
    "| peak MB: posttrain, bound, TRL | of TRL's |"
)
CONTROL = (
    "`sft/control` is S with 512 tokens, rows of one length and every token scored: only overhead can be saved. "
    "A large ratio there would mean that the benchmark is biased."
)


def speed_lines(results: Path) -> list[str]:
    """The section; a case without results is named."""
    lines = [HEAD, _machine(results), "", COMPILED, "## Next to TRL and the bound", ""]
    lines += [HEADER, "|---|---|---|---|---|---|---|---|---|"]
    found = {case: reports for case in COMPARED if (reports := load(case, results)).get("trl")}
    lines += [_row(case, reports) for case, reports in found.items()]
    lines += [f"| {case} | not measured yet | | | | | | | |" for case in COMPARED if case not in found]
    lines += ["", CONTROL, "", *_others(found), "", *_padding(), "", *_kernel_time(found), *_targets(found), ""]
    return lines + _scaling(results)


def _row(case: str, reports: Reports) -> str:
    rates = [_number(median(reports[side], lambda one: one.rate)) for side in ("posttrain", "bound", "trl")]
    peaks = {side: median(reports[side], lambda one: one.peak_mb) for side in ("posttrain", "bound", "trl")}
    by_bound, by_trl = _spread(ratios(reports, "bound")), _spread(ratios(reports, "trl"))
    memory = ", ".join(f"{peak:.0f}" for peak in peaks.values()), f"{peaks['posttrain'] / peaks['trl']:.2f}"
    cells = [case, f"{UNITS[case.partition('/')[0]]}/s", *rates, by_bound, by_trl, *memory]
    return f"| {' | '.join(cells)} |"


def _others(found: dict[str, Reports]) -> list[str]:
    lines = ["| case | side | units/s | posttrain / side | peak MB | turns |", "|---|---|---|---|---|---|"]
    names = {"trl_packing": "TRL, tuned, with packing", "trl_default": "TRL as it comes"}
    names |= {"trl_bf16": "TRL, tuned, with bf16 autocast", "posttrain_bf16": "posttrain in bf16"}
    for case, reports in found.items():
        for side, title in names.items():
            if reports.get(side):
                rate = _number(median(reports[side], lambda one: one.rate))
                peak = median(reports[side], lambda one: one.peak_mb)
                ratio = _spread(ratios(reports, side))
                lines.append(f"| {case} | {title} | {rate} | {ratio} | {peak:.0f} | {len(reports[side])} |")
    return lines


def _kernel_time(found: dict[str, Reports]) -> list[str]:
    """The ratios by user time alone: on a busy machine the kernel takes longer, and TRL asks it for more memory."""
    lines = ["User and system time apart, of cases whose reports have both.", ""]
    head = "| case | system time of posttrain, bound, TRL | posttrain / bound, user time | posttrain / TRL, user time |"
    lines += [head, "|---|---|---|---|"]
    for case, reports in found.items():
        if all(report.system is not None for side in SIDES for report in reports[side]):
            parts = [median(reports[side], lambda one: (one.system or 0.0) / one.seconds) for side in SIDES]
            shares = ", ".join(f"{part:.0%}" for part in parts)
            by = [_spread(ratios(reports, side, lambda one: one.user_rate)) for side in SIDES[1:]]
            lines.append(f"| {case} | {shares} | {' | '.join(by)} |")
    return [*lines, ""]


def _padding() -> list[str]:
    shown = []
    for case in ("sft/T", "dpo/T", "sft/control"):
        rows = batches(case_of(case), 2 if case.startswith("dpo") else 1)[-1]
        sizes = sorted(len(row) for item in rows for row in item)
        shown.append(f"{case} {padding(rows):.2f} ({sizes[0]} to {sizes[-1]} tokens)")
    online = case_of("grpo/T")
    asked = lengths(online.batch // online.group, online.longest, online.padding)
    return [f"Padded over real tokens of a batch: {', '.join(shown)}. Prompts of grpo/T: {asked} tokens."]


def _targets(found: dict[str, Reports]) -> list[str]:
    lines = ["## Targets", "", "| case | what | target | measured | |", "|---|---|---|---|---|"]
    for case, reports in found.items():
        if case != "sft/control":
            lines.append(_target(case, "posttrain / bound", BOUND_TARGET, statistics.median(ratios(reports, "bound"))))
        for side, target in TARGETS.get(case, {}).items():
            if reports.get(side):
                lines.append(_target(case, f"posttrain / {side}", target, statistics.median(ratios(reports, side))))
        if case in MEMORY_TARGETS:
            ours, theirs = (median(reports[side], lambda one: one.peak_mb) for side in ("posttrain", "trl"))
            reached = "reached" if ours / theirs <= MEMORY_TARGETS[case] else "missed"
            lines.append(
                f"| {case} | memory of TRL's | <= {MEMORY_TARGETS[case]:.2f} | {ours / theirs:.2f} | {reached} |"
            )
    return lines


def _target(case: str, what: str, target: float, value: float) -> str:
    return f"| {case} | {what} | >= {target} | {value:.2f} | {'reached' if value >= target else 'missed'} |"


def _scaling(results: Path) -> list[str]:
    lines = ["## Scaling", "", "CPU seconds and peak memory of posttrain as one size grows.", ""]
    for title, cases in SCALING.items():
        lines += [f"**{title}**", "", "| size | CPU ms per update | ms per unit | peak MB | beyond the weights MB |"]
        lines += ["|---|---|---|---|---|"]
        beyond = []
        for name in cases:
            reports = load(name, results).get("posttrain", [])
            if not reports:
                lines.append(f"| {name} | not measured yet | | | |")
                continue
            case = case_of(name)
            spent = median(reports, lambda one: one.seconds) * 1e3
            peak = median(reports, lambda one: one.peak_mb)
            beyond.append(peak - BYTES_OF_WEIGHTS * parameters(case.shape) / 2**20)
            cells = [
                name.split("-")[-1], f"{spent / case.updates:.0f}", f"{spent / reports[0].units:.3g}", f"{peak:.0f}",
                f"{beyond[-1]:.0f}",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
        if title.startswith("vocabulary") and len(beyond) == len(cases):
            growth = beyond[-1] / beyond[-2]
            verdict = "reached" if growth <= VOCABULARY_TARGET else "missed"
            target = f"(target {VOCABULARY_TARGET}: {verdict})"
            lines += [f"32k to 152k: {growth:.2f} times the memory beyond the weights {target}.", ""]
    return lines


def parameters(shape: Shape) -> int:
    """Return how many weights a tied Llama has."""
    layer = 4 * shape.width**2 + 3 * shape.width * shape.feed_forward + 2 * shape.width
    return shape.vocabulary * shape.width + shape.layers * layer + shape.width


def _machine(results: Path) -> str:
    file = results / MACHINE
    return f"Machine: {json.loads(file.read_text())}." if file.is_file() else "Not measured yet."


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"
