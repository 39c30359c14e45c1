"""The trials of benchmarks.learning: each algorithm's settings, the runs made from them, and their results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.algorithms.distillation import DISTILL_ROWS
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.online.sampled import SAMPLED_ROWS
from posttrain.settings.plain import merge

RATES = Path(__file__).with_name("learning_rates.json")
"""What the search chose; `python -m benchmarks.learning --search` writes it."""
SEARCH_SEED, SEEDS = 0, (1, 2, 3)

INSTRUCTED = "sft/instructed"
"""The teacher of context_distill: a model that reads a system turn."""
STEPS, RESULT, ANSWER = "Show each step.", "Give the result alone.", "The answer is {answer}."
"""What it reads."""
FEEDBACK = tuple(name for name, row in PREFERENCE_ROWS.items() if not row.settings().paired)
"""Rows that learn from judged answers instead of comparisons."""
SHARED: dict[str, dict[str, Any]] = {
    "online": {
        "start": "sft/main",
        "data": "two_step/prompts",
        "corpus": "none",
        "reward_model": "none",
        "reward": {"correct": 1.0, "format": 0.2},
        "rollout": {"rounds": 25, "prompts": 8, "group_size": 8, "minibatches": 2},
        "optimizer": {"schedule": "linear"},
    },
    "preference": {"start": "sft/main", "data": "compared/pairs", "epochs": 1.0, "optimizer": {"schedule": "linear"}},
    "distill": {
        "start": "sft/main",
        "data": "two_step/prompts",
        "demonstrations": "two_step/chat",
        "reward_model": "none",
        "rollout": {"rounds": 25, "prompts": 8, "group_size": 8, "minibatches": 2},
        "optimizer": {"schedule": "linear"},
    },
}
GRID: dict[str, tuple[float, ...]] = {
    "online": (1e-4, 4e-4, 1e-3, 4e-3),
    "preference": (5e-5, 2e-4, 6e-4, 3e-3),
    "distill": (4e-4, 1e-3, 4e-3),
}
"""Learning rates that are tried; the last one is there to find the edge."""
TRUST_REGIONS = (0.003, 0.01, 0.03, 0.1)
"""TRPO takes no learning rate: its bound is searched instead."""


@dataclass(frozen=True)
class Subject:
    """One algorithm, or a row with some knobs set, as the page names it."""

    section: str
    label: str
    algorithm: str
    knobs: dict[str, Any] = field(default_factory=dict)

    @property
    def rates(self) -> tuple[float, ...]:
        """The values that the search tries."""
        return TRUST_REGIONS if self.algorithm == "trpo" else GRID[self.section]

    def settings(self, rate: float, seed: int) -> dict[str, Any]:
        """Return the run as params.yaml would hold it."""
        tuned = {"update": {"delta": rate}} if self.algorithm == "trpo" else {"optimizer": {"lr": rate}}
        own = merge(merge(SHARED[self.section], tuned), self.knobs)
        if self.algorithm in FEEDBACK:
            own["data"] = "compared/feedback"
        return {"algorithm": self.algorithm, "seed": seed, **own}


OWN: dict[str, dict[str, Any]] = {
    "slic": {"loss": {"delta": 5.0}},
    "cpo": {"epochs": 3.0},
    "orpo": {"loss": {"beta": 5.0}, "epochs": 3.0},
}
"""Config beyond the learning rate with which a row needs help on 250 short pairs."""

VARIANTS: tuple[Subject, ...] = (
    Subject("online", "reinforce, moving average", "reinforce", {"advantage": "moving_average"}),
    Subject("online", "ppo, adaptive KL", "ppo", {"kl": {"target": 2.0, "horizon": 200}}),
    Subject("online", "ppo, ptx", "ppo", {"ptx": 0.5, "corpus": "two_step/corpus"}),
    Subject("online", "grpo, two epochs", "grpo", {"rollout": {"epochs": 2}}),
    Subject("online", "cispo, two epochs", "cispo", {"rollout": {"epochs": 2}}),
    Subject("online", "dppo_tv, two epochs", "dppo_tv", {"rollout": {"epochs": 2}}),
    Subject("online", "grpo, replay", "grpo", {"rollout": {"replay": {"groups": 4, "rounds": 2}}}),
)


def subjects() -> list[Subject]:
    """Return everything that a run of params.yaml can name, and some rows with knobs set."""
    found = [Subject("online", name, name) for name in POLICY_ROWS]
    found += [*VARIANTS, *(Subject("online", name, name) for name in SAMPLED_ROWS)]
    found += [Subject("preference", name, name, OWN.get(name, {})) for name in PREFERENCE_ROWS]
    found += [Subject("preference", "orpo from base", "orpo", {"start": "base/tiny", "epochs": 6.0})]
    found += [Subject("distill", name, name) for name in DISTILL_ROWS if name != "context_distill"]
    shared = {"teacher": INSTRUCTED, "demonstrations": "none"}
    contexts = {"context_distill": STEPS, "context_distill, the row's answer": ANSWER}
    return found + [
        Subject("distill", label, "context_distill", {**shared, "context": context})
        for label, context in contexts.items()
    ]


@dataclass(frozen=True)
class Trial:
    """One subject with one rate and one seed, measured on one split."""

    subject: Subject
    rate: float
    seed: int
    split: str

    @property
    def start(self) -> str:
        """The model that the run starts from."""
        return str(self.settings["start"])

    @property
    def settings(self) -> dict[str, Any]:
        """The run as params.yaml would hold it."""
        teacher = {"teacher": f"online/{teacher_trial().run}"} if self.subject.section == "distill" else {}
        return {**teacher, **self.subject.settings(self.rate, self.seed)}

    @property
    def run(self) -> str:
        """The run's name, which changes with its settings: a result is never taken for another one's."""
        mark = json.dumps([self.settings, self.split], sort_keys=True)
        label = "".join(letter if letter.isalnum() else "-" for letter in self.subject.label)
        return f"{label}-{self.seed}-{hashlib.sha256(mark.encode()).hexdigest()[:8]}"


def teacher_trial() -> Trial:
    """Return the run whose model the distilled ones learn from."""
    subject = next(one for one in subjects() if one.label == "dr_grpo")
    return Trial(subject, chosen_rates().get("dr_grpo", GRID["online"][1]), SEEDS[0], "test")


def search_trials() -> Iterator[Trial]:
    """Yield every rate of every subject with the search's seed, on prompts that the page does not use."""
    for subject in subjects():
        for rate in subject.rates:
            yield Trial(subject, rate, SEARCH_SEED, "heldout")


def final_trials() -> Iterator[Trial]:
    """Seed by seed, so that a run that is cut off has something to say about every subject."""
    rates = chosen_rates()
    for seed in SEEDS:
        for subject in subjects():
            yield Trial(subject, rates.get(subject.label, subject.rates[1]), seed, "test")


def chosen_rates() -> dict[str, float]:
    """Label -> the rate that did best in the search."""
    if not RATES.is_file():
        return {}
    found: dict[str, float] = json.loads(RATES.read_text(encoding="utf-8"))
    return found


def result_file(place: Path, trial: Trial) -> Path:
    """Return the file of a trial's result."""
    return place / "results" / f"{trial.run}.json"


def read_result(place: Path, trial: Trial) -> dict[str, Any] | None:
    """Return a trial's result; None if it has not run yet."""
    file = result_file(place, trial)
    result: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return result


def scores_per_prompt(folder: Path) -> list[float]:
    """Share of right samples of each prompt, in the order of the prompts."""
    import polars as pl

    frame = pl.read_parquet(folder / "rollouts.parquet").filter(~pl.col("greedy"))
    means = frame.group_by("prompt_id", maintain_order=True).agg(pl.col("reward").mean())
    return means["reward"].to_list()
