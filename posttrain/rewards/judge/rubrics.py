"""The rubric of one prompt: yes/no questions about its completions, each with a weight for yes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from posttrain.errors import excerpt

_SHAPE: Final = "Give {QUESTION: WEIGHT}, or a list of {question, weight} or {criterion, points}"


def rubric_of(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the questions in `info.rubric` and their weights. A ValueError explains an error in the rubric."""
    if info.get("rubric") is None:
        raise ValueError("its info has no rubric")
    rubric: dict[str, float] = {}
    for question, weight in _items(info["rubric"]):
        number = float(weight) if isinstance(weight, int | float) and not isinstance(weight, bool) else math.nan
        if not math.isfinite(number) or not number:
            shown = f"the weight of {excerpt(question, 60)} in its rubric is {excerpt(weight, 20)}"
            raise ValueError(f"{shown}. Give a number other than 0")
        if question in rubric:
            raise ValueError(f"its rubric has {excerpt(question, 60)} twice. Remove one")
        rubric[question] = number
    if not any(weight > 0 for weight in rubric.values()):
        raise ValueError("its rubric has no weight above 0. Add a property of a good reply")
    return rubric


def _items(rubric: Any) -> Iterator[tuple[str, Any]]:
    """Yield each question as one line, with its weight. A criterion becomes the question whether it is met."""
    if isinstance(rubric, Mapping):
        for question, weight in rubric.items():
            yield _line(question, str(question)), weight
        return
    if not isinstance(rubric, list):
        raise ValueError(f"its rubric is {excerpt(rubric, 40)}. {_SHAPE}")  # noqa: TRY004  a bad prompt, no defect
    for number, item in enumerate(rubric, 1):
        texts, weights = _named(item, "question", "criterion"), _named(item, "weight", "points")
        if len(texts) != 1 or len(weights) != 1:
            raise ValueError(f"item {number} of its rubric is {excerpt(item, 60)}. {_SHAPE}")
        ((name, text),), weight = texts.items(), next(iter(weights.values()))
        line = _line(text, f"item {number}")
        yield (line if name == "question" else f"Is this true of the reply? {line}"), weight


def _named(item: Any, *names: str) -> dict[str, Any]:
    return {name: item[name] for name in names if name in item} if isinstance(item, Mapping) else {}


def _line(text: Any, where: str) -> str:
    """Return a question without line breaks. A separate line could be read as an instruction."""
    line = " ".join(text.split()) if isinstance(text, str) else ""
    if not line:
        raise ValueError(f"{where} of its rubric has no text. Write the question")
    return line
