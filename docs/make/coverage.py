"""docs/reports/coverage.md: what the field names, and where it is here, or why it is not.

python -m docs.make.coverage
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from posttrain.pipeline.commands.params.describe import FAMILIES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reports/coverage.md"
LEARNING = ROOT / "docs/reports/learning.md"
RECIPES = {file.stem: file.read_text(encoding="utf-8") for file in sorted((ROOT / "recipes").glob("*.yaml"))}
NOT = "not here: "
PIPELINE = "in the pipeline, which trains language models"

ITEMS: dict[str, dict[str, str]] = {
    "Recipes": {
        "RLHF with PPO (InstructGPT)": "recipe `rlhf`",
        "helpful and safe as two reward models": "recipe `rlhf`: `reward.sets` "
        "([rewards](../rewards.md#several-reward-models))",
        "R1-Zero": "recipe `r1_zero`",
        "R1": "recipe `r1`",
        "constitutional AI": "recipe `constitutional`, `recipes/constitutional/revise.py`; "
        + NOT
        + "a run with a real served model",
        "iterated DPO": "recipe `iterated_dpo`",
        "offline, then online": "recipe `offline_online`",
        "distillation: samples, logits, own samples": "recipe `distill`",
        "a served teacher": "recipe `distill`, setting `served` of `distill.runs`",
        "a context that only the teacher has, for all rows or of each row": "setting `context` of `distill.runs`",
        "several teachers, a teacher next to a reward": "recipe `distill`: a set as `teacher`, policy "
        "rows in `distill.runs`, several endpoints as `served` "
        "([models](../models.md#reward-models-and-teachers-from-elsewhere))",
        "a served teacher of another tokenizer": "reward `likelihood`, by text",
        "curriculum": "recipe `curriculum`, setting `rollout.pass_rates`",
        "more pretraining": "recipe `continue`",
        "process rewards": "recipe `process`, setting `steps` of the reward `model`",
        "ScaleRL": "recipe `scalerl`, `recipes/sigmoid.py`",
        "rejection sampling (ReST, RAFT)": "rows `rest`, `rest_em`, `raft`; recipe `iterated`",
    },
    "Parts": {
        "rows chosen by a reward": "`min_score` and `pass_rate` of `data.samples`; `reward` of `data.filters`, "
        "for tables that others wrote: by rules, a judge or a reward model",
        "a reference that is renewed or averaged (ProRL, TR-DPO, Nash-EMA)": "setting `renew_reference`; "
        "`parts` of preference runs",
        "a critic from a reward model, with its own lambda, learning alone at first": "settings `critic`, "
        "`advantage.value_lam`, `optimizer.critic_first`",
        "a reward model that starts from another": "`start: reward/NAME` in `reward.runs`",
        "schedules of beta and clip edges": "`end` and `steps` of `kl`; `low_end`, `high_end` and `steps` of "
        "`surrogate`",
        "prompts drawn by pass rate": "setting `rollout.pass_rates`",
        "a table of labelled steps (PRM800K), labels by Monte-Carlo": "layout of `feedback`, "
        "setting `steps` of `data.samples`",
        "top-entropy tokens": "row `top_entropy`",
        "preferences as distributions (AOT), pairwise PPO (P3O)": "rows `aot`, `aot_unpaired`, `p3o`",
        "Muon, rsLoRA, a mean of the weights": "settings `optimizer.matrices`, `adapter.rslora`, `optimizer.average`",
    },
    "Baselines without training": {
        "a system turn and examples (URIAL)": "setting `context` of an evaluation "
        "([results](../results.md#examples-in-the-prompt-without-training))",
        "in-context scoring (ICDPO)": "`best_of_K_by_context`; " + NOT + "examples that are retrieved for each prompt",
        "the shift of tokens between two policies": "`posttrain compare A B --tokens`",
    },
    "Rows that stay out": {
        "DiscoPOP": NOT + "the law `direction` fails: of two equal answers it makes the chosen one less likely",
        "unlikelihood": NOT + "`dpo_shift`, `orpo` and others here also lower rejected answers; no run that compares "
        "them is kept",
        "RRHF on given ranks": NOT + "a reward model learns from ranks (`objective.compare: ranks`); no run that "
        "compares the two is kept",
    },
    "Small models of other kinds": {
        "Diffusion-DPO": "`posttrain.losses.diffusion_dpo_loss`, `examples/diffusion_dpo.py`; " + NOT + PIPELINE,
        "mDPO": "`posttrain.losses.mdpo_loss`, `examples/mdpo.py`; " + NOT + PIPELINE,
        "GPO's preference module": "`GroupPreferences` and `group_preference_loss` of `posttrain.losses`, "
        "`examples/group_preferences.py`; " + NOT + PIPELINE,
    },
}
"""Heading -> what the field names -> where it is."""


def page() -> str:
    """Return the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Coverage\n\nMade by `python -m docs.make.coverage`: what the field names, and where it is here.\n"
    for heading, items in ITEMS.items():
        yield f"## {heading}\n"
        yield "| what | where |\n|---|---|"
        yield from (f"| {what} | {where} |" for what, where in items.items())
        yield ""
    learned = LEARNING.read_text(encoding="utf-8")
    yield "## Rows\n\nEach row has the laws of [conformance](conformance.md).\n"
    yield "| row | recipes | in the table of [learning](learning.md) |\n|---|---|---|"
    for family in FAMILIES:
        for name in family.rows:
            used = [recipe for recipe, text in RECIPES.items() if re.search(rf"algorithm: {name}\b", text)]
            said = "yes" if re.search(rf"\b{name}\b", learned) else "no"
            yield f"| `{name}` | {', '.join(f'`{recipe}`' for recipe in used) or '-'} | {said} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
