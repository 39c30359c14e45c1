"""Runs in lm-eval's environment: tasks on a model folder, as plain data. It imports nothing from posttrain."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics and the documents of each task, and the versions that affect them."""
    from importlib.metadata import version

    import torch
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    _fix_date(asked["date"])
    torch.set_num_threads(asked["threads"])
    torch.use_deterministic_algorithms(asked["deterministic"])
    manager = TaskManager(include_path=asked["include"])
    known = {*manager.all_tasks}
    if unknown := [task for task in asked["tasks"] if task not in known]:
        return {"unknown": unknown, "known": sorted(known)}
    evaluated = simple_evaluate(
        model="hf",
        model_args={"pretrained": asked["model"], "dtype": asked["dtype"], "trust_remote_code": False},
        tasks=asked["tasks"],
        num_fewshot=asked["num_fewshot"],
        limit=asked["limit"],
        batch_size=asked["batch"],
        device=asked["device"],
        apply_chat_template=asked["chat"],
        task_manager=manager,
    )
    documents = [row for task, samples in evaluated["samples"].items() for row in _documents(task, samples)]
    versions = {name: version(name) for name in ("lm_eval", "torch", "transformers", "datasets")}
    return {"figures": dict(_figures(evaluated["results"])), "documents": documents, "versions": versions}


def _fix_date(date: str) -> None:
    """Make chat templates write this date instead of today's."""
    from datetime import datetime

    from transformers.utils import chat_template_utils

    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Fixed:  # noqa: ARG003
            return cls.fromisoformat(date)

    chat_template_utils.datetime = Fixed  # type: ignore[attr-defined]


def _figures(results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield TASK.METRIC and its value. If a task reads answers in several ways, `,FILTER` is added."""
    for task, figures in results.items():
        for key, value in figures.items():
            metric, comma, reader = key.partition(",")
            if comma and _is_number(value):
                yield f"{task}.{metric}" + ("" if reader == "none" else f",{reader}"), float(value)


def _documents(task: str, samples: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each document and filter: the question, the answer, and the document's own metrics."""
    for sample in samples:
        asked = sample["arguments"]
        options = [one[1] if len(one) > 1 else None for one in asked]
        if all(isinstance(option, str) for option in options):
            responses = zip(options, sample["filtered_resps"], strict=True)
            response, read = _text([[option, *one] for option, one in responses]), ""
        else:
            first, filtered = sample["resps"][0], sample["filtered_resps"]
            response, read = _text(first[0] if len(first) == 1 else first), _text(filtered[0])
        yield {
            "task": task,
            "doc": sample["doc_id"],
            "filter": sample["filter"],
            "prompt": str(asked[0][0]) if asked else "",
            "target": _text(sample["target"]),
            "response": response,
            "read": read,
            "scores": {name: float(sample[name]) for name in sample["metrics"] if _is_number(sample.get(name))},
        }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
