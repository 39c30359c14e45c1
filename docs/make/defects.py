"""docs/reports/defects.md: public defects of 2026 as small losses with the trainers' signatures, under the laws.

python -m docs.make.defects
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from posttrain.algorithms.padded import PaddedLoss
from posttrain.laws.own import worst
from posttrain.laws.padded import PADDED_LAWS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reports/defects.md"
FOLDER = ROOT / "examples/laws"
DEFECTS = {
    "trl_accumulation": ("trl#6024", "the default GRPO loss is scaled by accumulation / steps per generation"),
    "verl_critic": ("verl#6957", "the critic's loss is a mean over each micro-batch of each process"),
    "swift_ranks": ("ms-swift#10117", "the gradient is 1/G of what it should be"),
    "verl_distillation": ("verl#7225", "the distillation's mean is over the wrong tokens"),
    "truncated_weights": ("verl#4105", "truncated importance weights keep their gradient"),
}
"""Module -> (where it was reported, what was wrong)."""

HEAD = """# Defects of others under the laws

Made by `python -m docs.make.defects`. Five defects of public trainers, each written again from its report as a small
loss with the trainer's signature (`examples/laws/`), and the same loss put right. They are no copies of the projects'
code. Of ms-swift#10117 and verl#7225 only a line of description was at hand: theirs is the likeliest form.

| report | what was wrong | file | laws that fail, and the error | put right |
|---|---|---|---|---|"""
AFTER = """
An error of 5 is a gradient six times as large as in one micro-batch on one process. To see one:

```sh
mkdir -p custom && cp examples/laws/verl_critic.py custom/
posttrain laws verl_critic
```

TRL 1.16's own method, adapted the same way (`make oracle`): `dapo`, `grpo` (also with ratios of
sequences, which is GSPO), `dr_grpo`, `cispo`, `sapo`, `vespo` and `luspo` obey every law; `bnpo`, a mean over each
micro-batch by definition, does not. So do verl 0.9's losses by their formulas (`tests/library/laws/verl_losses.py`),
but for `clip_cov` and `kl_cov`, which choose tokens in each micro-batch, and a KL of `k1` in the loss, whose
expected gradient is 0.

| law | | largest error allowed |
|---|---|---|"""
LIMITS = """
What they do not see: a constant factor that is the same everywhere, a wrong advantage (it is given to the loss), the
size of a clip or of a coefficient, and cuts into unequal numbers of rows.
"""


def load(name: str) -> ModuleType:
    """Return an example's module."""
    spec = spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def errors(subject: PaddedLoss, path: str) -> dict[str, float | None]:
    """Return the largest error of each law; None where it does not apply."""
    return {name: worst(law, lambda: subject, path) for name, law in PADDED_LAWS.items()}


def failed(found: dict[str, float | None]) -> dict[str, float]:
    """Return the laws that do not hold, with their errors."""
    return {name: error for name, error in found.items() if error is not None and error > PADDED_LAWS[name].tolerance}


def page() -> str:
    """The whole page; the same numbers on every run."""
    lines = [HEAD]
    for name, (report, wrong) in DEFECTS.items():
        module = load(name)
        caught = failed(errors(module.wrong, f"{name}:wrong"))
        right = failed(errors(module.right, f"{name}:right"))
        shown = ", ".join(f"`{law}` ({error:.2g})" for law, error in caught.items()) or "**none**"
        held = "all laws hold" if not right else f"**fails {', '.join(right)}**"
        lines.append(f"| {report} | {wrong} | `examples/laws/{name}.py` | {shown} | {held} |")
    lines += [AFTER, *(f"| {name} | {law.text} | {law.tolerance:g} |" for name, law in PADDED_LAWS.items()), LIMITS]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} renewed")
