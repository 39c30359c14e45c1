"""Who writes each page that a program writes: a module here if it does nothing else, or the one that measures."""

from __future__ import annotations

WRITERS = {
    "reference/algorithms.md": ("docs/make/algorithms.py",),
    "reference/api.md": ("docs/make/api.py",),
    "reference/api-pipeline.md": ("docs/make/api_pipeline.py",),
    "reports/answers.md": ("docs/make/answers.py", "tests/library/rewards/math_verify.py"),
    "reports/conformance.md": ("docs/make/conformance.py",),
    "reports/coverage.md": ("docs/make/coverage.py",),
    "reports/defects.md": ("docs/make/defects.py",),
    "reports/families.md": ("tests/library/models/families.py",),
    "reports/faults.md": ("benchmarks/faults/report.py",),
    "reports/fuzz.md": ("benchmarks/faults/fuzz.py",),
    "reports/hostile.md": (
        "benchmarks/faults/hostile.py",
        "benchmarks/faults/replies.py",
        "benchmarks/faults/large.py",
    ),
    "reports/growth.md": ("benchmarks/growth.py",),
    "reports/learning.md": ("docs/make/learning.py",),
    "reports/lm-eval.md": ("benchmarks/lm_eval_agreement.py",),
    "reports/memory.md": ("benchmarks/memory_estimate.py",),
    "reports/over-optimisation.md": ("docs/make/over_optimisation.py",),
    "reports/performance-gpu.md": ("benchmarks/speed/gpu.py",),
    "reports/performance.md": (
        "docs/make/performance.py",
        "docs/make/performance_data.py",
        "docs/make/performance_overhead.py",
        "docs/make/performance_speed.py",
    ),
    "reports/processes-table.md": ("tests/pipeline/processes/differences.py",),
    "reports/real.md": ("benchmarks/real.py",),
    "reports/recipes.md": ("docs/make/recipes.py",),
    "reports/reward-faults.md": ("benchmarks/reward_faults.py",),
    "reports/structure.md": ("docs/make/structure.py",),
    "reports/studies.md": ("benchmarks/ahead.py", "benchmarks/mixture.py"),
}
"""Page below docs/ -> the modules that write it, or parts of it; run one as `python -m`, with dots for slashes."""
