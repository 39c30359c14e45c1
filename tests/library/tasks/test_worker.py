"""The process that runs one task, in this process and started; it gets no secrets that are not listed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.tasks import worker
from posttrain.tasks.worker import _steps, _write, rollout_from, rollout_to, worker_environment, worker_pool
from tests.library.models.tiny import rollout_of

OWN = """
from posttrain.tasks.step import Step
from posttrain.tasks.task import Task

asking = Task(reply=lambda rollout: Step([{"role": "user", "content": rollout.text + "!"}], done=True))
talking = Task(reply=lambda rollout: Step([{"role": "user", "content": rollout.text + "?"}], reward=0.25))
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/own_task_worker.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_task_worker", raising=False)


def test_a_task_takes_its_next_step() -> None:
    found = _steps({"task": "own_task_worker:talking"})(rollout_to(rollout_of("5")))
    assert found.keys() == {"step", "seconds"} and found["seconds"] >= 0
    assert found["step"] == {
        "messages": [{"role": "user", "content": "5?"}], "reward": 0.25, "done": False, "info": {},
    }  # fmt: skip


def test_a_rollout_survives_as_plain_data() -> None:
    prompt = Prompt("p1", [{"role": "user", "content": "?"}], [1, 2], "4", {"a": 1}, "task", "problem", {"v": 2})
    turns = ({"role": "assistant", "content": "4"}, {"role": "user", "content": "so"})
    rollout = Rollout(prompt, 3, TokenRow([1, 2], [3, 4], [True, False]), [-0.5], "4", "length", turns, "step 3",
                      turn_rewards=(0.5,), info={"b": [2]})  # fmt: skip
    plain = rollout_to(rollout)
    assert json.loads(json.dumps(plain)) == plain
    assert plain["row"] == [[1, 2], [3, 4], [True, False]] and plain["turn_rewards"] == [0.5]
    again = rollout_from(json.loads(json.dumps(plain)))
    assert rollout_to(again) == plain and again.prompt == prompt and again.turn_rewards == (0.5,)
    assert rollout_from(rollout_to(replace(rollout, row=TokenRow([1], [2])))).row == TokenRow([1], [2])


def test_an_answer_is_one_line() -> None:
    answers = io.StringIO()
    _write(answers, {"ready": True})
    assert answers.getvalue() == '{"ready": true}\n'


PIPES = """
import sys
from posttrain.tasks.worker import _private_pipes
requests, answers = _private_pipes()
print("printed", repr(sys.stdin.read()), flush=True)
answers.write("answer to " + requests.read())
answers.close()
"""


def test_what_a_reward_prints_goes_to_stderr_and_its_input_is_empty() -> None:
    root = Path(worker.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", PIPES], input="question", capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(root)})  # fmt: skip
    assert (done.stdout, done.stderr) == ("answer to question", "printed ''\n")


def test_a_process_takes_a_step() -> None:
    setup = {"task": "own_task_worker:asking", "label": "task 'own_task_worker:asking'"}
    pool = worker_pool("posttrain.tasks.worker", setup, 1)
    answer = pool.ask(rollout_to(rollout_of("so")), 60.0)
    assert answer["step"]["messages"] == [{"role": "user", "content": "so!"}] and answer["step"]["done"] is True


def test_an_error_at_the_start_is_that_of_this_process() -> None:
    setup = {"task": "own_task_worker:missing", "label": "task 'own_task_worker:missing'"}
    with pytest.raises(ParamsError, match="missing"):
        worker_pool("posttrain.tasks.worker", setup, 1).ask(rollout_to(rollout_of("so")), 60.0)


def test_secrets_are_passed_only_if_they_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MY_SERVICE_TOKEN", "OTHER_TOKEN"):
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("PLAIN", "value")
    found = worker_environment(["MY_SERVICE_TOKEN"])
    assert "MY_SERVICE_TOKEN" in found and "PLAIN" in found and "OTHER_TOKEN" not in found
