"""Runs in Inspect's environment: writes logs with Inspect's own classes. It imports nothing from posttrain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Write each log. Return the version of Inspect."""
    from importlib.metadata import version

    from inspect_ai.log import write_eval_log

    for log in asked["logs"]:
        write_eval_log(_log(log), log["file"], format="eval")
    return {"version": version("inspect_ai")}


def _log(log: Mapping[str, Any]) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalResults, EvalSpec, EvalStats

    samples, made = log["samples"], log["created"]
    ids = list(dict.fromkeys(sample["id"] for sample in samples))
    spec = EvalSpec(
        created=made, task=log["task"], task_id=log["id"], eval_id=log["id"], run_id=log["id"], model=log["model"],
        dataset=EvalDataset(name=log["data"], samples=len(ids), sample_ids=ids),
        config=EvalConfig(epochs=max(sample["epoch"] for sample in samples)),
        packages=log["packages"], metadata=log["metadata"],
    )  # fmt: skip
    results = EvalResults(total_samples=len(samples), completed_samples=len(samples), scores=_scores(log))
    return EvalLog(
        status="success", eval=spec, results=results, samples=[_sample(sample, log["model"]) for sample in samples],
        stats=EvalStats(started_at=made, completed_at=made),
    )  # fmt: skip


def _scores(log: Mapping[str, Any]) -> list[Any]:
    """Return each reward's mean over scored samples, and the metrics of the evaluation."""
    from inspect_ai.log import EvalMetric, EvalScore

    names = dict.fromkeys(name for sample in log["samples"] for name in sample["scores"])
    values = {name: [one["scores"][name] for one in log["samples"] if name in one["scores"]] for name in names}
    means = {name: {"mean": sum(numbers) / len(numbers)} for name, numbers in values.items()}
    return [
        EvalScore(
            name=name, scorer=name, scored_samples=len(values.get(name, log["samples"])),
            metrics={key: EvalMetric(name=key, value=value) for key, value in metrics.items()},
        )
        for name, metrics in (means | ({"figures": log["figures"]} if log["figures"] else {})).items()
    ]  # fmt: skip


def _sample(sample: Mapping[str, Any], model: str) -> Any:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessageAssistant, ModelOutput
    from inspect_ai.scorer import Score
    from pydantic import TypeAdapter

    kinds: Any = EvalSample.model_fields["messages"].annotation
    turns, said = TypeAdapter(kinds).validate_python(sample["input"]), sample["completion"]
    reason: Any = "max_tokens" if sample["truncated"] else "stop"
    output = ModelOutput.from_content(model, said, stop_reason=reason)
    return EvalSample(
        id=sample["id"], epoch=sample["epoch"], uuid=sample["row"], input=turns, target=sample["target"],
        messages=[*turns, ChatMessageAssistant(content=said, model=model)], output=output, metadata=sample["metadata"],
        scores={name: Score(value=value, answer=said) for name, value in sample["scores"].items()},
    )  # fmt: skip
