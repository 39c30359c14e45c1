"""The tasks `calculator` and `guess`: what their tools answer, what they pay, and whether policies learn them."""

from __future__ import annotations

import csv
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.kills import prepared, torture
from benchmarks.faults.processes import Server
from benchmarks.recipes import measure
from posttrain.pipeline.runs.task_tables import generated
from posttrain.pipeline.toy_tasks.turns.arithmetic import LONGEST, calculate
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.tasks.step import Step, take_step
from posttrain.tasks.task import load_task


def written(draw: random.Random, depth: int) -> str:
    """A random expression; every number is a Fraction when Python evaluates it."""
    if not depth:
        return str(draw.randrange(100))
    left, right = written(draw, depth - 1), written(draw, draw.randrange(depth))
    inner = f"{left} {draw.choice('+-*/')} {right}"
    return f"({inner})" if draw.random() < 0.5 else f"-{inner}" if draw.random() < 0.2 else inner


def test_the_calculator_agrees_with_python() -> None:
    import re

    draw = random.Random(0)
    known = 0
    for expression in (written(draw, draw.randrange(4)) for _ in range(2000)):
        if len(expression) > LONGEST:
            continue
        try:
            expected = eval(re.sub(r"[0-9]+", r"Fraction(\g<0>)", expression), {"Fraction": Fraction})
        except ZeroDivisionError:
            with pytest.raises(ValueError, match="division by zero"):
                calculate(expression)
            continue
        assert calculate(expression) == expected, expression
        known += 1
    assert known > 1000


@pytest.mark.parametrize(
    "expression", ["", "1+", "(1", "1)", "1 2", "2**9", "1.5", "x", "__import__('os')", "1" * 65, "(" * 64, "1/0"]
)
def test_the_calculator_refuses_everything_else(expression: str) -> None:
    with pytest.raises(ValueError, match=r"unexpected|missing|longer|closed|zero"):
        calculate(expression)


def asked(task: str, question: str, answer: str, said: list[str]) -> Step:
    """The last step after these completions, each with what the task answered to those before."""
    prompt = Prompt("p", [{"role": "user", "content": question}], [1], answer, task=task)
    turns: list[Any] = []
    info: dict[str, Any] = {}
    for text in said:
        turns.append({"role": "assistant", "content": text})
        rollout = Rollout(prompt, 0, TokenRow([1], [2]), [0.0], text, "stop", tuple(turns), info=info)
        step = take_step(load_task(task).reply, rollout)
        assert isinstance(step, Step), step
        turns, info = [*turns, *step.messages], {**info, **step.info}
    return step


def test_a_call_gets_its_result_and_any_other_completion_is_the_answer() -> None:
    question = "What is 47 times 86 plus 9?"
    (turn,) = asked("calculator", question, "4051", ["calc 47*86+9"]).messages
    assert turn == {"role": "tool", "content": "4051"}
    wrong = asked("calculator", question, "4051", ["calc 47*86+9", "calc 47**"])
    assert wrong.messages[0]["content"].startswith("error: ") and wrong.info == {"calls": 2, "call_errors": 1}
    assert asked("calculator", question, "4051", ["calc 47*86+9", "#### 4051"]).done


def test_a_guess_gets_a_hint_and_costs_something_if_it_cannot_be_right() -> None:
    def last(*said: str) -> tuple[str, float, bool]:
        step = asked("guess", "Guess my number from 3 to 14.", "10", list(said))
        return (step.messages[0]["content"] if step.messages else ""), step.reward, step.done

    assert last("8") == ("higher", 0.0, False)
    assert last("8", "12") == ("lower", 0.0, False)
    assert last("8", "12", "5") == ("higher", -1.0, False), "8 was too low already"
    assert last("8", "12", "15")[1] == last("8", "many")[1] == -1.0
    assert last("8", "10") == ("", 0.0, True)


@pytest.mark.parametrize("name", ["calculator", "guess"])
def test_problems_of_the_test_split_are_in_no_other_table(name: str) -> None:
    generator = load_task(name).generator
    assert generator is not None
    params = generator.params(documents=60, demonstrations=60, prompts=60, test_prompts=30, heldout_prompts=20)  # type: ignore[call-arg]
    tables = generated(name, generator, params)
    hidden = set(tables["prompts"].filter(split="test")["problem"])
    assert len(hidden) == 30 and not hidden & set(tables["chat"]["problem"])
    assert not hidden & set(tables["prompts"].filter(split="train")["problem"])
    for row in tables["chat"].filter(split="train").iter_rows(named=True):
        answers = [turn["content"] for turn in row["messages"] if turn["role"] == "assistant"]
        prompt = row["messages"][0]["content"]
        right = row["problem"].partition(":")[2] if name == "guess" else str(calculate(row["problem"]))
        assert answers[-1].removeprefix("#### ") == right and not asked(name, prompt, right, answers).messages


ONLINE = """    guess:
      <<: *on
      data: guess/prompts
      algorithm: ppo
      reward: {turns: 1.0, correct: 1.0}
      rollout: {rounds: 3, prompts: 4, group_size: 4, minibatches: 2, epochs: 2, replay: {groups: 2}}
      checkpoint_every: 1
"""


@pytest.mark.slow
def test_a_killed_run_of_episodes_ends_with_the_same_bytes(
    stage_server: Server, smoke_workspace: Path, tmp_path: Path
) -> None:
    """Masks and rewards of turns are in the checkpoint: with other ones the weights would differ."""
    workspace = prepared(smoke_workspace, tmp_path / "w")
    params = (workspace / "params.yaml").read_text(encoding="utf-8")
    task = "    guess: {task: guess, documents: 40}\n  files:\n"
    params = params.replace("  files:\n", task, 1).replace("\ndistill:\n", f"{ONLINE}\ndistill:\n", 1)
    (workspace / "params.yaml").write_text(params, encoding="utf-8")
    assert stage_server.run(workspace, "data_tasks guess").status == 0
    tally = torture(stage_server, workspace, "online guess", 10, seed=3)
    assert not tally.faults and tally.compared and tally.resumed, tally
    with (workspace / "plots/online/guess.csv").open(encoding="utf-8") as file:
        paid = [float(row["reward_turns"]) for row in csv.DictReader(file)]
    assert min(paid) < -1, "episodes should have several turns, each of which wastes a guess"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["calculator", "guess"])
def test_grpo_learns_whole_episodes(name: str, tmp_path: Path) -> None:
    """Held-out success rises over SFT, with the seed that gained least; docs/reports/recipes.md has three."""
    found = measure(name, 2, tmp_path)
    assert found["grpo"]["score"] - found["sft"]["score"] > 0.05
