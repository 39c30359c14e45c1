"""The independent answers to planned questions: numbers by hand, and the same intervals as the library's."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.planned_questions import ALGORITHMS, _by_prompt, answer, holm, questions, report
from posttrain.pipeline.compare.replicates import Contrast, replicates
from posttrain.pipeline.compare.statistics import ALPHA

SEEDS = (1, 2, 3)
RNG = np.random.default_rng(3)
FOUND = {
    (name, kl, seed): np.clip(0.5 + 0.1 * (name == "cispo") - 0.05 * (kl != "none") + RNG.normal(0, 0.1, 60), 0, 1)
    for name, kl, seed in product(ALGORITHMS, ("none", "0.04"), SEEDS)
}


def test_scores_of_prompts_are_those_of_their_samples() -> None:
    rows = [("b", False, 1.0), ("a", False, 0.0), ("b", False, 0.0), ("a", True, 1.0)]
    named = [dict(zip(("prompt_id", "greedy", "reward"), row, strict=True)) for row in rows]
    assert _by_prompt(named).tolist() == [0.0, 0.5]


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06]) and holm([0.6, 0.9]) == [1.0, 1.0]


def test_the_questions_are_paired() -> None:
    asked = questions(FOUND, SEEDS)
    assert [one[0].shape for one in asked.values()] == [(2, 3, 60)] * 3 + [(4, 3, 60)]
    assert [len(one) for one in asked.values()] == [7, 7, 7, 2]
    first = asked["cispo minus grpo"][0]
    assert first[1, 2] == pytest.approx(FOUND["cispo", "0.04", 3] - FOUND["grpo", "0.04", 3])


def test_its_intervals_are_those_of_the_library() -> None:
    for apart in questions(FOUND, SEEDS).values():
        contrasts = [contrast(one) for one in apart]
        repeated = replicates(contrasts[1:])
        mean, half, p = answer(apart, by_seed=repeated.kind == "seeds")
        measured = repeated.difference(contrasts[0])
        assert measured.mean == pytest.approx(mean) and measured.half(ALPHA) == pytest.approx(half, rel=0.06)
        assert measured.p_value == pytest.approx(p, abs=0.02)


def contrast(apart: np.ndarray) -> Contrast:
    labels = list(product(range(apart.shape[0]), range(apart.shape[1])))
    return Contrast(apart.reshape(len(labels), -1), [c for c, _ in labels], [str(s) for _, s in labels])


def test_the_answers_as_lines() -> None:
    lines = report(questions(FOUND, SEEDS))
    assert len(lines) == 10 and "KL 0.04 minus none" in lines[4] and lines[5] == "seeds are the replicates:"
