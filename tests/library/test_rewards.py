"""Rewards by rule: numbers are compared as they are written, and what can never be won is refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from posttrain.errors import DataError, ParamsError
from posttrain.models.device import Device, DeviceParams
from posttrain.online.watch import Watch
from posttrain.rewards.blend import LEARNED, VERIFIABLE, check_answers, check_completions, make_blend
from posttrain.rewards.verifiable import Sampled, correct, expected_answer, final_answer
from posttrain.rollout.pairs import _prefers


def right(text: str, answer: str) -> float:
    return correct([Sampled([1], [2], text, answer, False)])[0]


GSM8K = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nShe sold 48+24 = <<48+24=72>>72 clips.\n#### 72"


@pytest.mark.parametrize(
    ("text", "answer", "reward"),
    [
        ("#### 7", "7", 1.0),
        ("#### 7.0", "7", 1.0),
        ("#### 1,000", "1000", 1.0),
        ("#### 1000", "1,000.00", 1.0),
        ("#### -0", "0", 1.0),
        ("#### 72", GSM8K, 1.0),
        ("#### 24", GSM8K, 0.0),
        ("#### 5\n#### 7", "7", 1.0),
        ("#### 7\n#### 5", "7", 0.0),
        ("#### $18.", "#### $18", 1.0),
        ("#### -$3", "-3", 1.0),
        ("#### 3", "-3", 0.0),
        ("#### .5", "0.5", 1.0),
        ("#### 1,5", "1.5", 0.0),
        ("#### 1,5", "15", 0.0),
        ("#### 1,2345", "12345", 0.0),
        ("#### 1/2", "2", 0.0),
        ("#### 18 19", "19", 0.0),
        ("#### 18 dollars", "18", 0.0),
        ("#### 9007199254740993", "9007199254740992", 0.0),
        (f"#### {'9' * 400}", f"{'8' * 400}", 0.0),
        (f"#### {'9' * 400}", "inf", 0.0),
        ("#### 7", "", 0.0),
        ("#### 7", "seven", 0.0),
        ("#### 7", "nan", 0.0),
        ("#### 0.1", "0.10000000000000000001", 0.0),
    ],
)
def test_an_answer_is_right_when_it_is_the_same_number(text: str, answer: str, reward: float) -> None:
    assert right(text, answer) == reward


def numbered(*answers: str) -> dict[str, str]:
    return {f"p{n}": answer for n, answer in enumerate(answers)}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("B", "a choice letter"),
        ("(B)", "a choice letter"),
        ("1/2", "a fraction"),
        ("#### 1/2", "a fraction"),
        (r"\boxed{18}", r"a \boxed{} answer"),
        ("18 dollars", "not a number"),
        ("1e3", "not a number"),
        ("72 ####", "empty"),
    ],
)
def test_answers_none_of_which_can_be_read_are_refused_with_an_example(answer: str, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        check_answers({"correct": 1.0, "format": 0.2}, numbered("", answer, answer), "data/prompts.parquet")
    for part in ("data/prompts.parquet: ", "none of 3 answers", repr(answer), reason, "prompt p1", "docs/rewards.md"):
        assert part in str(caught.value)
    assert expected_answer(answer) is None


def test_prompts_whose_answer_cannot_be_read_are_left_out_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    answers = numbered("7", "B", "")
    assert check_answers({"correct": 1.0, "format": 1.0}, answers, "here") == {"p0"}
    told = capsys.readouterr().err
    assert "2 of 3 answers are not one" in told and "'B' (a choice letter; prompt p1): these prompts are left" in told
    assert check_answers({"correct": 1.0, "model": 1.0}, answers, "here") == {"p0", "p1", "p2"}
    assert "only the other rewards judge them" in capsys.readouterr().err
    assert check_answers({"correct": 1.0}, numbered("7", GSM8K), "here") == {"p0", "p1"}
    assert capsys.readouterr().err == ""


def test_a_reward_that_nobody_can_win_is_refused() -> None:
    with pytest.raises(DataError, match="no prompt has one"):
        check_answers({"correct": 1.0, "format": 0.2}, numbered("", ""), "data/prompts.parquet")
    assert check_answers({"model": 1.0}, numbered("", "B"), "") == {"p0", "p1"}
    assert check_answers({"correct": 0.0, "format": 1.0}, numbered(""), "") == {"p0"}


def completions(*texts: str, truncated: bool = False) -> list[Sampled]:
    return [Sampled([1], [2], text, "7", truncated) for text in texts]


def test_completions_none_of_which_can_be_read_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    unread = completions("It is seven.", "7")
    with pytest.raises(DataError, match=r"none of 2 completions ends with `#### N`, which 'correct' .*'It is seven.'"):
        check_completions({"correct": 1.0}, unread, "pairs")
    with pytest.raises(DataError, match=r"2 of 2 are cut off: raise sampling\.max_tokens"):
        check_completions({"format": 1.0}, completions("7 and", "8 and", truncated=True), "pairs")
    check_completions({"correct": 1.0}, [*unread, *completions("#### 8")], "pairs")
    check_completions({"model": 1.0, "correct": 0.0}, unread, "pairs")
    assert capsys.readouterr().err == ""
    check_completions({"model": 1.0, "correct": 1.0}, unread, "pairs")
    assert "none of 2 completions" in capsys.readouterr().err


def test_an_unknown_reward_lists_the_names_and_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"'corect'.*Did you mean 'correct'\? The rewards are correct, format, model"):
        make_blend({"corect": 1.0}, "online.runs.grpo", tmp_path, Device(DeviceParams()))


def test_a_run_that_cannot_learn_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watch("online.runs.grpo", {"correct": 1.0}, compares=True)
    for number in range(6):
        watch.round([torch.zeros(4), torch.zeros(4)])
        assert ("in the last 5 rounds" in capsys.readouterr().err) == (number == 4), "once for each time it happens"
    resumed = Watch("online.runs.grpo", {"correct": 1.0}, compares=True)
    resumed.load(watch.tensor())
    resumed.close()
    told = capsys.readouterr().err
    assert "online.runs.grpo: in 100% of all 12 groups" in told and "mean reward 0" in told
    for knob in ("reward", "temperature", "group_size", "prompts"):
        assert knob in told
    for _ in range(12):
        resumed.round([torch.tensor([0.0, 1.0]), torch.ones(2)])
    resumed.close()
    Watch("online.runs.reinforce", {"correct": 1.0}, compares=False).close()
    assert capsys.readouterr().err == "", "groups that differ have a gradient"


def test_the_first_completions_of_a_run_must_be_readable() -> None:
    def watch() -> Watch:
        return Watch("online.runs.grpo", {"correct": 1.0, "format": 0.2}, compares=True)

    patient, unread = watch(), completions(*["seven"] * 32)
    patient.completions(unread)
    resumed = watch()
    resumed.load(patient.tensor())
    with pytest.raises(DataError, match=r"online.runs.grpo: none of 64 completions ends with `#### N`.*'seven'.*sft"):
        resumed.completions(unread)
    patient.completions([*completions("#### 3"), *unread])
    for _ in range(9):
        patient.completions(unread)


def test_the_examples_of_the_documentation_are_true() -> None:
    text = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    judged = [(row[0].strip("`"), row[1].strip("`"), row[2]) for row in rows if len(row) == 3 and row[2] in VERDICTS]
    assert len(judged) > 10
    for answer, completion, verdict in judged:
        found = final_answer(completion.replace("⏎", "\n")), expected_answer(answer.replace("⏎", "\n"))
        says = "answer refused" if found[1] is None else "not parsed" if found[0] is None else str(found[0] == found[1])
        assert VERDICTS[verdict] == says, (answer, completion)
    for name in (*VERIFIABLE, LEARNED):
        assert f"| `{name}` |" in text


VERDICTS = {"right": "True", "wrong": "False", "not parsed": "not parsed", "answer refused": "answer refused"}


@pytest.mark.parametrize("noise", [0.0, 1e-300, 1e-9, 0.001])
def test_an_annotator_with_little_noise_does_not_err(noise: float) -> None:
    rng = random.Random(0)
    assert all(_prefers(gap, noise, rng) == (gap > 0) for gap in (1e12, 1.0, -1.0, -1e12) for _ in range(100))
