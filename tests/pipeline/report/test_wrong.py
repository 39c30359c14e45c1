"""What is wrong among all samples, what a reward asked for, and how many samples the page keeps."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.report.policies import Policy, read_policies
from posttrain.pipeline.report.samples import for_page
from posttrain.pipeline.report.wrong import Asked, ends_with, wrong_rows
from tests.pipeline.report import workspace


def policies() -> list[Policy]:
    return read_policies(read(), {})[0]


@pytest.mark.parametrize(
    ("completion", "answer", "ends"),
    [
        ("13+2=15\n28", "28", True),
        ("The answer is 28.", "28", True),
        ("so $28$", "28", True),
        ("so it is 128", "28", False),
        ("5-8=-28", "28", False),
        ("it is 1.28", "28", False),
        ("28 coins", "28", False),
        ("He takes Paris", "Paris", True),
        ("28", "5*5=25\n25+3=28\n#### 28", True),
        ("28", "", False),
    ],
)
def test_a_completion_ends_in_the_right_answer(completion: str, answer: str, ends: bool) -> None:
    assert ends_with(completion, answer) == ends


def test_every_wrong_sample_is_counted_once(finished: Path) -> None:
    rows = workspace.rollouts("dpo")
    workspace.unread(rows[0], "so it is 1")
    workspace.unread(rows[1], "no idea")
    workspace.unread(rows[2], "so it is 1")  # the likeliest one counts nowhere
    rows[3] |= {"status": "infrastructure"}
    rows[4] |= {"truncated": True}
    workspace.put_policy(finished, "dpo", rows)
    samples = [row for row in rows if not row["greedy"]]
    wrong = sum(row["reward"] < 1 or row["status"] == "infrastructure" for row in samples)
    assert wrong_rows(policies())[2] == ["dpo", "60", str(wrong), str(wrong - 3), "2", "1", "1", "1"]


def test_texts_that_were_not_kept_are_not_read(finished: Path) -> None:
    rows = workspace.rollouts("dpo")
    workspace.unread(rows[0], "so it is 1")
    workspace.put_policy(finished, "dpo", rows)
    workspace.rewritten(finished, "none")
    assert wrong_rows(policies())[2][4:6] == ["1", "not kept"]


def test_a_reward_says_what_it_asked_for_only_if_it_gives_the_same_score_again() -> None:
    row = workspace.rollouts("sft")[1]
    workspace.unread(row, "it is 1")
    assert Asked({}).reason(row) == "it does not end with `#### N`"
    other = {"evaluate": {"settings": {"reward": {"correct": {"after": "Answer:"}}}}}
    assert Asked(other).reason(row) == "it does not end with `Answer: N`"
    row["completion"] = "#### 1"
    assert Asked({}).reason(row) == "", "it would be right now, so nothing is said"
    row["scores"][0]["name"] = "custom.mine:reward"
    assert Asked({}).reason(row) == "", "no code of the user's is run"


def test_with_little_room_fewer_samples_and_then_fewer_prompts_have_texts(finished: Path) -> None:
    ids = [f"{nth:016x}" for nth in range(20)]
    kept = {
        budget: for_page(ids, policies(), 2000, budget, Asked(read())) for budget in (10**6, 40_000, 30_000, 8_000, 1)
    }
    sizes = {budget: (found.with_texts, found.samples) for budget, found in kept.items()}
    assert sizes[10**6] == (20, 2) and sizes[1] == (1, 1)
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True) and len(set(sizes.values())) >= 3
    for budget, found in kept.items():
        assert len(found.prompts) == 20 and all(one["by"][1]["kinds"] for one in found.prompts), "all can be filtered"
        shown = found.prompts[: found.with_texts]
        assert budget == 1 or len(json.dumps(shown)) < 1.5 * budget + 5000
        assert not any(policy["samples"] for one in found.prompts[found.with_texts :] for policy in one["by"] if policy)
        assert (found.prompts_in_all, found.samples_in_all) == (30, 2)
        sft = found.prompts[0]["by"][1]
        assert sft["kinds"] == {"right": 1, "wrong answer": 1} and sft["mean"] == 0.5, "of all samples"
        assert [sample.get("greedy") for sample in sft["samples"]] == [None] * found.samples + [1]


def test_the_files_next_to_the_page_keep_their_columns(finished: Path) -> None:
    from posttrain.pipeline.report.build import SAMPLES, build_report

    build_report()
    assert pl.read_parquet(SAMPLES).columns[:9] == [
        "prompt_id", "problem", "prompt", "answer",
        "base_sampled", "base_sampled_score", "base_greedy", "base_greedy_score", "base_mean_score",
    ]  # fmt: skip


@pytest.mark.parametrize("stored", [None, 0.0])
def test_a_failed_score_has_no_value_on_the_page(finished: Path, stored: float | None) -> None:
    """Tables of earlier versions have 0.0 there."""
    rows = workspace.rollouts("dpo")
    rows[0]["scores"] = [*rows[0]["scores"], {"name": "brief_enough", "value": stored, "status": "error"}]
    workspace.put_policy(finished, "dpo", rows)
    (prompt, *_) = for_page(["0" * 16], policies(), 2000, 10**6, Asked(read())).prompts
    parts = [part for mine in prompt["by"] if mine for part in mine["samples"][0]["parts"]]
    assert ["brief_enough", None, "error"] in parts and ["brief_enough", 0.0, "error"] not in parts
