"""Episodes: the policy's completions and the tasks' steps between them, each as one row of tokens.

A row only grows at its end, so training sees exactly the tokens that the policy saw and sampled. Tasks by import path
run in worker processes with a time limit. If one hangs or crashes, only its episode ends, not the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from posttrain.distributed import world
from posttrain.isolation.child import DiedError, TooSlowError
from posttrain.isolation.pool import Pool
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.tasks import worker
from posttrain.tasks.step import Step, StepFailure, take_step
from posttrain.tasks.task import TASKS, Task, load_task
from posttrain.tasks.worker import worker_pool
from posttrain.text.chat import ChatText
from posttrain.text.packing import joined_kept

if TYPE_CHECKING:
    from posttrain.sampling.sampler import Completion, SamplingParams


class Episodes:
    """Episodes that run side by side, from their first completions on."""

    def __init__(self, rollouts: Sequence[Rollout], text: ChatText, max_tokens: int, context: int | None) -> None:
        """`max_tokens`: of a completion. `context`: the most tokens of an episode; None: no limit."""
        self.rollouts = list(rollouts)
        self._text, self._max_tokens, self._context = text, max_tokens, context
        self._seconds = [0.0] * len(rollouts)
        """Seconds that the task's code has taken in each episode."""
        self._active = [index for index, rollout in enumerate(rollouts) if load_task(rollout.prompt.task).has_turns]
        self._turn = 0

    def next_turn(self) -> list[int]:
        """Let the tasks answer the last completions. Return the indices of the episodes that continue."""
        self._turn += 1
        steps = self._steps_of_first([index for index in self._active if not self.rollouts[index].truncated])
        for index in self._active:
            step = steps.get(index, Step())  # a completion that was cut off gets none
            self.rollouts[index] = self._with_step(self.rollouts[index], step)
        self._active = [index for index in self._active if self.rollouts[index].turns[-1]["role"] != "assistant"]
        return self._active

    def add(self, places: Sequence[int], completions: Sequence[Completion]) -> None:
        """Append the completions to the episodes with these indices."""
        for index, completion in zip(places, completions, strict=True):
            self.rollouts[index] = _with_completion(self.rollouts[index], completion, self._text)

    def _steps_of_first(self, places: Sequence[int]) -> dict[int, Step | StepFailure]:
        """Return the tasks' steps, which only the first process of the run computes."""
        if world.count() == 1:
            return self._steps(places)
        plain: list[tuple[int, dict[str, Any]]] = world.from_first(
            lambda: [(index, asdict(step)) for index, step in self._steps(places).items()]
        )
        return {index: StepFailure(**step) if "finish" in step else Step(**step) for index, step in plain}

    def _steps(self, places: Sequence[int]) -> dict[int, Step | StepFailure]:
        """Return the tasks' steps for the episodes with these indices."""
        steps: dict[int, Step | StepFailure] = {}
        for name in dict.fromkeys(self.rollouts[index].prompt.task for index in places):
            task, of_task = load_task(name), [index for index in places if self.rollouts[index].prompt.task == name]
            if TASKS.is_foreign(name):
                pool = _pool(name, task.workers)
                steps |= zip(of_task, pool.map(partial(self._ask, pool, task), of_task), strict=True)
            else:
                steps |= {index: take_step(task.reply, self.rollouts[index]) for index in of_task}
        return steps

    def _ask(self, pool: Pool, task: Task, index: int) -> Step | StepFailure:
        """Return a step from a worker process, within the episode's remaining time."""
        rollout, left = self.rollouts[index], task.seconds - self._seconds[index]
        try:
            if left <= 0:
                raise TooSlowError
            answer = pool.ask(worker.rollout_to(rollout), left)
        except TooSlowError:
            return StepFailure("timeout", f"task '{rollout.prompt.task}' took longer than {task.seconds:g} s")
        except DiedError as error:
            return StepFailure("error", f"task '{rollout.prompt.task}': {error}")
        self._seconds[index] += answer["seconds"]
        step = answer["step"]
        return StepFailure(**step) if "finish" in step else Step(**step)

    def _with_step(self, rollout: Rollout, step: Step | StepFailure) -> Rollout:
        """Return the episode with the step's turns, or ended."""
        if isinstance(step, StepFailure):
            return replace(
                rollout, finish=step.finish, reason=step.reason, info={**rollout.info, "failure": step.reason}
            )
        rollout = replace(
            rollout, turn_rewards=(*rollout.turn_rewards, step.reward), info={**rollout.info, **step.info}
        )
        if step.done or not step.messages:
            return rollout
        if self._turn >= load_task(rollout.prompt.task).turns:
            return replace(rollout, finish="turns")
        said, last = [*rollout.prompt.messages, *rollout.turns], rollout.row.rest[-1]
        ids = self._text.reply(said, step.messages, last, rollout.prompt.variables)
        if self._context is not None and len(rollout.row) + len(ids) + self._max_tokens > self._context:
            return replace(rollout, finish="length")
        row = replace(rollout.row, rest=[*rollout.row.rest, *ids], mask=[*_mask(rollout.row), *(False for _ in ids)])
        return replace(rollout, row=row, turns=(*rollout.turns, *step.messages))


def longest_row(prompts: Sequence[Prompt], sampling: SamplingParams, context: int | None) -> int:
    """Return the maximum number of tokens of a row; for tasks with several turns the context, or a guess."""
    longest = max(len(prompt.ids) for prompt in prompts) + sampling.max_tokens
    if any(load_task(prompt.task).has_turns for prompt in prompts):
        return context or longest * 4
    return longest


def first_turn(prompt: Prompt, sample: int, completion: Completion, text: ChatText, version: str) -> Rollout:
    """Return the episode of one completion."""
    content = text.decode(completion.ids)
    turns = ({"role": "assistant", "content": content},)
    row = TokenRow(prompt.ids, completion.ids, kept=completion.kept, experts=completion.experts)
    return Rollout(prompt, sample, row, completion.logps, content, completion.finish, turns, version)


@cache
def _pool(name: str, workers: int) -> Pool:
    """Return the worker processes of a task."""
    return worker_pool(worker.__name__, {"task": name, "label": f"task '{name}'"}, workers)


def _with_completion(rollout: Rollout, completion: Completion, text: ChatText) -> Rollout:
    """Return the episode with one more turn of the policy."""
    content, row = text.decode(completion.ids), rollout.row
    kept = row.kept and completion.kept and joined_kept([row.kept, completion.kept])
    experts = completion.experts
    if row.experts is not None and experts is not None:  # the last token of a turn is not routed before the next one
        experts = torch.cat([row.experts[:-1], experts[len(row.experts) - 1 :]])
    mask = [*_mask(row), *(True for _ in completion.ids)]
    return replace(
        rollout,
        row=replace(row, rest=[*row.rest, *completion.ids], mask=mask, kept=kept, experts=experts),
        logps=[*rollout.logps, *completion.logps],
        text=content,
        finish=completion.finish,
        turns=(*rollout.turns, {"role": "assistant", "content": content}),
    )


def _mask(row: TokenRow) -> Sequence[bool]:
    return [True] * len(row.rest) if row.mask is None else row.mask
