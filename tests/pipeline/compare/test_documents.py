"""Documents of lm-eval as prompts of a comparison."""

from __future__ import annotations

from posttrain.pipeline.compare.evaluated import as_rollouts
from posttrain.pipeline.compare.paired import prompt_scores
from posttrain.pipeline.outside.evaluators import documents_table


def test_a_document_that_is_read_in_two_ways_is_one_prompt() -> None:
    """Its readings are not independent: as two prompts they would halve the interval."""
    rows = [
        {"task": "gsm8k", "doc": doc, "filter": reader, "prompt": "q", "target": "5", "response": "5", "read": "5",
         "scores": {"exact_match": float(right)}}
        for doc, found in enumerate(((1, 1), (0, 1)))
        for reader, right in zip(("strict", "flexible"), found, strict=True)
    ]  # fmt: skip
    scores = prompt_scores(as_rollouts(documents_table(rows)), "sampled")
    assert dict(scores.rows()) == {"gsm8k/0": 1.0, "gsm8k/1": 0.5}
