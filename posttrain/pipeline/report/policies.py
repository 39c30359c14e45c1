"""The evaluated policies of a workspace: metrics and completions, and errors of unreadable policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from posttrain.errors import DataError, PosttrainError
from posttrain.files import file_digest, read_finite_json
from posttrain.pipeline.lock.digests import read_settled
from posttrain.pipeline.params.stage_table import Settings, policies
from posttrain.pipeline.tables.store import read_results
from posttrain.pipeline.workspace import VERIFY


@dataclass(frozen=True)
class Policy:
    """One evaluated policy."""

    label: str
    """Its name in evaluate.policies, and its folder under results/."""
    model: str
    """Its folder under models/, e.g. online/grpo."""
    metrics: Mapping[str, float]
    rollouts: pl.DataFrame


def read_policies(settings: Settings, not_current: Mapping[str, str]) -> tuple[list[Policy], dict[str, str]]:
    """Return the policies evaluated on the same prompts, and label -> error for the other policies."""
    readable: list[Policy] = []
    errors: dict[str, str] = dict(not_current)
    digests = output_digests()
    for label, model in policies(settings).items():
        if label in not_current:
            continue
        try:
            check_recorded(Path("results") / label / "metrics.json", digests)
            policy = read_policy(label, model)
            if readable and prompt_ids(policy) != prompt_ids(readable[0]):
                raise DataError(
                    what=f"it was evaluated on different prompts than {readable[0].label}",
                    where=f"results/{label}/rollouts.parquet",
                    fix="Evaluate both again: dvc repro",
                )
            readable.append(policy)
        except PosttrainError as error:
            errors[label] = str(error)
    return readable, errors


def output_digests() -> dict[str, str]:
    """Return path -> digest in dvc.lock, for each output."""
    outs = [out for entry in read_settled().values() for out in entry.get("outs", [])]
    return {out["path"]: out["md5"] for out in outs if "md5" in out}


def check_recorded(file: Path, digests: Mapping[str, str]) -> None:
    """Reject a small file whose bytes differ from DVC's record. DVC itself only compares modification times."""
    known = digests.get(file.as_posix())
    if known and file.is_file() and file_digest(file) != known:
        raise DataError(what="it differs from the stage's output that dvc.lock records", where=str(file), fix=VERIFY)


def prompt_ids(policy: Policy) -> list[str]:
    """Return the prompts of an evaluation in order."""
    return policy.rollouts["prompt_id"].unique(maintain_order=True).to_list()


def reference(policies: Iterable[Policy]) -> str:
    """Return the label of the reference policy for the KL. Its own KL is 0."""
    return next((policy.label for policy in policies if policy.metrics.get("kl_k1") == 0.0), "reference")


def read_json(path: Path) -> dict[str, Any]:
    """Return the contents of a metrics file."""
    try:
        data = read_finite_json(path)
    except FileNotFoundError as error:
        raise DataError(what="file not found", where=str(path), fix="Run the pipeline: dvc repro") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(what=f"not readable as JSON ({error})", where=str(path), fix=VERIFY) from error
    if not isinstance(data, dict):
        raise DataError(what="not a JSON object", where=str(path), fix=VERIFY)
    return data


def need_numbers(metrics: Mapping[str, Any], names: Iterable[str], file: Path) -> None:
    """Reject a metrics file in which one of these is not a number."""
    odd = [name for name in names if isinstance(metrics.get(name), bool) or not isinstance(metrics[name], int | float)]
    if odd:
        raise DataError(what=f"not a number: {', '.join(odd)}", where=str(file), fix=VERIFY)


def read_policy(label: str, model: str) -> Policy:
    """Return the files that the evaluation of a policy wrote."""
    folder = Path("results") / label
    metrics = read_json(folder / "metrics.json")
    if missing := [name for name in ("score", "score_low", "score_high") if name not in metrics]:
        what, fix = f"{', '.join(missing)} missing", "Evaluate the policy again: dvc repro"
        raise DataError(what=what, where=str(folder / "metrics.json"), fix=fix)
    need_numbers(metrics, metrics, folder / "metrics.json")
    return Policy(label, model, metrics, read_results(folder / "rollouts.parquet", label))
