"""Runs in Inspect's environment: reads logs with Inspect's own reader. It imports nothing from posttrain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the samples of each log, or the reason why it cannot be read."""
    from inspect_ai.log import read_eval_log

    logs: list[dict[str, Any]] = []
    for file in asked["files"]:
        try:
            log = read_eval_log(file)
        except Exception as error:  # noqa: BLE001 - a file that is no log raises errors of many types
            return {"file": file, "fault": f"{type(error).__name__}: {error}"[:300]}
        samples = [_sample(sample) for sample in log.samples or ()]
        logs.append({"file": file, "task": log.eval.task, "model": log.eval.model, "samples": samples})
    return {"logs": sorted(logs, key=lambda log: str(log["file"]))}


def _sample(sample: Any) -> dict[str, Any]:
    from inspect_ai.scorer import value_to_float

    number, scores = value_to_float(), {}
    for name, score in (sample.scores or {}).items():
        values = score.value if isinstance(score.value, dict) else {"": score.value}
        for key, value in values.items():
            full = f"{name}.{key}" if key else name
            scores[full] = (0.0, "error") if _unknown(value) else _scored(value, number)
    usage = sample.output.usage
    return {
        "id": sample.id, "epoch": sample.epoch, "target": sample.target, "scores": scores,
        "prompt": sample.input if isinstance(sample.input, str) else [_turn(turn) for turn in sample.input],
        "completion": sample.output.completion, "finish": _finish(sample),
        "length": usage.output_tokens if usage else None,
        "info": {"error": sample.error.message} if sample.error else {},
    }  # fmt: skip


def _scored(value: Any, number: Any) -> tuple[float, str]:
    status = "unparseable" if value == "N" else "ok"
    return sum(map(number, value)) / len(value) if isinstance(value, list) else number(value), status


def _unknown(value: Any) -> bool:
    """Tell whether a scorer gave no score."""
    return value is None or value == [] or (isinstance(value, float) and value != value)


def _turn(turn: Any) -> dict[str, str]:
    return {"role": turn.role, "content": turn.text}


def _finish(sample: Any) -> str:
    """Return posttrain's word for how a sample ended."""
    if sample.error:
        return "error"
    if sample.limit:
        return "timeout" if sample.limit.type in ("time", "working") else "length"
    stop = sample.output.stop_reason if sample.output.choices else "stop"
    return "length" if stop in ("max_tokens", "model_length") else "stop"
