"""What the answers to planned questions look like: one line each, those of one seed apart, and the same as data."""

from __future__ import annotations

import json

from posttrain.pipeline.compare.planned import Planned, Question, planned
from posttrain.pipeline.compare.planned_text import planned_data, planned_text, tables
from posttrain.pipeline.compare.statistics import Finding
from tests.pipeline.compare.trained import study, trained

FOUND = Planned(
    120,
    24,
    [
        Question("a.kl", "kl 0.04", "kl none", 3, 12, Finding(-0.015, -0.025, -0.005, 0.004, over_seeds=True)),
        Question("a.algorithm", "cispo", "grpo", 1, 2, Finding(0.046, 0.01, 0.08, 0.0001, over_seeds=False)),
        Question("a.lr", "lr 1", "lr 2", why_not="no seed is on both sides"),
    ],
    ["a note"],
)


def test_one_line_for_each_question() -> None:
    lines = planned_text(FOUND, "sampled").splitlines()
    assert lines[0] == "score on the same 120 held-out prompts, 24 trainings" and lines[-3] == "note: a note"
    assert lines[-1] == (
        "kl 0.04 minus kl none: kl none is better. cispo minus grpo: cispo is better (1 seed). "
        "No answer to 'lr 1 minus lr 2': no seed is on both sides. One seed does not judge a setting. "
        "More seeds make the answers clearer (docs/results.md)."
    )
    rows = {line.split("  ")[0]: line.split() for line in lines if " minus " in line}
    assert " ".join(rows["kl 0.04 minus kl none"][5:]) == "-0.015 [-0.025, -0.005] 0.004 kl none is better 3 12"
    assert rows["cispo minus grpo"][3:7] == ["+0.046", "[+0.010,", "+0.080]", "<.001"]
    assert " ".join(rows["lr 1 minus lr 2"][5:]) == "- - - cannot tell: no seed is on both sides 0 0"
    heads = [head for head, _ in tables(FOUND, "score")]
    assert heads[0].endswith(
        "The intervals cover other prompts and seeds. They are corrected for 1 planned question (Holm)"
    )
    assert heads[1].endswith("One seed: the intervals cover other prompts, not other seeds. They are not corrected")
    assert heads[2] == "No answer"


def test_the_metric_that_is_compared_is_named() -> None:
    assert planned_text(FOUND, "greedy").startswith("greedy score on the same")
    assert planned_text(FOUND, "sampled", "format").startswith("format on the same")


def test_the_same_as_data() -> None:
    data = json.loads(json.dumps(planned_data(FOUND)))
    first, second, third = data["questions"]
    assert (first["question"], first["mean"], first["low"]) == ("kl 0.04 minus kl none", -0.015, -0.025)
    assert (first["corrected"], second["corrected"], third["corrected"]) == (True, False, False)
    assert third["verdict"] == "cannot tell: no seed is on both sides" and "mean" not in third
    assert data["conclusion"].startswith("kl 0.04 minus kl none: kl none is better.")
    assert data["notes"] == ["a note"] and (data["prompts"], data["trainings"]) == (120, 24)


def test_labels_have_only_what_differs() -> None:
    words = planned_text(planned([*study(), trained("grpo", seed=9)], ["kl"]), "sampled")
    assert (
        "1 training of kl none has no partner with the same seed and other settings: (grpo, seed 9)" in words
        and "online.runs" not in words
    )
