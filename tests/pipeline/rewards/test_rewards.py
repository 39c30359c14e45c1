"""Rewards by rule: numbers are compared as they are written, and what can never be won is refused."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from ruamel.yaml import YAML

from posttrain.errors import DataError, ParamsError, RewardError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.pipeline.runs.evaluation import EvaluateParams
from posttrain.pipeline.runs.samples import _prefers
from posttrain.rewards.catalog import REWARDS, Rewards
from posttrain.rewards.correct import CorrectOptions, correct
from posttrain.rewards.numeric import expected_number
from posttrain.rewards.reward import Context, Reward, WeightedReward
from posttrain.rewards.scorable import check_scorable, scorable_prompts
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score, Status
from posttrain.settings.params import Params, check
from tests.library.models.tiny import function_reward, rollout_of


def right(text: str, answer: str) -> float:
    (found,) = RewardSum(terms(correct=1.0), Context(Runtime(DeviceParams()), "test")).score([rollout_of(text, answer)])
    return found.scores["correct"].value


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
        ("#### 18 dollars", "18", 1.0),
        ("#### **18**", "18", 1.0),
        ("#### 18 doubled", "18", 0.0),
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


def terms(**given: Any) -> dict[str, WeightedReward]:
    """Rewards as params.yaml names them, with the miniature's mark."""
    marked = {
        name: {"weight": weight, "after": "####"} if name in ("correct", "format") else weight
        for name, weight in given.items()
    }
    return check(Settings, {"reward": marked}, where="online.runs.a").reward


class Settings(Params):
    reward: Rewards


def numbered(*answers: str) -> list[Prompt]:
    return [Prompt(f"p{n}", [], [], answer) for n, answer in enumerate(answers)]


def kept(found: list[Prompt]) -> set[str]:
    return {one.id for one in found}


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
        scorable_prompts(terms(correct=1.0, format=0.2), numbered("", answer, answer), "data/prompts.parquet")
    for part in ("data/prompts.parquet: ", "3 of 3 answers", repr(answer), reason, "prompt p1", "docs/rewards.md"):
        assert part in str(caught.value)
    assert expected_number(answer, "####") is None


def test_a_mark_in_front_of_the_answers_is_pointed_out() -> None:
    with pytest.raises(DataError, match=r"set after: '####'"):
        scorable_prompts(check(Settings, {"reward": {"correct": 1.0}}, where="x").reward, numbered(GSM8K), "here")


def test_prompts_whose_answer_cannot_be_read_are_left_out_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    answers = numbered("7", "B", "")
    assert kept(scorable_prompts(terms(correct=1.0, format=1.0), answers, "here")) == {"p0"}
    told = capsys.readouterr().err
    assert "2 of 3 answers" in told and "'B' (a choice letter; prompt p1): 2 prompts are left out" in told
    assert kept(scorable_prompts(terms(correct=1.0, model=1.0), answers, "here")) == {"p0", "p1", "p2"}
    assert "only the other rewards judge them" in capsys.readouterr().err
    assert kept(scorable_prompts(terms(correct=1.0), numbered("7", GSM8K), "here")) == {"p0", "p1"}
    assert capsys.readouterr().err == ""


def test_a_reward_that_nobody_can_win_is_refused() -> None:
    with pytest.raises(DataError, match="no prompt has an answer"):
        scorable_prompts(terms(correct=1.0, format=0.2), numbered("", ""), "data/prompts.parquet")
    assert kept(scorable_prompts(terms(model=1.0), numbered("", "B"), "")) == {"p0", "p1"}
    assert kept(scorable_prompts(terms(correct=0.0, format=1.0), numbered(""), "")) == {"p0"}


def scored(given: dict[str, WeightedReward], *texts: str, truncated: bool = False) -> list[Rollout]:
    """Completions as the rewards scored them; a learned reward gives 0."""
    zero: Reward[Any] = Reward(lambda options, context: lambda rollouts: [0.0] * len(rollouts))
    stand = {
        name: WeightedReward(reward=zero, weight=one.weight) if name == "model" else one for name, one in given.items()
    }
    context = Context(Runtime(DeviceParams()), "test")
    return RewardSum(stand, context).score([rollout_of(text, "7", truncated=truncated) for text in texts])


def test_completions_none_of_which_can_be_read_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def checked(given: dict[str, WeightedReward], *texts: str, truncated: bool = False) -> None:
        check_scorable(given, scored(given, *texts, truncated=truncated), "pairs")

    unread = "It is seven.", "7"
    with pytest.raises(DataError, match=r"none of 2 completions could be scored by 'correct': .*`#### N`;.*'It is"):
        checked(terms(correct=1.0), *unread)
    with pytest.raises(DataError, match=r"2 of 2 are truncated: raise sampling\.max_tokens"):
        checked(terms(format=1.0), "7 and", "8 and", truncated=True)
    checked(terms(correct=1.0), *unread, "#### 8")
    assert "pairs: 'correct' cannot read 2 of 3 completions, which score 0: it does not" in capsys.readouterr().err
    checked(terms(correct=1.0), unread[0], *["#### 8"] * 3)
    checked(terms(model=1.0, correct=0.0), *unread)
    assert capsys.readouterr().err == ""
    checked(terms(model=1.0, correct=1.0), *unread)
    assert "none of 2 completions" in capsys.readouterr().err


def test_an_unknown_reward_lists_the_names_and_the_nearest() -> None:
    with pytest.raises(ParamsError, match=r"'corect' \(your own: MODULE:NAME, .*Did you mean 'correct'\?"):
        terms(corect=1.0)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"correct": {"after": "####", "befor": 1}}, "correct.befor: unknown key"),
        ({"correct": {"normalize": True}}, "correct.normalize: unknown key. Did you mean 'normalise'?"),
        ({"cascade": {"of": {"correct": 1.0}}}, "cascade.of: it has 1 reward. Give two or more"),
        ({"cascade": {"of": ["correct"]}}, "give NAME: VALUE pairs"),
        ({"correct": "much"}, "Give a weight, or {weight: 1.0, OPTION: ...}"),
        ({"correct": {"weight": "1"}}, "weight"),
        ({"missing_file:f": 1.0}, "custom/missing_file.py not found"),
    ],
)
def test_wrong_settings_of_a_reward_are_refused(setting: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError) as caught:
        check(Settings, {"reward": setting}, where="online.runs.a")
    assert said in str(caught.value)


@pytest.mark.parametrize("metrics", [["absent:f"], {"mine": {"type": "absent:f"}}])
def test_an_own_reward_that_is_not_there_is_under_the_key_that_was_written(metrics: object) -> None:
    with pytest.raises(ParamsError) as caught:
        check(EvaluateParams, {"metrics": metrics}, where="evaluate.settings")
    assert "evaluate.settings.metrics: 'absent:f': custom/absent.py not found. Write MODULE:NAME" in str(caught.value)


def test_a_failed_score_has_a_status_and_a_reason() -> None:
    def score(value: Any) -> Score:
        return (
            function_reward(lambda rollouts: [value(one) for one in rollouts]).score([rollout_of("7")])[0].scores["few"]
        )

    for value, status, reason in (
        (lambda one: 1 / 0, "error", "it raised ZeroDivisionError"),
        (lambda one: float("nan"), "error", "not finite"),
        (lambda one: Score(0.0, "timeout", "10 s"), "timeout", "10 s"),
        (lambda one: Score(1.0, "infrastructure", "no server"), "infrastructure", "no server"),
        (lambda one: Score(1.0, "infrastucture"), "error", "status 'infrastucture' is unknown"),
    ):
        found = score(value)
        assert found.status == status and reason in found.reason
    with pytest.raises(RewardError, match="0 scores for 1 rollouts"):
        function_reward(lambda rollouts: []).score([rollout_of("7")])


def test_options_of_a_task_hold_where_the_user_sets_none() -> None:
    given = check(Settings, {"reward": {"correct": 1.0}}, where="x").reward
    judged = RewardSum(given, Context(Runtime(DeviceParams()), "test"))
    mine, plain = judged.score([rollout_of("7", "7", task="two_step"), rollout_of("7", "7")])
    assert mine.scores["correct"].status == "unparseable" and plain.scores["correct"].value == 1.0
    own = check(Settings, {"reward": {"correct": {"after": "=>"}}}, where="x").reward
    (found,) = RewardSum(own, Context(Runtime(DeviceParams()), "t")).score([rollout_of("=> 7", "7", task="two_step")])
    assert found.scores["correct"].value == 1.0


OWN = """
from posttrain.rewards.reward import rule
from posttrain.settings.params import Params
from pydantic import Field

class Options(Params):
    word: str = Field(description="the word to use")

@rule(Options)
def uses(rollout, options):
    return float(options.word in rollout.text and rollout.prompt.info["polite"])

def length(rollouts):
    return [len(one.text) for one in rollouts]
"""


@pytest.mark.slow
def test_a_reward_of_the_users_own_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/own_rewards.py").write_text(OWN)
    setting = {"own_rewards:uses": {"weight": 2.0, "word": "please"}, "own_rewards:length": 0.5}
    judged = RewardSum(check(Settings, {"reward": setting}, where="x").reward, Context(Runtime(DeviceParams()), "test"))
    one = replace(rollout_of("please"), prompt=Prompt("p", [], [], info={"polite": True}))
    (found,) = judged.score([one])
    assert judged.total(found) == 2.0 + 0.5 * 6
    with pytest.raises(ParamsError, match=r"own_rewards:uses.word is missing. Write the word to use"):
        check(Settings, {"reward": {"own_rewards:uses": 1.0}}, where="x")
    sys.modules.pop("own_rewards")


def test_the_first_completions_of_a_run_must_be_readable(capsys: pytest.CaptureFixture[str]) -> None:
    def watch() -> RewardMonitor:
        return RewardMonitor("online.runs.grpo", terms(correct=1.0, format=0.2), compares=True)

    given = terms(correct=1.0, format=0.2)
    patient, unread = watch(), scored(given, *["seven"] * 32)
    patient.completions(unread)
    resumed = watch()
    resumed.load(patient.tensor())
    with pytest.raises(
        DataError,
        match=r"online.runs.grpo: none of 64 completions could be scored .*`#### "
        r"N`.*'seven'.*sft",
    ):
        resumed.completions(unread)
    patient.completions([*scored(given, "#### 3"), *unread])
    for _ in range(9):
        patient.completions(unread)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "'correct'" in line]
    assert said.startswith("online.runs.grpo: 'correct' cannot read 32 of 33 completions, which score 0: ")
    assert said.endswith("Train on demonstrations in this form (sft), or ask for it in the prompts (docs/rewards.md)")


DOCS = Path(__file__).parents[3] / "docs"
PAGE = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("rewards.md", "reference/rewards.md"))
OWN_PAGE = (DOCS / "own-rewards.md").read_text(encoding="utf-8").split("## More than one number per completion")[1]


def test_the_examples_of_the_documentation_are_true() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines()]
    judged = [(row[0], row[1].strip("`"), row[2].strip("`"), row[3]) for row in rows if row[-1] in VERDICTS]
    assert len(judged) == 10
    for mark, answer, completion, verdict in judged:
        after = None if mark in ("null", "last") else mark.strip("`")
        options = CorrectOptions(after=after, find="last" if mark == "last" else "end")
        rollout = rollout_of(completion.replace("⏎", "\n"), answer.replace("⏎", "\n"))
        (score,) = correct.score_fn(options, None)([rollout])  # type: ignore[arg-type]
        assert isinstance(score, Score)
        says = "not parsed" if score.status == "unparseable" else str(score.value == 1.0)
        says = says if correct.cannot_score(rollout.prompt, options) is None else "answer refused"
        assert VERDICTS[verdict] == says, (mark, answer, completion)
    for name in REWARDS:
        assert f"\n| `{name}` | " in PAGE
    assert all(f"`{status}`" in PAGE for status in get_args(Status))


@pytest.mark.slow
def test_the_rewards_of_the_documentation_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/my_rewards.py").write_text(re.findall(r"```python\n(.*?)```", OWN_PAGE, re.DOTALL)[0])
    setting = YAML(typ="safe").load(re.findall(r"```yaml\n(reward:.*?)```", OWN_PAGE, re.DOTALL)[0])
    judged = RewardSum(check(Settings, setting, where="x").reward, Context(Runtime(DeviceParams()), "test"))
    prompt = Prompt("p", [], [], info={"keys": ["name", "age"]})
    texts = ['{"name": "Ann", "age": 7}', '{"name": "Ann"}', "Ann is 7", "Ann is 7"]
    found = judged.score([replace(rollout_of(text), prompt=prompt) for text in texts])
    assert [one.scores["my_rewards:has_keys"].value for one in found] == [1.0, 0.0, 0.0, 0.0]
    assert [one.scores["my_rewards:has_keys"].status for one in found] == ["ok", "ok", "unparseable", "unparseable"]
    assert judged.total(found[0]) == pytest.approx(1.0 + 0.2 * (1 - 4 / 30) + 0.1)
    assert judged.total(found[3]) == pytest.approx(0.2 * (1 - 3 / 30))
    term = judged.terms["my_rewards:has_keys"]
    examples = term.reward.examples(prompt, term.options)
    scores = judged.score([replace(rollout_of(text), prompt=prompt) for text in (*examples.right, *examples.wrong)])
    assert [one.scores["my_rewards:has_keys"].value for one in scores] == [1.0, 0.0, 0.0]
    assert term.reward.cannot_score(Prompt("q", [], []), term.options) == "its info has no keys"
    sys.modules.pop("my_rewards")


VERDICTS = {"right": "True", "wrong": "False", "not parsed": "not parsed", "answer refused": "answer refused"}


@pytest.mark.parametrize("noise", [0.0, 1e-300, 1e-9, 0.001])
def test_an_annotator_with_little_noise_does_not_err(noise: float) -> None:
    rng = random.Random(0)
    assert all(_prefers(gap, noise, rng) == (gap > 0) for gap in (1e12, 1.0, -1.0, -1e12) for _ in range(100))
