"""Agreement of a judge with labels: Cohen's kappa, and the command."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest

from posttrain.data.columns import with_ids
from posttrain.errors import DataError, ParamsError, RewardError
from posttrain.pipeline.commands.reward.agreement import _of_rollouts, judge_agreement
from posttrain.pipeline.tables.store import write_table
from posttrain.rewards.judge.agreement import kappa
from tests.pipeline.rewards.judge.conftest import Endpoint


def raters(both: int, first: int, second: int, neither: int) -> tuple[list[bool], list[bool]]:
    """Verdicts of two raters with these counts of yes."""
    pairs = [(True, True)] * both + [(True, False)] * first + [(False, True)] * second + [(False, False)] * neither
    return [one for one, _ in pairs], [other for _, other in pairs]


@pytest.mark.slow
def test_kappa_is_that_of_the_textbook() -> None:
    value, low, high = kappa(*raters(20, 5, 10, 15))  # p_o = 0.7, p_e = 0.5 * 0.6 + 0.5 * 0.4 = 0.5
    assert value == pytest.approx(0.4)
    half = 1.96 * (0.7 * 0.3 / (50 * 0.25)) ** 0.5  # Cohen's own approximation of its error
    assert low == pytest.approx(0.4 - half, abs=0.03) and high == pytest.approx(0.4 + half, abs=0.03)
    value, _, _ = kappa([*"aabbcc" * 10], [*"aabbca" * 10])  # p_o = 5/6, p_e = (1/3)(1/2 + 1/3 + 1/6) = 1/3
    assert value == pytest.approx(0.75)


def test_kappa_at_its_ends() -> None:
    one, other = raters(30, 0, 0, 20)
    assert kappa(one, other)[0] == 1.0
    assert kappa(one, [not verdict for verdict in one])[0] < -0.9
    labels, chance = raters(64, 16, 16, 4)
    value, low, high = kappa(labels, chance)
    assert value == pytest.approx(0.0) and low < 0 < high, "68 % agree by chance alone"
    assert kappa(chance, labels) == pytest.approx((value, low, high), abs=0.03)
    for same in ([True] * 5, [False]):
        with pytest.raises(ValueError, match="two categories"):
            kappa(same, same)
    for wrong in ([], [True]):
        with pytest.raises(ValueError, match="one verdict for each label"):
            kappa(wrong, [True, False][: 2 * len(wrong)])


def test_the_interval_covers_the_truth() -> None:
    rng = random.Random(1)
    truth, covered = 0.5, 0  # a rater that guesses half the time
    for _ in range(100):
        labels = [rng.random() < 0.5 for _ in range(80)]
        verdicts = [label if rng.random() < 0.5 else rng.random() < 0.5 for label in labels]
        _, low, high = kappa(labels, verdicts)
        covered += low <= truth <= high
    assert 88 <= covered <= 100


def test_the_interval_covers_the_truth_where_the_rows_of_a_problem_are_alike() -> None:
    rng = random.Random(2)
    truth, covered, alone = 0.5, 0, 0
    for _ in range(100):
        each = [
            (label, label if rng.random() < 0.5 else rng.random() < 0.5)
            for label in (rng.random() < 0.5 for _ in range(40))
        ]
        rows = [(nth, *pair) for nth, pair in enumerate(each) for _ in range(8)]
        problems, labels, verdicts = zip(*rows, strict=True)
        _, low, high = kappa(labels, verdicts, problems)
        covered += low <= truth <= high
        _, low, high = kappa(labels, verdicts)
        alone += low <= truth <= high
    assert 86 <= covered <= 100 and alone < 75


PARAMS = """
online:
  runs:
    a:
      reward:
        judge: {{weight: 0.5, url: "{url}", model: m, retries: 0, price_in: 1.0}}
        correct: 1.0
"""


@pytest.fixture
def project(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS.format(url=endpoint.url))
    texts = [("good", True)] * 8 + [("good but long", False)] * 2 + [("bad", False)] * 9 + [("poor", True)]
    rows = [
        {
            "split": "train",
            "problem": f"q{nth}",
            "prompt": [{"role": "user", "content": f"q{nth}"}],
            "completion": [{"role": "assistant", "content": text}],
            "label": label,
        }
        for nth, (text, label) in enumerate(texts)
    ]
    rows.append({**rows[0], "split": "heldout", "problem": "h", "prompt": [{"role": "user", "content": "h"}]})
    write_table(with_ids(pl.DataFrame(rows), "feedback"), tmp_path / "data/mine/feedback.parquet", "feedback")
    endpoint.does(then="rule")
    return tmp_path


@pytest.mark.slow
def test_the_command(project: Path, endpoint: Endpoint) -> None:
    found = judge_agreement("mine/feedback", "online.runs.a.reward.judge", "correct", 200, 0.5)
    # p_o = 18/21, p_e = (10 * 11 + 11 * 10) / 21^2
    assert found.startswith("kappa 0.715 [") and "on 21 rows of mine/feedback: 85.7% agree" in found
    assert "labels: 10 right; verdicts of 0.5 or more: 11" in found
    assert "requests 21, cached 0, tokens in 2,100, tokens out 210, cost 0.0021" in found
    assert "on 5 rows" in judge_agreement("mine/feedback", "online.runs.a.reward.judge", "correct", 5, 0.5)
    assert len(endpoint.log) == 21, "the verdicts on the five are known"


@pytest.mark.slow
def test_what_the_judge_cannot_say_is_left_out(project: Path, endpoint: Endpoint) -> None:
    endpoint.does("500", *["empty"] * 21, then="rule")  # of 20 that are asked once more one gets no verdict again
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("retries: 0", "retries: 0, concurrency: 1"))
    found = judge_agreement("mine/feedback", "online.runs.a.reward.judge", "correct", 200, 0.5)
    assert "on 19 rows" in found and "left out: 1 (infrastructure: HTTP 500" in found
    assert "left out: 1 (error: the judge gave no verdict" in found
    params.write_text(params.read_text().replace("retries: 0", "retries: 0, cache: false"))
    endpoint.does(then="500")
    with pytest.raises(DataError, match=r"no verdict \(21 times infrastructure: HTTP 500"):
        judge_agreement("mine/feedback", "online.runs.a.reward.judge", "correct", 200, 0.5)
    endpoint.does(then="404")
    with pytest.raises(RewardError, match="Check url and model"):
        judge_agreement("mine/feedback", "online.runs.a.reward.judge", "correct", 200, 0.5)


def test_what_is_no_judge_and_no_table_of_labels(project: Path) -> None:
    wrong = {"online.runs.b.reward.judge": "no section 'b'", "online.runs.a.reward.correct": "not a judge"}
    for judge, said in wrong.items():
        with pytest.raises(ParamsError, match=said):
            judge_agreement("mine/feedback", judge, "correct", 200, 0.5)
    with pytest.raises(DataError, match="mine/chat: no such table"):
        judge_agreement("mine/chat", "online.runs.a.reward.judge", "correct", 200, 0.5)
    (project / "data/mine/chat.parquet").touch()
    with pytest.raises(DataError, match="only feedback and rollout tables have labels"):
        judge_agreement("mine/chat", "online.runs.a.reward.judge", "correct", 200, 0.5)


def test_rollouts_are_judged_with_the_info_of_their_prompts() -> None:
    row = {
        "prompt_id": "p",
        "problem": "p",
        "prompt": [],
        "answer": "",
        "task": "",
        "completion": "Please.",
        "truncated": False,
    }
    row["scores"] = [{"name": "correct", "value": 1.0, "status": "ok"}]
    info = {"rubric": {"Is it polite?": 1}}
    ((rollout, label),) = _of_rollouts(iter([row]), "correct", {"p": info})
    assert rollout.prompt.info == info and label and not rollout.truncated
    ((cut, _),) = _of_rollouts(iter([{**row, "truncated": True}]), "correct", {})
    assert cut.truncated, "so the judge is not asked about it"
