"""`evaluate.ratings`: five policies with known strength, by their stored scores and by a judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from posttrain.data.columns import from_rows, with_ids
from posttrain.errors import DataError, ParamsError, PosttrainError, RewardError
from posttrain.evaluate.completions import select_text
from posttrain.pipeline.checks.params_schema import check_params
from posttrain.pipeline.runs.ratings import BATCH, RatingRun, figures, played
from posttrain.pipeline.tables.store import read_table, write_table
from stages.evaluate_ratings import main
from tests.pipeline.evaluate.rating_table import differences, rating_table
from tests.pipeline.rewards.judge.conftest import Endpoint, _endpoint, endpoint  # noqa: F401  fixtures

STRENGTH = {"one": 0.2, "two": 0.35, "three": 0.5, "four": 0.65, "five": 0.9}
PROMPTS, SAMPLES = 60, 3
JUDGE = "judge: {{url: '{url}', model: m, retries: 0, give_up_after: 1.0}}"


def rows(label: str, strength: float, shift: float = 0.0, first: int = 0) -> list[dict[str, Any]]:
    """Sampled and greedy rows; the stronger, the more often right, and the longer its text."""
    rng = np.random.default_rng(sorted(STRENGTH).index(label))
    found = []
    for prompt in range(first, first + PROMPTS):
        for sample, greedy in [*((sample, False) for sample in range(SAMPLES)), (0, True)]:
            right, tokens = float(rng.random() < strength), int(rng.integers(1, 8) + 4 * strength)
            found.append(
                {
                    "prompt_id": f"{prompt:016x}",
                    "problem": f"p{prompt}",
                    "policy": label,
                    "sample": sample,
                    "greedy": greedy,
                    "prompt": [{"role": "user", "content": f"What is {prompt}?"}],
                    "answer": str(prompt),
                    "task": "",
                    "completion": f"{sample}{'x' * int(100 * strength)}",
                    "completion_ids": [1] * tokens,
                    "mask": [True] * tokens,
                    "logps": [-0.5] * tokens,
                    "truncated": False,
                    "reward": right + shift,
                    "status": "ok",
                    "scores": [
                        {"name": "correct", "value": right, "status": "ok"},
                        {"name": "brief", "value": -float(tokens), "status": "ok"},
                    ],
                }
            )
    return found


def put(label: str, found: list[dict[str, Any]]) -> None:
    write_table(from_rows(found, "rollouts"), Path("results") / label / "rollouts.parquet", "rollouts")


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rollouts of five policies."""
    monkeypatch.chdir(tmp_path)
    for label, strength in STRENGTH.items():
        put(label, rows(label, strength))


def rate(run: str = "{}") -> dict[str, Any]:
    """Run the stage with these settings."""
    policies = ", ".join(f"{label}: sft/{label}" for label in STRENGTH)
    Path("params.yaml").write_text(f"evaluate:\n  policies: {{{policies}}}\n  ratings: {{main: {run}}}\n")
    main("main")
    found: dict[str, Any] = json.loads(Path("metrics/ratings/main.json").read_bytes())
    return found


def matches() -> pl.DataFrame:
    return read_table("metrics/ratings/main.parquet", "matches")


def by_policy(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in found["policies"]}


@pytest.mark.slow
def test_five_policies_are_in_order_and_another_program_finds_the_same() -> None:
    found = rate()
    assert [row["policy"] for row in found["policies"]] == ["five", "four", "three", "two", "one"]
    assert [row["rank_low"] for row in found["policies"]] == sorted(row["rank_low"] for row in found["policies"])
    assert len(found["pairs"]) == 10 and matches().height == 10 * PROMPTS * SAMPLES
    assert found["rating_five"] == by_policy(found)["five"]["rating"]
    assert list(rating_table(Path("metrics/ratings/main.parquet"))) == ["five", "four", "three", "two", "one"]
    assert differences(Path("metrics/ratings/main.parquet")) == []
    file = Path("metrics/ratings/main.json")
    file.write_text(file.read_text().replace(f'"rating": {found["rating_five"]}', '"rating": 1000.0'))
    assert len(differences(Path("metrics/ratings/main.parquet"))) == 1, "the other program can disagree"


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes_and_the_order_of_policies_does_not_matter() -> None:
    found = rate()
    before = [Path(f"metrics/ratings/main{suffix}").read_bytes() for suffix in (".json", ".parquet")]
    rate()
    assert before == [Path(f"metrics/ratings/main{suffix}").read_bytes() for suffix in (".json", ".parquet")]
    turned = rate("{policies: [five, one, three, two, four]}")
    assert by_policy(turned) == by_policy(found)
    wins = {(row["first"], row["second"]): row["win"] for row in found["pairs"]}
    for row in turned["pairs"]:
        one, other = row["first"], row["second"]
        assert row["win"] == pytest.approx(wins.get((one, other), 1 - wins.get((other, one), 0)), abs=1e-5)


@pytest.mark.slow
def test_adding_a_constant_to_all_rewards_changes_nothing() -> None:
    found = rate()
    for label, strength in STRENGTH.items():
        put(label, rows(label, strength, shift=5.0))
    assert rate() == found


@pytest.mark.slow
def test_equal_policies_are_equal() -> None:
    put("two", [{**row, "policy": "two"} for row in rows("one", 0.2)])
    found = by_policy(rate())
    same = [{key: value for key, value in found[label].items() if key != "policy"} for label in ("one", "two")]
    assert same[0] == same[1]


@pytest.mark.slow
def test_one_against_all_others_of_the_first_samples_and_a_part_of_the_prompts() -> None:
    found = rate("{policies: [one, five], against: three, samples: 1, prompts: 30}")
    assert [(row["first"], row["second"]) for row in found["pairs"]] == [("one", "three"), ("five", "three")]
    assert matches().height == 60 and matches()["prompt_id"].n_unique() == 30


@pytest.mark.slow
def test_named_scores_decide_with_their_weights() -> None:
    found = rate("{scores: {brief: 1.0}}")
    assert [row["policy"] for row in found["policies"]][-1] == "five", "it writes most"
    one = rate("{scores: {correct: 2.0, brief: 0.0}}")
    assert {**one, "decided_by": "score"} == rate()
    with pytest.raises(DataError, match=r"it has no scores of 'breif'.*Did you mean 'brief'"):
        rate("{scores: {breif: 1.0}}")


@pytest.mark.slow
def test_a_completion_that_could_not_be_scored_counts_nowhere() -> None:
    failed = [{**row, "reward": None, "status": "timeout"} if not row["greedy"] else row for row in rows("one", 0.2)]
    put("one", failed[:40] + rows("one", 0.2)[40:])
    pair = rate()["pairs"][0]
    assert (pair["first"], pair["no_verdict"], pair["prompts"]) == ("one", 30, 50)
    lost = matches().filter(pl.col("status") == "timeout")
    assert lost["win"].null_count() == lost.height == 4 * 30
    put("one", failed)
    with pytest.raises(DataError, match="no match of one and two has a verdict"):
        rate("{max_failed: 0.5}")


def test_more_failed_scores_than_max_failed_end_the_stage() -> None:
    put("one", [{**row, "reward": None, "status": "timeout"} for row in rows("one", 0.2)])
    what = r"evaluate.ratings.main: 720 of 1800 matches have no verdict, more than max_failed = 0.1; the last: timeout"
    with pytest.raises(RewardError, match=what):
        rate()


@pytest.mark.slow
def test_other_prompts_are_refused() -> None:
    put("three", rows("three", 0.5, first=7))
    with pytest.raises(DataError, match=r"results/three.*different prompts than one \(53 of 60 are the same\)"):
        rate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("{policies: [one, tree]}", "evaluate.ratings.main.policies: evaluate.policies has no 'tree'.*mean 'three'"),
        ("{against: fiv}", "evaluate.ratings.main.against: evaluate.policies has no 'fiv'. Did you mean 'five'"),
        ("{policies: [one]}", "a single policy has no opponent"),
        ("{polices: [one]}", "polices: unknown key. Did you mean 'policies'"),
        ("{alpha: 0.1}", "alpha has no effect without a judge"),
        ("{judge: {url: 'http://localhost:1/v1', model: m, mode: score}}", "judge.mode"),
        ("{scores: {correct: 1.0}, judge: {url: 'http://localhost:1/v1', model: m}}", "scores has no effect"),
    ],
)
def test_check_refuses_what_cannot_be_rated(run: str, said: str) -> None:
    with pytest.raises(ParamsError, match=said):
        rate(run)
    with pytest.raises(PosttrainError, match=said):
        check_params()


@pytest.mark.slow
def test_a_judge_is_asked_in_both_orders_until_a_pair_is_clear(endpoint: Endpoint) -> None:  # noqa: F811
    endpoint.does(then="rule")  # the longer text is better
    judge = JUDGE.format(url=endpoint.url)
    found = rate(f"{{policies: [one, three, five], {judge}}}")
    assert [row["policy"] for row in found["policies"]] == ["five", "three", "one"] and found["decided_by"] == "m"
    assert [(row["prompts"], row["win"], row["clear"]) for row in found["pairs"]] == 3 * [(BATCH, 0.0, True)]
    assert len(endpoint.log) == 3 * BATCH * 2
    assert all(row["always_low"] == 0 and row["always_high"] < 0.5 for row in found["pairs"])

    before = Path("metrics/ratings/main.parquet").read_bytes()
    endpoint.does(then="500")
    assert rate(f"{{policies: [one, three, five], {judge}}}") == found, "reuses the verdicts"
    assert endpoint.log == [] and Path("metrics/ratings/main.parquet").read_bytes() == before
    endpoint.does(then="rule")
    found = rate(f"{{policies: [one, three, five], alpha: null, {judge}}}")
    assert [row["prompts"] for row in found["pairs"]] == [PROMPTS] * 3 and "clear" not in found["pairs"][0]
    assert len(endpoint.log) == 3 * (PROMPTS - BATCH) * 2
    assert differences(Path("metrics/ratings/main.parquet")) == []


@pytest.mark.slow
def test_only_pairs_that_are_not_clear_are_asked_about_again(endpoint: Endpoint) -> None:  # noqa: F811
    put("two", [{**row, "policy": "two"} for row in rows("one", 0.2)])  # equal texts are a tie, and not asked
    endpoint.does(then="rule")
    found = rate(f"{{policies: [one, two, five], {JUDGE.format(url=endpoint.url)}}}")
    assert [row["prompts"] for row in found["pairs"]] == [PROMPTS, BATCH, BATCH]
    assert (found["pairs"][0]["win"], found["pairs"][0]["clear"]) == (0.5, False)
    assert len(endpoint.log) == BATCH * 2, "equal questions are asked once"
    assert differences(Path("metrics/ratings/main.parquet")) == []


@pytest.mark.slow
def test_a_verdict_that_changes_with_the_order_is_a_tie(endpoint: Endpoint) -> None:  # noqa: F811
    endpoint.does(then="say Verdict: A")
    found = rate(f"{{policies: [one, five], {JUDGE.format(url=endpoint.url)}}}")
    assert found["pairs"][0]["win"] == 0.5 and found["rating_one"] == found["rating_five"] == 0.0
    assert (found["first_slot"], found["order_decided"], found["pairs"][0]["ties"]) == (1.0, 1.0, 1.0)


def test_a_judge_that_reads_no_order_has_no_first_slot_bias(endpoint: Endpoint) -> None:  # noqa: F811
    endpoint.does(then="rule")
    found = rate(f"{{policies: [one, five], {JUDGE.format(url=endpoint.url)}}}")
    assert (found["first_slot"], found["first_slot_low"], found["order_decided"]) == (0.5, 0.5, 0.0)
    assert found["circles"] == [] and found["pairs"][0]["ties"] == 0.0
    assert matches().columns[-1] == "status", "the table stays as it was"


def test_policies_that_beat_each_other_in_a_circle_are_named() -> None:
    """Rock, paper, scissors: on each prompt one of three is right, a second one scores half, and they take turns."""
    for nth, label in enumerate(("one", "two", "three")):
        found = rows(label, 0.5)
        for row in found:
            turn = (int(row["prompt_id"], 16) + nth) % 3
            row["reward"] = (1.0, 0.5, 0.0)[turn]
        put(label, found)
    found = rate("{policies: [one, two, three]}")
    assert found["circles"] == [{"policies": ["one", "two", "three"], "clear": True}]
    assert "first_slot" not in found and max(abs(row["rating"]) for row in found["policies"]) < 1e-6


def test_a_completion_that_was_cut_off_loses_and_two_are_a_tie(endpoint: Endpoint) -> None:  # noqa: F811
    """The judge prefers the longer text, which is that of `five`."""
    endpoint.does(then="rule")
    for label, parts in (("one", (2,)), ("five", (1, 2))):
        put(
            label,
            [{**row, "truncated": int(row["prompt_id"], 16) % 3 in parts} for row in rows(label, STRENGTH[label])],
        )
    judge = JUDGE.format(url=endpoint.url)
    rate(f"{{policies: [one, five], alpha: null, {judge}}}")
    wins: dict[int, set[float]] = {0: set(), 1: set(), 2: set()}
    for prompt, win in matches().select("prompt_id", "win").iter_rows():
        wins[int(prompt, 16) % 3].add(win)
    assert wins == {0: {0.0}, 1: {1.0}, 2: {0.5}} and len(endpoint.log) == 2 * PROMPTS // 3
    shown = rate(f"{{policies: [one, five], alpha: null, {judge.replace('{', '{truncated: score, ', 1)}}}")
    assert shown["pairs"][0]["win"] == 0.0 and matches()["win"].unique().to_list() == [0.0]


@pytest.mark.slow
def test_no_verdict_is_no_win(endpoint: Endpoint) -> None:  # noqa: F811
    judge = JUDGE.format(url=endpoint.url).replace("{", "{concurrency: 1, ", 1)
    endpoint.does(*["say I like both"] * (BATCH * 2 + 4), then="rule")  # all once, and four when asked again
    found = rate(f"{{policies: [one, five], max_failed: 0.5, {judge}}}")
    pair = found["pairs"][0]
    assert 2 <= pair["no_verdict"] <= 4 and pair["prompts"] == BATCH - pair["no_verdict"] and pair["win"] == 0.0
    assert matches()["status"].value_counts().height == 2
    endpoint.does(then="500")
    with pytest.raises(RewardError, match=r"max_failed = 0.1; the last: infrastructure: HTTP 500.*reuses the verdicts"):
        rate(f"{{policies: [two, four], {judge}}}")


@pytest.mark.slow
def test_a_judge_needs_all_texts() -> None:
    file = Path("results/one/rollouts.parquet")
    write_table(with_ids(select_text(read_table(file, "rollouts"), "none"), "rollouts"), file, "rollouts")
    with pytest.raises(DataError, match="not all of its completions are stored"):
        rate("{judge: {url: 'http://localhost:1/v1', model: m}}")
    assert rate()["pairs"], "stored scores need none"


@pytest.mark.slow
def test_lengths_can_explain_a_win() -> None:
    """By stored scores that are the length itself, the longer policy wins, and of equally long texts neither."""
    params = RatingRun(policies=["one", "five"], scores={"brief": -1.0})
    pairs = [("one", "five")]
    found = figures(played(params, "here", pairs), params, "here", pairs)["pairs"][0]
    assert found["win"] < 0.3 and abs(found["controlled"] - 0.5) < 0.1
