"""The reward `likelihood` against `posttrain serve`: log-probs of a completion's text under another model."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest
import yaml

from posttrain.errors import RewardError
from posttrain.models.files.store import load_policy, load_tokenizer, save_model
from posttrain.models.forward.forward import score_tokens
from posttrain.rewards.likelihood import Likelihood, LikelihoodOptions
from posttrain.rollout import Finish, Prompt, Rollout, TokenRow
from posttrain.settings.params import check
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.text.packing import pack
from tests.library.models.tiny import tiny_folder, tiny_model
from tests.marks import slow_except
from tests.pipeline.serve.served import Served
from tests.workspace import dvc

KEY = "a-secret-of-the-test"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("policy"), seed=0)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with other weights and another tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    train_tokenizer(["What is it? It is 5."] * 9, BpeParams(vocabulary=280), folder / "tokenizer")
    size = len(load_tokenizer(folder / "tokenizer"))
    save_model(tiny_model(1, vocabulary=size), folder / "model", folder / "tokenizer")
    return folder / "model"


class Servers(dict[Path, Served]):
    """The servers of models, each started when it is first asked for."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def __missing__(self, model: Path) -> Served:
        self[model] = Served(model, self._cache, POSTTRAIN_SERVE_KEY=KEY)
        return self[model]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    started = Servers(tmp_path_factory.mktemp("cache"))
    yield started
    for server in started.values():
        server.end()


def asking(served: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Likelihood:
    monkeypatch.setenv("TEACHER_KEY", KEY)
    given = {"url": servers[served].url, "model": str(served), "key": "TEACHER_KEY", "retries": 0, **options}
    ends = ChatText(load_tokenizer(served)).stops.tokens
    return Likelihood(check(LikelihoodOptions, given, where="likelihood"), "online.runs.a.reward.likelihood", ends)


def drawn(policy: Path, answer: str, finish: Finish) -> Rollout:
    """A completion with the log-probs that the policy draws its tokens with."""
    model, text = load_policy(policy), ChatText(load_tokenizer(policy))
    messages = [{"role": "user", "content": "What is 7 times 8?"}]
    row = TokenRow(text.prompt(messages), tokens(text, answer, finish))
    logps = score_tokens(model, pack([row]))[0].tolist()
    return Rollout(Prompt(answer, messages, row.prompt), 0, row, logps, answer, finish)


def tokens(text: ChatText, answer: str, finish: Finish) -> list[int]:
    ids: list[int] = text.tokenizer(answer, add_special_tokens=False)["input_ids"]
    return [*ids, text.stop] if finish == "stop" else ids


@pytest.mark.parametrize("finish", slow_except(["stop"], get_args(Finish)[:2]))
def test_the_policy_itself_is_no_likelier_than_it_was_drawn(
    finish: Finish, policy: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = [drawn(policy, text, finish) for text in ("It is 56.", "7*8=56\n#### 56", "é 五", "")]
    scores = asking(policy, servers, monkeypatch)(rollouts)
    assert [score.status for score in scores] == ["ok"] * len(rollouts)
    assert max(abs(score.value) for score in scores) < 1e-3


def test_an_end_that_was_not_sampled_is_not_counted(
    policy: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = replace(drawn(policy, "It is 56.", "length"), finish="stop")  # by a stop string
    teacher = asking(policy, servers, monkeypatch)
    assert abs(teacher([stopped])[0].value) < 1e-3
    unknown = teacher([replace(stopped, logps=())])[0]
    assert unknown.status == "error" and "relative: false" in unknown.reason


@pytest.mark.slow
@pytest.mark.parametrize("finish", get_args(Finish)[:2])
def test_another_tokenizer_s_log_prob_is_that_of_a_forward_pass(
    finish: Finish, policy: Path, other: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = load_policy(other), ChatText(load_tokenizer(other))
    rollout = drawn(policy, "It is 56.", finish)
    row = TokenRow(text.prompt(rollout.prompt.messages), tokens(text, rollout.text, finish))
    assert [*row.rest] != [*rollout.row.rest]
    expected, drawn_with = math.fsum(score_tokens(model, pack([row]))[0].tolist()), math.fsum(rollout.logps)
    plain = asking(other, servers, monkeypatch, relative=False)([rollout])[0].value
    relative = asking(other, servers, monkeypatch)([rollout])[0].value
    assert plain == pytest.approx(expected, abs=1e-3) and relative == pytest.approx(expected - drawn_with, abs=1e-3)


@pytest.mark.slow
def test_what_it_cannot_score_is_said(policy: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = drawn(policy, "It is 56.", "stop")
    with pytest.raises(RewardError, match="answers HTTP 404"):
        asking(policy, servers, monkeypatch, model="another")([rollout])
    down = asking(policy, servers, monkeypatch, url="http://127.0.0.1:9/v1")([rollout])
    assert down[0].status == "infrastructure"
    turns = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(RewardError, match="further turns"):
        asking(policy, servers, monkeypatch)([replace(rollout, turns=turns)])
    status, said = servers[policy].ask(
        "/chat/completions", {"model": str(policy), "messages": [], "prompt_logprobs": 0}
    )
    assert status == 400 and "messages" in str(said)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_policy_learns_a_served_one_by_text(
    own_workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RLOO with this reward alone brings the SFT model of the smoke pipeline near its GRPO model."""
    assert dvc(own_workspace, "repro", "online@grpo").returncode == 0
    teacher = tmp_path / "teacher"
    shutil.copytree(own_workspace / "models/online/grpo", teacher)
    served = Served(teacher, tmp_path, POSTTRAIN_SERVE_KEY=KEY)
    try:
        params = yaml.safe_load((own_workspace / "params.yaml").read_text(encoding="utf-8"))
        reward = {"likelihood": {"url": served.url, "model": str(teacher), "key": "TEACHER_KEY"}}
        run = {**params["online"]["runs"]["grpo"], "algorithm": "rloo", "kl": "none", "reward": reward}
        params["online"]["runs"]["text"] = {**run, "rollout": {**run["rollout"], "rounds": 12}}
        (own_workspace / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
        monkeypatch.setenv("TEACHER_KEY", KEY)
        done = dvc(own_workspace, "repro", "online@text")
        assert done.returncode == 0, done.stdout
    finally:
        served.end()
    rewards = pl.read_csv(own_workspace / "plots/online/text.csv")["reward"].drop_nulls().to_list()
    first, last = (sum(some) / len(some) for some in (rewards[:3], rewards[-3:]))
    assert first < 0 and last > 0.5 * first, rewards
