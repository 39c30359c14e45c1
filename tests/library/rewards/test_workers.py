"""Rewards in worker processes: a call that hangs, crashes or raises fails alone, and no process outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ParamsError, RewardError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rewards import score
from posttrain.rewards.catalog import Rewards
from posttrain.rewards.reward import Context, as_score
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.settings.params import Params, check
from posttrain.tasks.worker import rollout_from, rollout_to
from tests.library.models.tiny import rollout_of

OWN = '''
import asyncio, os, signal, sys, time
from pydantic import Field
from posttrain.settings.params import Params
from posttrain.rewards.reward import rule
from posttrain.rollout import Score

@rule()
def faulty(rollout, options):
    """Does what the completion says."""
    print("printed", rollout.text)
    if rollout.text == "hang":
        while True: pass
    if rollout.text == "sleep":
        time.sleep(60)
    if rollout.text == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if rollout.text == "exit":
        os._exit(0)
    if rollout.text == "raise":
        raise KeyError("no such key")
    if rollout.text == "nan":
        return float("nan")
    if rollout.text == "none":
        return None
    if rollout.text == "abstain":
        return Score(0.0, "unparseable", "it says so")
    return len(rollout.text) + sys.stdin.readable() * 0

@rule()
async def slow(rollout, options):
    await asyncio.sleep(0.2 if rollout.text == "ok" else 60)
    return 1.0

async def all_at_once(rollouts):
    await asyncio.sleep(0)
    return [float(len(rollouts))] * len(rollouts)

asked = []

def ranked(rollouts):
    asked.append(rollouts)
    if len(asked) == 1:
        return [Score(0.0, "infrastructure", "it is down"), *[3.0] * (len(rollouts) - 1)]
    return [float(len(rollouts))] * len(rollouts)

loops = set()

@rule()
async def in_one_loop(rollout, options):
    loops.add(id(asyncio.get_running_loop()))
    return float(len(loops) == 1 and not asyncio.get_running_loop().is_closed())

def few(rollouts):
    return [1.0]

@rule()
def of_numpy(rollout, options):
    import numpy as np
    return Score(np.float32(0.5), steps=[(np.int64(1), np.float32(0.5))])

class Weight(Params):
    most: int = Field(2, description="most")

@rule(Weight)
def with_options(rollout, options):
    return float(options.most)

class Keyed(Params):
    key: str = Field("", description="the name of a variable")

@rule(Keyed)
def secrets(rollout, options):
    names = "MY_SERVICE_TOKEN", "PGPASSWORD", "POSTTRAIN_SERVE_KEY", "LOOKUP_KEY"
    return Score(0.0, answer=" ".join(name for name in names if name in os.environ))

started = os.getpid()

@rule()
def child(rollout, options):
    """Starts a process that outlives the call, and hangs."""
    import subprocess
    subprocess.Popen(["sleep", "321"])
    time.sleep(60)
'''


class Settings(Params):
    """A section with rewards."""

    reward: Rewards


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/faulty_rewards.py").write_text(OWN)
    yield tmp_path
    sys.modules.pop("faulty_rewards", None)


def scores(name: str, *texts: str, **settings: Any) -> list[Score]:
    """The scores of one of the rewards above."""
    return scores_by(reward_of(name, **settings), *texts)


def reward_of(name: str, wait_above: float | None = None, **settings: Any) -> RewardSum:
    """One of the rewards above."""
    terms = check(Settings, {"reward": {f"faulty_rewards:{name}": {"weight": 1.0, **settings}}}, where="here").reward
    return RewardSum(terms, Context(Runtime(DeviceParams()), "online.runs.a"), wait_above)


def scores_by(reward: RewardSum, *texts: str) -> list[Score]:
    """The scores of its only part."""
    (name,) = reward.terms
    return [one.scores[name] for one in reward.score([rollout_of(text) for text in texts])]


@pytest.mark.slow
def test_each_call_fails_alone(workspace: Path) -> None:
    texts = "four", "raise", "hang", "abc", "crash", "nan", "none", "exit", "abstain", "sleep", "x"
    found = scores("faulty", *texts, timeout=1.0)
    ok, error, slow, dead = "ok", "error", "timeout", "infrastructure"
    assert [one.status for one in found] == [ok, error, slow, ok, dead, error, error, dead, "unparseable", slow, ok]
    assert [found[i].value for i in (0, 3, 10)] == [4.0, 3.0, 1.0]
    assert "KeyError: 'no such key' (faulty_rewards.py line" in found[1].reason
    assert found[2].reason == "it took longer than 1 s"
    assert "killed by signal 11" in found[4].reason and "exit status 0" in found[7].reason


@pytest.mark.slow
def test_a_completion_that_our_own_parser_is_slow_on_is_wrong(workspace: Path) -> None:
    """As a failure it would leave its group, and so cost nothing."""
    setting = {"correct": {"answer": "regex", "pattern": "(a+)+$", "timeout": 1.0}}
    terms = check(Settings, {"reward": setting}, where="online.runs.a").reward
    judged = RewardSum(terms, Context(Runtime(DeviceParams()), "online.runs.a"))
    (score,) = (reward.scores["correct"] for reward in judged.score([rollout_of("a" * 60 + "b", "a")]))
    assert (score.value, score.status, score.reason) == (0.0, "unparseable", "it took longer than 1 s")


@pytest.mark.slow
def test_a_process_that_died_between_two_calls_is_replaced(workspace: Path) -> None:
    name = "faulty_rewards:faulty"
    terms = check(Settings, {"reward": {name: {"workers": 1}}}, where="x").reward
    judged = RewardSum(terms, Context(Runtime(DeviceParams()), "x"))
    long = replace(rollout_of("four"), turns=({"role": "assistant", "content": "x" * 1_000_000},))
    (first,) = judged.score([long])
    for pid in children(os.getpid()):
        if "posttrain.rewards.worker" in read(Path(f"/proc/{pid}/cmdline")):
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: not alive(pid))
    (second,) = judged.score([long])
    assert first.scores[name].value == second.scores[name].value == 4.0


@pytest.mark.slow
def test_an_async_function_runs_several_calls_at_a_time(workspace: Path) -> None:
    scores("slow", "ok")  # starts the processes of this reward, which is not what is timed
    begun = time.monotonic()
    found = scores("slow", *["ok"] * 40, "late", *["ok"] * 7, workers=1, concurrency=48, timeout=2.0)
    assert [one.status for one in found] == ["ok"] * 40 + ["timeout"] + ["ok"] * 7
    assert time.monotonic() - begun < 0.2 * 47, "one after the other they take longer than this"


def test_an_async_function_keeps_its_connections_between_calls(workspace: Path) -> None:
    reward = reward_of("in_one_loop", workers=1)
    assert [scores_by(reward, "a")[0].value for _ in range(3)] == [1.0] * 3


def test_what_is_compared_is_asked_again_as_a_whole(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "PAUSE_S", 0.05)
    found = scores_by(reward_of("ranked", wait_above=0.1), "a", "b", "c")
    assert [one.value for one in found] == [3.0] * 3


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({}, ""),
        ({"env": ["MY_SERVICE_TOKEN"]}, "MY_SERVICE_TOKEN"),
        ({"env": ["PGPASSWORD"], "key": "LOOKUP_KEY"}, "PGPASSWORD LOOKUP_KEY"),
    ],
)
def test_workers_get_the_secrets_that_their_options_name(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], given: str
) -> None:
    for name in ("MY_SERVICE_TOKEN", "PGPASSWORD", "POSTTRAIN_SERVE_KEY", "LOOKUP_KEY"):
        monkeypatch.setenv(name, f"value-of-{name}")
    assert scores("secrets", "a", **settings)[0].answer == given


def test_a_variable_that_is_not_set_is_named(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_SERVICE_TOKEN", raising=False)
    with pytest.raises(RewardError, match=r"online.runs.a.faulty_rewards:secrets.env: .*MY_SERVICE_TOKEN is not set"):
        scores("secrets", "a", env=["MY_SERVICE_TOKEN"])


def test_numbers_of_numpy_in_a_score_are_plain_ones(workspace: Path) -> None:
    assert scores("of_numpy", "a")[0].plain == (0.5, "ok", "", "", [[1, 0.5]])


@pytest.mark.slow
def test_a_function_of_all_rollouts_gets_them_all(workspace: Path) -> None:
    assert [one.value for one in scores("all_at_once", "a", "b", "c")] == [3.0] * 3
    assert {one.status for one in scores("few", "a")} == {"ok"}


def test_options_reach_the_worker(workspace: Path) -> None:
    assert scores("with_options", "a", most=7)[0].value == 7.0
    with pytest.raises(ParamsError, match="timeout"):
        scores("with_options", "a", timeout=0.0)


def test_a_rollout_survives_the_way_to_a_worker() -> None:
    prompt = Prompt("p", [{"role": "user", "content": "ü?"}], [1, 2], "7", {"keys": ["a", 1.5]}, "sums", "x")
    turns = ({"role": "assistant", "content": "7"},)
    row, steps = TokenRow([1, 2], [3, 4], [True, False]), {"turn_rewards": (0.5, 1.0), "info": {"calls": [1]}}
    one = Rollout(prompt, 3, row, [-0.5], "7", "length", turns, "step 2", **steps)
    back = rollout_from(rollout_to(one))
    assert rollout_to(back) == rollout_to(one)
    texts = rollout_to(one, tokens=False)
    assert texts["row"] == [[], [], None] and texts["logps"] == [] == texts["prompt"]["ids"]
    left_out = ("row", "logps", "prompt")
    assert {**rollout_to(one), **{key: texts[key] for key in left_out}} == texts
    assert replace(back, turns=turns) == replace(one, prompt=back.prompt) and back.prompt == prompt


@pytest.mark.slow
def test_what_a_hanging_call_has_started_is_killed_too(workspace: Path) -> None:
    assert scores("child", "a", timeout=1.0)[0].status == "timeout"
    wait_for(lambda: not running("sleep 321"), 5.0)


@pytest.mark.slow
def test_no_worker_outlives_a_parent_that_is_killed(workspace: Path) -> None:
    script = """
from tests.library.rewards.test_workers import scores
print("ready", flush=True)
scores("faulty", "hang", timeout=60.0)
"""
    root = str(Path(__file__).parents[3])
    env = {**os.environ, "PYTHONPATH": root}
    parent = subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdout.readline() == b"ready\n"
    wait_for(lambda: len(children(parent.pid)) >= 1)
    workers = children(parent.pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not any(alive(pid) for pid in workers))


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := read(folder / "stat")) and int(stat.rpartition(")")[2].split()[1]) == pid:
            found.append(int(folder.name))
    return found


def running(command: str) -> bool:
    """Whether a process has this command line."""
    return any(
        command in read(folder / "cmdline").replace("\0", " ")
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit()
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1]


def read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the process has ended
        return ""


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not hold in time"
        time.sleep(0.05)


@pytest.mark.parametrize("returned", [None, "1.0", [1.0]])
def test_what_is_no_number_is_an_error_that_shows_it(returned: Any) -> None:
    found = as_score(returned)
    assert found.status == "error" and found.reason == f"it returned {returned!r}. Return a number or a Score"


def test_a_score_without_a_reason_or_an_answer_has_empty_ones() -> None:
    found = as_score(Score(1.0, reason=None, answer=None))  # type: ignore[arg-type]
    assert (found.reason, found.answer) == ("", "")
    assert as_score(Score(1.0, answer=0)).answer == "0"  # type: ignore[arg-type]
