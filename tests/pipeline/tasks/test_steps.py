"""Steps of tasks: rewards and reports of each turn, tasks that hang or fail, and which tokens are trained."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from posttrain.algorithms.objective import Objective
from posttrain.data.columns import with_ids
from posttrain.errors import RewardError, TableError
from posttrain.evaluate.completions import select_text
from posttrain.evaluate.metrics import rollouts_table
from posttrain.formulas.distill import forward_kl
from posttrain.laws.cases import Shape, build
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_model, load_scorer, load_tokenizer
from posttrain.pipeline.tables.store import check_table
from posttrain.rewards.catalog import REWARDS
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.reward import Context, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.rewards.turns import TurnsOptions, rewards_by_token
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Completion, Request, SamplingParams, generate_rollouts
from posttrain.text.chat import ChatText
from posttrain.text.packing import pack
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.step import Batch, StepClosure
from tests.library.laws.subjects import subjects
from tests.library.models.tiny import tiny_folder, tiny_model

TASKS = """
import os, time
from posttrain.tasks.step import Step
from posttrain.tasks.task import Task

def said(rollout):
    return sum(turn["role"] == "assistant" for turn in rollout.turns)

def go_on(rollout, **step):
    return Step([{"role": "tool", "content": f"{said(rollout)}!"}], **step)

def paid(rollout):
    turn = said(rollout)
    info = {"turns": turn, f"only {turn}": rollout.prompt.id}
    return go_on(rollout, reward=float(turn), info=info, done=turn == 2 + rollout.sample % 2)

def hang(rollout):
    if rollout.sample == 1:
        time.sleep(60)
    return go_on(rollout, done=said(rollout) == 2)

def slow(rollout):
    time.sleep(0.4)
    return go_on(rollout)

def die(rollout):
    if rollout.sample == 1:
        os._exit(3)
    return go_on(rollout, done=True)

paying = Task(reply=paid)
limited = Task(reply=lambda rollout: go_on(rollout, reward=1.0), turns=2)
hanging = Task(reply=hang, seconds=1.0)
slowing = Task(reply=slow, seconds=1.0)
dying = Task(reply=die)
raising = Task(reply=lambda rollout: rollout.nothing)
odd = Task(reply=lambda rollout: [{"role": "user", "content": 7}])
number = Task(reply=lambda rollout: 7)
no_json = Task(reply=lambda rollout: go_on(rollout, info={"when": object()}))
infinite = Task(reply=lambda rollout: go_on(rollout, reward=float("inf")))
"""
PARAMS = SamplingParams(max_tokens=12, temperature=0.8)
DEVICE = Runtime(DeviceParams(threads=1))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    (folder / "custom").mkdir()
    (folder / "custom/own_steps.py").write_text(TASKS)
    return tiny_folder(folder)


@pytest.fixture(autouse=True)
def _workspace(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="session")
def text(model: Path) -> ChatText:
    """Every fourth token ends a completion, so that a model that knows nothing ends its turns."""
    return ChatText(load_tokenizer(model), str(model), range(0, 300, 4))


class Recorder(LocalSampler):
    """The sampler, and all that it was asked and answered."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: list[tuple[Request, Completion]] = []

    def generate(self, requests: Sequence[Request], *given: Any, **named: Any) -> list[Completion]:
        found = super().generate(requests, *given, **named)
        self.seen += zip(requests, found, strict=True)
        return found


@pytest.fixture(scope="session")
def sampler(model: Path, text: ChatText) -> Recorder:
    return Recorder(load_model(model), text.stops, DEVICE, "w")


def drawn(sampler: Recorder, text: ChatText, name: str, samples: int = 4) -> list[Rollout]:
    asked = [[{"role": "user", "content": f"{n}+{n}"}] for n in range(3)]
    task = f"own_steps:{name}" if name else ""
    prompts = [Prompt(f"p{n}", turns, text.prompt(turns), task=task, problem=f"p{n}") for n, turns in enumerate(asked)]
    sampler.seen.clear()
    return generate_rollouts(sampler, text, prompts, PARAMS, 3, samples=samples)


def reward_of(options: TurnsOptions | None = None, weight: float = 1.0) -> RewardSum:
    term = WeightedReward(reward=REWARDS["turns"], weight=weight, options=options or TurnsOptions())
    return RewardSum({"turns": term}, Context(None, "here"))


def said(rollout: Rollout) -> int:
    return sum(turn["role"] == "assistant" for turn in rollout.turns)


@pytest.mark.slow
def test_each_turn_has_its_reward_and_the_reports_are_joined(sampler: Recorder, text: ChatText) -> None:
    rollouts = drawn(sampler, text, "paying")
    whole = [one for one in rollouts if not one.truncated]
    assert {said(one) for one in whole} == {2, 3}
    for one in whole:
        turns = said(one)
        assert turns == 2 + one.sample % 2 and one.turns[-1]["role"] == "assistant" and one.finish == "stop"
        assert list(one.turn_rewards) == [float(turn) for turn in range(1, turns + 1)]
        assert one.info == {"turns": turns, **{f"only {turn}": one.prompt.id for turn in range(1, turns + 1)}}
    for one in (one for one in rollouts if one.truncated):
        assert len(one.turn_rewards) == said(one) and one.turn_rewards[-1] == 0.0, "a cut completion earns nothing"


@pytest.mark.slow
def test_the_most_turns_end_an_episode_with_a_name_of_their_own(sampler: Recorder, text: ChatText) -> None:
    whole = [one for one in drawn(sampler, text, "limited") if not one.truncated]
    assert whole and all(one.finish == "turns" and said(one) == 2 and one.turn_rewards == (1.0, 1.0) for one in whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said_why"),
    [
        ("raising", "`reply` of task 'own_steps:raising' raised AttributeError: .*own_steps.py line"),
        ("odd", "returned the turn {'role': 'user', 'content': 7}"),
        ("number", "returned 7. Return a Step"),
        ("no_json", "raised TypeError: Object of type object is not JSON serializable"),
        ("infinite", "returned the reward inf"),
    ],
)
def test_a_task_that_fails_fails_the_episode_and_never_counts_as_0(
    sampler: Recorder, text: ChatText, name: str, said_why: str
) -> None:
    scored = reward_of().score(drawn(sampler, text, name))
    failed = [one for one in scored if not one.truncated]
    assert failed and all(one.finish == one.scores["turns"].status == "error" for one in failed)
    with pytest.raises(RewardError, match=said_why):
        FailureLimit(reward_of(), 0.1, "here").check(scored)


@pytest.mark.slow
def test_a_task_that_hangs_costs_its_own_episodes_alone(
    sampler: Recorder, text: ChatText, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run continues without them; they are counted and reported."""
    started = time.monotonic()
    scored = reward_of().score(drawn(sampler, text, "hanging", samples=8))
    assert time.monotonic() - started < 50
    late = {place for place, one in enumerate(scored) if one.finish == "timeout"}
    assert late and all(scored[place].sample == 1 for place in late)
    assert FailureLimit(reward_of(), 0.5, "here").check(scored) == [n for n in range(len(scored)) if n not in late]
    assert "task 'own_steps:hanging' took longer than 1 s" in capsys.readouterr().err


@pytest.mark.slow
def test_the_time_limit_is_that_of_all_turns_together(sampler: Recorder, text: ChatText) -> None:
    late = [one for one in drawn(sampler, text, "slowing", samples=1) if one.finish == "timeout"]
    assert late and all(said(one) > 1 for one in late), "each turn of 0.4 s fits into 1 s, and three do not"


@pytest.mark.slow
def test_a_task_that_kills_its_process_fails_the_episode(sampler: Recorder, text: ChatText) -> None:
    for one in drawn(sampler, text, "dying"):
        assert one.truncated or (one.finish == "error") == (one.sample == 1), one.finish
        assert one.finish != "error" or "exit status 3" in one.reason
        assert one.info.get("failure", "") == one.reason, "tables keep info"


def test_tokens_in_are_tokens_out(sampler: Recorder, text: ChatText) -> None:
    """Prompt and completion ids of a row are what the sampler saw and drew, and what training computes on."""
    rollouts = drawn(sampler, text, "paying")
    turns: dict[str, list[tuple[Request, Completion]]] = {}
    for request, completion in sampler.seen:
        turns.setdefault(request.name.partition(":turn")[0], []).append((request, completion))
    for one in rollouts:
        mine = turns[f"{one.prompt.id}:{one.sample}"]
        request, completion = mine[-1]
        whole = [*one.row.prompt, *one.row.rest]
        assert whole == [*request.ids, *completion.ids] and len(mine) == said(one)
        sampled = [False] * len(whole)
        for request, completion in mine:
            assert whole[: len(request.ids)] == list(request.ids)
            sampled[len(request.ids) : len(request.ids) + len(completion.ids)] = [True] * len(completion.ids)
        mask = one.row.mask or [True] * len(one.row.rest)
        assert [False] * len(one.row.prompt) + list(mask) == sampled
        assert list(one.logps) == [logp for _, completion in mine for logp in completion.logps]
        packed = pack([one.row])
        assert packed.target_M.tolist() == [token for token, own in zip(whole, sampled, strict=True) if own]


def test_one_turn_is_the_default_episode(sampler: Recorder, text: ChatText) -> None:
    """Prompts without a task have the rows, tables and rewards of before: nothing of an episode is in them."""
    rollouts = drawn(sampler, text, "")
    assert all(one.row.mask is None and not one.turn_rewards and not one.info for one in rollouts)
    scored = reward_of().score(rollouts)
    assert {one.scores["turns"].status for one in scored} == {"unparseable"}, "no task gives it rewards"
    assert "info" not in rollouts_table("x", scored, reward_of(), greedy=False).columns


@pytest.mark.slow
def test_a_table_has_the_rewards_of_turns_and_refuses_another_mask(sampler: Recorder, text: ChatText) -> None:
    frame = rollouts_table("x", reward_of().score(drawn(sampler, text, "paying")), reward_of(), greedy=False)
    table = with_ids(frame, "rollouts")
    check_table(table, "rollouts", Path("rollouts.parquet"))
    assert table["turn_rewards"].list.sum().to_list() == table["reward"].to_list()
    hidden = with_ids(select_text(frame, "none"), "rollouts")
    check_table(hidden, "rollouts", Path("rollouts.parquet"))
    assert hidden["info"].null_count() == hidden.height, "what a step reports may quote the text"
    first, *others = frame.to_dicts()
    shifted = {**first, "mask": [False, *first["mask"]], "completion_ids": [5, *first["completion_ids"]]}
    wrong = with_ids(pl.DataFrame([shifted, *others], schema=frame.schema), "rollouts")
    with pytest.raises(TableError, match=r"mask.*must begin and end with a sampled token"):
        check_table(wrong, "rollouts", Path("rollouts.parquet"))


def test_rewards_of_turns_are_on_the_last_token_of_their_turn(sampler: Recorder, text: ChatText) -> None:
    term = WeightedReward(reward=REWARDS["turns"], weight=2.0, options=TurnsOptions(gamma=0.5))
    row = TokenRow([1, 2], [3, 4, 9, 9, 5, 9, 6], [True, True, False, False, True, False, True])
    one = Rollout(Prompt("p", [], [1, 2]), 0, row, [-1.0] * 4, "", "stop", turn_rewards=(1.0, 4.0, 8.0))
    assert rewards_by_token("turns", term, one) == [0.0, 2.0, 4.0, 4.0]
    for one in reward_of(TurnsOptions(gamma=0.5), 2.0).score(drawn(sampler, text, "paying")):
        assert sum(rewards_by_token("turns", term, one)) == pytest.approx(2 * one.scores["turns"].value)


def with_tools(lengths: Sequence[int], draw: random.Random, last: int = 0) -> list[TokenRow]:
    """Rows with so many trained tokens each, tokens of a tool between them, and `last` tool tokens at the end."""
    rows = []
    for length in lengths:
        rest, mask = [], []
        for _ in range(length):
            tool = [draw.randrange(97) for _ in range(draw.randrange(3))] if rest else []
            rest += [*tool, draw.randrange(97)]
            mask += [*(False for _ in tool), True]
        rest += [draw.randrange(97) for _ in range(last)]
        rows.append(TokenRow([draw.randrange(97) for _ in range(3)], rest, [*mask, *(False for _ in range(last))]))
    return rows


def closure(objective: Objective, rows: Callable[[Sequence[int]], list[TokenRow]], policy: Any) -> StepClosure:
    case = build(objective, Shape(seed=2)).cast(torch.float32)
    batch = Batch(rows(case.step.lengths_B.tolist()), case.step)
    prepared = objective.prepare(case.step, dict(case.state))
    models = ModelSet(
        policy,
        DEVICE,
        critic=load_scorer(Path("model")) if "value" in objective.needs else None,
        old=tiny_model(5) if "kl_old" in objective.needs else None,
        teachers=[Teacher(tiny_model(6), forward_kl)] if "teacher_kl" in objective.needs else [],
    )
    return StepClosure(objective, models, batch.with_prepared(prepared.step), state=prepared.state)


LOSSES = {
    name: make
    for name, make in subjects().items()
    if "score" not in make().needs and "pass_at_k" not in name  # in these small groups its advantages are all 0
}


@pytest.mark.parametrize("name", LOSSES)
def test_no_objective_has_a_gradient_from_a_tools_token(name: str) -> None:
    """No prediction of a tool's token is in the loss, so a token that nothing follows may be any other."""
    found = []
    for other in (0, 1):
        policy, draw = tiny_model(1), random.Random(4)
        rows = with_tools_ending(draw, other)
        seen: list[torch.Tensor] = []
        policy.model.norm.register_full_backward_hook(lambda module, grads, outputs, seen=seen: seen.append(outputs[0]))
        step = closure(LOSSES[name](), rows, policy)
        metrics = step()
        gradients = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
        found.append((metrics, gradients))
        packed = pack(step.batch.rows)
        flat = torch.stack([one.reshape(-1, one.shape[-1]) for one in seen]).abs().sum(0)
        sources = torch.zeros(len(flat), dtype=torch.bool)
        sources[packed.source_M] = True
        assert not flat[~sources].any(), "a prediction of a token that the policy did not sample has a gradient"
        assert flat[sources].any()
    (metrics, gradients), (others, changed) = found
    assert metrics == others
    assert all(torch.equal(one, two) for one, two in zip(gradients, changed, strict=True))


def with_tools_ending(draw: random.Random, other: int) -> Callable[[Sequence[int]], list[TokenRow]]:
    """The rows of `with_tools` with two tool tokens at the end: those drawn, or others."""

    def rows(lengths: Sequence[int]) -> list[TokenRow]:
        made = with_tools(lengths, draw, last=2)
        return [
            TokenRow(one.prompt, [*one.rest[:-2], *((t + other) % 97 for t in one.rest[-2:])], one.mask) for one in made
        ]

    return rows
