"""The measured policies of a workspace: which there are, their metrics and their completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from posttrain.errors import VERIFY, DataError, ParamsError
from posttrain.params import NAMED, PARAMS_FILE
from posttrain.tables.store import read_table
from posttrain.workspace import finite_json

ALONE = ("base", "sft")
"""The policies that every pipeline has."""
TAKEN = (*ALONE, "reward", "reward_model", "pairs", "prepare")
"""Names that the report already uses for something else than a run."""

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Policy:
    """One evaluated policy."""

    path: str
    """Folder under results/ and models/, e.g. online/grpo."""
    label: str
    metrics: Mapping[str, float]
    rollouts: pl.DataFrame


def runs(settings: Settings) -> dict[str, Settings]:
    """Path -> settings of every named run of params.yaml, in its order."""
    found = {}
    for family in NAMED:
        named = (settings.get(family) or {}).get("runs") or {}
        if not isinstance(named, Mapping):
            what = f"{family}.runs is no mapping of names to settings"
            raise ParamsError(what=what, where=PARAMS_FILE, mend="Write one key per run")
        found.update({f"{family}/{name}": run or {} for name, run in named.items()})
    return found


def labels(paths: Iterable[str]) -> dict[str, str]:
    """Path -> the short name that people see: the run's own, or the whole path where two would look alike."""
    named = {path: path.rpartition("/")[2] for path in paths}
    count = Counter(named.values())
    clear = {path: path not in TAKEN and count[name] == 1 and name not in TAKEN for path, name in named.items()}
    return {path: name if clear[path] else path for path, name in named.items()}


def measured(settings: Settings) -> list[Policy]:
    """Base, SFT and every run of params.yaml, as the stage `evaluate` left them; all on the same prompts."""
    paths = [*ALONE, *runs(settings)]
    named = labels(paths)
    policies = [_policy(path, named[path]) for path in paths]
    first = prompt_ids(policies[0])
    for policy in policies[1:]:
        if prompt_ids(policy) != first:
            raise DataError(
                what=f"it was measured on other prompts than {policies[0].path}",
                where=f"results/{policy.path}/rollouts.parquet",
                mend="Evaluate both again: dvc repro",
            )
    return policies


def prompt_ids(policy: Policy) -> list[str]:
    """The prompts of an evaluation, in their order."""
    return policy.rollouts["prompt_id"].unique(maintain_order=True).to_list()


def reference(policies: Iterable[Policy]) -> str:
    """The label of the policy that KL was measured against: its own is 0."""
    return next((policy.label for policy in policies if policy.metrics.get("kl_k1") == 0.0), "sft")


def read_json(path: Path) -> dict[str, Any]:
    """A file of metrics."""
    try:
        data = finite_json(path)
    except FileNotFoundError as error:
        mend = "Run the pipeline: dvc repro"
        raise DataError(what="there is no such file", where=str(path), mend=mend) from error
    except (OSError, ValueError, RecursionError) as error:
        mend = VERIFY
        raise DataError(what=f"not readable as JSON ({error})", where=str(path), mend=mend) from error
    if not isinstance(data, dict):
        raise DataError(what="holds no JSON object", where=str(path), mend=VERIFY)
    return data


def need_numbers(metrics: Mapping[str, Any], names: Iterable[str], file: Path) -> None:
    """Refuse a file of metrics in which one of these is not a number."""
    odd = [name for name in names if isinstance(metrics.get(name), bool) or not isinstance(metrics[name], int | float)]
    if odd:
        what, mend = f"no number: {', '.join(odd)}", VERIFY
        raise DataError(what=what, where=str(file), mend=mend)


def _policy(path: str, label: str) -> Policy:
    folder = Path("results") / path
    metrics = read_json(folder / "metrics.json")
    if missing := [name for name in ("pass_at_1", "pass_at_1_low", "pass_at_1_high") if name not in metrics]:
        what, mend = f"it lacks {', '.join(missing)}", "Evaluate the policy again: dvc repro"
        raise DataError(what=what, where=str(folder / "metrics.json"), mend=mend)
    need_numbers(metrics, metrics, folder / "metrics.json")
    return Policy(path, label, metrics, read_table(folder / "rollouts.parquet", "rollouts"))
