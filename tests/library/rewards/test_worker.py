"""The process that runs one reward, in this process; tests/library/rewards/test_workers.py starts it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from posttrain.rewards.worker import (
    _concurrently,
    _loop,
    _run,
    _scorer,
    _scores,
    _thread,
    concurrently,
    finished,
)
from posttrain.rollout import Rollout, Score
from posttrain.tasks.worker import rollout_to
from tests.library.models.tiny import rollout_of

OWN = """
from posttrain.rewards import rule
from posttrain.rewards.reward import Reward

@rule()
def length(rollout, options):
    return len(rollout.text)

@rule()
async def slowly(rollout, options):
    return len(rollout.text) + 0.5

async def all_at_once(rollouts):
    return [float(len(rollouts))] * len(rollouts)

together = Reward(lambda options, context: all_at_once)
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/own_worker.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_worker", raising=False)


def setup(name: str) -> dict[str, Any]:
    given = {"name": f"own_worker:{name}", "where": "online.runs.a", "options": {}, "called": name}
    return {**given, "timeout": 5.0, "concurrency": 2}


@pytest.mark.parametrize(("name", "values"), [("length", [2.0, 3.0]), ("slowly", [2.5, 3.5]), ("together", [2.0, 2.0])])
def test_rewards_of_each_kind_score(name: str, values: list[float]) -> None:
    rollouts = [rollout_of("ab"), rollout_of("abc")]
    assert _scorer(setup(name))(rollouts) == [Score(value) for value in values]
    plain = [rollout_to(one) for one in rollouts]
    assert _scores(setup(name))(plain) == {"scores": [(value, "ok", "", "", []) for value in values]}


async def seven() -> int:
    return 7


def test_coroutines_run_to_their_end() -> None:
    async def notebook() -> Any:
        return _run(seven())

    assert finished(seven()) == _run(seven()) == 7 and finished([1]) == [1]
    assert asyncio.run(notebook()) == 7, "beside another loop, in a thread"
    assert _thread() is _thread() and _loop() is _loop()
    assert _thread()._max_workers == 1


async def each(rollout: Rollout, options: Any) -> float:
    if rollout.text == "fail":
        raise KeyError("no such key")
    if rollout.text == "late":
        raise TimeoutError("its own")
    if rollout.text == "hang":
        await asyncio.sleep(60)
    return float(len(rollout.text))


def test_each_call_has_its_own_limit() -> None:
    rollouts = [rollout_of(text) for text in ("abc", "fail", "hang", "late")]
    found = concurrently(each, rollouts, None, 0.05, 4)
    assert found[0] == Score(3.0) and found[2] == Score(0.0, "timeout", "it took longer than 0.05 s")
    assert [(one.value, one.status) for one in (found[1], found[3])] == [(0.0, "error")] * 2
    assert "KeyError" in found[1].reason and "its own" in found[3].reason
    assert asyncio.run(_concurrently(each, rollouts[:1], None, 1.0, 1)) == [Score(3.0)]
