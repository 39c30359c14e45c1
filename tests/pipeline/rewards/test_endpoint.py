"""The reward `endpoint` against a real server that misbehaves on command."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from ruamel.yaml import YAML

from posttrain.errors import ParamsError, RewardError
from posttrain.measure.counts import counts
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rewards import score
from posttrain.rewards.endpoint import REWARDS, ServedModel, ServedModelOptions
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.reward import Context, WeightedReward
from posttrain.rewards.score import RewardSum, make_score_fn
from posttrain.rollout import Score
from posttrain.settings.params import check
from tests.pipeline.rewards.judge.conftest import Endpoint
from tests.pipeline.rewards.judge.test_judge import SECRET, Settings, said, values
from tests.workspace import ROOT


def served_by(endpoint: Endpoint, **options: Any) -> ServedModel:
    """A reward model that is given up soon."""
    quick = {"url": address(endpoint), "model": "m", "retries": 1, "timeout": 30, "concurrency": 1, **options}
    return ServedModel(check(ServedModelOptions, quick, where="endpoint"), "online.runs.a.reward.endpoint")


def address(endpoint: Endpoint) -> str:
    return endpoint.url.replace("/v1", "/classify")


def test_conversations_get_the_raw_output(endpoint: Endpoint) -> None:
    endpoint.does(then="rule")
    model, before = served_by(endpoint), counts()
    assert values(model(said("a good one", "a bad one", "a bad one"))) == [1.5, -0.5, -0.5]
    assert model.counts == {"requests": 2, "tokens_in": 200}, "equal ones are asked once"
    assert counts()["endpoint requests"] - before.get("endpoint requests", 0) == 2
    assert endpoint.asked("a good one") == {
        "model": "m",
        "messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "a good one"}],
        "use_activation": False,
    }
    turns = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    (episode,) = said("good")
    endpoint.does(then="rule")
    model([replace(episode, turns=[*turns, {"role": "assistant", "content": "good"}])])
    assert [turn["content"] for turn in endpoint.log[0]["body"]["messages"]] == ["2 + 2?", "a", "b", "good"]
    endpoint.does(then="rule")
    served_by(endpoint, body={"use_activation": None, "truncate_prompt_tokens": 99})(said("x"))
    assert endpoint.log[0]["body"].keys() == {"model", "messages", "truncate_prompt_tokens"}


def test_several_outputs_need_a_label(endpoint: Endpoint) -> None:
    endpoint.does(then="say [0.25, -3]")
    assert [values(served_by(endpoint, label=nth)(said("x"))) for nth in (0, 1)] == [[0.25], [-3.0]]
    for label, wrong in (
        (None, "label = null, but the model has 2.*Set label.*0 to 1"),
        (2, "label = 2, but.* 2 out"),
    ):
        with pytest.raises(RewardError, match=f"online.runs.a.reward.endpoint: {wrong}"):
            served_by(endpoint, label=label)(said("x"))
    endpoint.does(then="say 1")
    with pytest.raises(RewardError, match=r"has 1 outputs\. Remove label"):
        served_by(endpoint, label=1)(said("x"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("hang up", "the connection failed"),
        ("503", "HTTP 503"),
        ("429 0.1", "HTTP 429"),
        ("html", "the reply is not a classification"),
        ("say []", "the reply is not a classification"),
        ("say [true]", "the reply is not a classification"),
        ("say [null]", "the reply is not a classification"),
        ('say ["1"]', "the reply is not a classification"),
        ("huge", "larger than 1 MiB"),
        ("slow 4", "no reply within 1.5 s"),
    ],
)
def test_a_fault_is_survived_once_and_is_infrastructure_when_it_stays(
    endpoint: Endpoint, fault: str, reason: str
) -> None:
    model = served_by(endpoint, timeout=1.5 if fault == "slow 4" else 30)
    endpoint.does(fault)
    assert values(model(said("x"))) == [7.0]
    endpoint.does(then=fault)
    (failed,) = model(said("x"))
    assert failed.status == "infrastructure" and reason in failed.reason and "(tries: 2)" in failed.reason
    assert len(endpoint.log) == 2


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_not_finite_is_an_error(endpoint: Endpoint, number: str) -> None:
    endpoint.does(then=f"say {number}")
    (failed,) = served_by(endpoint)(said("x"))
    assert failed.status == "error" and "is not finite" in failed.reason and len(endpoint.log) == 1


def test_a_failure_never_counts_as_zero(endpoint: Endpoint) -> None:
    settings = {"endpoint": {"url": address(endpoint), "model": "m", "retries": 0, "weight": 2.0, "concurrency": 1}}
    reward = RewardSum(check(Settings, {"reward": settings}, where="x").reward, Context(Runtime(DeviceParams()), "x"))
    endpoint.does("say -1.5", then="500")
    scored = reward.score(said("y", "z"))
    assert reward.total(scored[0]) == -3.0
    assert FailureLimit(reward, 0.5, "online.runs.a").check(scored) == [0]
    with pytest.raises(RewardError, match=r"'endpoint' \(infrastructure: HTTP 500"):
        FailureLimit(reward, 0.4, "online.runs.a").check(reward.score(said("a", "b")))


def test_the_secret_goes_to_the_endpoint_and_into_no_message(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARD_KEY", SECRET)
    model = served_by(endpoint, key="REWARD_KEY")
    model(said("x"))
    assert endpoint.log[0]["headers"]["Authorization"] == f"Bearer {SECRET}"
    endpoint.does(then="leak")
    with pytest.raises(RewardError, match=r"HTTP 401. Put a valid key into \$REWARD_KEY") as caught:
        model(said("y"))
    assert SECRET not in repr(caught.value.__cause__) + str(caught.value)
    endpoint.does(then="400")
    (refused,) = model(said("z"))
    assert refused.status == "error" and refused.reason == "HTTP 400: too long for Bearer ***"
    endpoint.does(then=f"redirect http://localhost:{endpoint.port}/classify")
    with pytest.raises(RewardError, match="posttrain does not follow its redirect"):
        model(said("x"))
    assert len(endpoint.log) == 1
    for wrong in ({"key": SECRET}, {"url": f"http://me:{SECRET}@h/classify"}, {"url": f"http://h/?key={SECRET}"}):
        with pytest.raises(ParamsError) as refusal:
            served_by(endpoint, **wrong)
        assert SECRET not in str(refusal.value)


def test_the_settings_of_the_documentation() -> None:
    page = (ROOT / "docs/reference/rewards.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(reward:\n  endpoint:.*?)```", page, re.DOTALL)
    term = check(Settings, YAML(typ="safe").load(block), where="x").reward["endpoint"]
    assert isinstance(term.options, ServedModelOptions) and term.normalise and term.outcome


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "PAUSE_S", 0.05)
    monkeypatch.setattr(score, "LONGEST_PAUSE_S", 0.1)


def waiting(endpoint: Endpoint, share: float = 0.4, weight: float = 1.0) -> RewardSum:
    options = {"url": address(endpoint), "model": "m", "retries": 0, "concurrency": 1}
    read = check(ServedModelOptions, options, where="endpoint")
    terms = {"endpoint": WeightedReward(reward=REWARDS["endpoint"], options=read, weight=weight)}
    return RewardSum(terms, Context(Runtime(DeviceParams()), "online.runs.a"), share)


@pytest.mark.usefixtures("quick")
def test_a_run_waits_for_a_server_that_is_down(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what has no score is asked again, and the scores are those of a server that was never down."""
    texts = ["a good one", "a bad one", "a worse one"]
    endpoint.does("rule", *["503"] * 6, then="rule")
    scored = waiting(endpoint).score(said(*texts))
    assert [one.scores["endpoint"] for one in scored] == [Score(1.5), Score(-0.5), Score(-0.5)]
    asked = [entry["body"]["messages"][1]["content"] for entry in endpoint.log]
    assert asked == [*texts, *texts[1:] * 3]
    told = capsys.readouterr().err
    assert "online.runs.a: 2 of 3 completions got no score of reward 'endpoint' (HTTP 503" in told
    assert re.search(r"Waiting, \d+ s so far", told) and "reward 'endpoint' is back after" in told


@pytest.mark.usefixtures("quick")
def test_a_few_failures_are_not_waited_for(endpoint: Endpoint) -> None:
    endpoint.does("503", then="rule")
    (lost, _, _) = waiting(endpoint, 0.4).score(said("a good one", "a bad one", "a worse one"))
    assert lost.scores["endpoint"].status == "infrastructure"


@pytest.mark.usefixtures("quick")
def test_a_part_that_only_measures_is_waited_for_too(endpoint: Endpoint) -> None:
    """Its failures end a run as those of other parts do."""
    endpoint.does("503", "503", then="rule")
    (found,) = waiting(endpoint, weight=0.0).score(said("a good one"))
    assert found.scores["endpoint"].status == "ok"


def test_an_error_names_the_reward_as_params_yaml_calls_it() -> None:
    given = {"type": "endpoint", "url": "http://127.0.0.1:1/classify", "model": "it"}
    terms = {"strict": check(Settings, {"reward": {"strict": given}}, where="x").reward["strict"]}
    made = make_score_fn("strict", terms["strict"], terms["strict"].options, Context(None, "online.runs.a"))
    assert isinstance(made, ServedModel) and made._where == "online.runs.a.reward.strict"
