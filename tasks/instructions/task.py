"""The task `instructions`: short texts under instructions that a program verifies, without a model or a network."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import polars as pl
from pydantic import Field

from posttrain.data.columns import Kind, Split, from_rows
from posttrain.measure.record import note
from posttrain.rewards.instruction_checks import followed
from posttrain.rollout import Rollout
from posttrain.tasks.task import Generator, Task

from ..counts import Counts
from ..drawing import draw_problems
from .problems import Problem, demonstration, draw_problem


class InstructionsParams(Counts):
    """The number of instructions in a prompt, and the number of prompts."""

    seed: int = Field(0, ge=0, description="draws the prompts")
    most: int = Field(3, ge=1, le=4, description="maximum number of instructions in a prompt")


def _tables(params: InstructionsParams) -> dict[Kind, pl.DataFrame]:
    """Return the tables `chat` and `prompts`. Each part has its own random stream."""
    note(seed=params.seed)
    rng, sizes = random.Random(f"{params.seed}:demonstrations"), params.sizes()
    chat = [
        {**_row(split, problem), "messages": [*_prompt(problem), _said(demonstration(problem, rng))]}
        for split, size in sizes["chat"].items()
        for problem in _problems(params, "chat", split, size)
    ]
    prompts = [
        {**_row(split, problem), "prompt": _prompt(problem), "answer": "", "task": "", "info": _info(problem)}
        for split, size in sizes["prompts"].items()
        for problem in _problems(params, "prompts", split, size)
    ]
    return {"chat": from_rows(chat, "chat"), "prompts": from_rows(prompts, "prompts")}


def _row(split: Split, problem: Problem) -> dict[str, Any]:
    return {"split": split, "problem": problem.key}


def _prompt(problem: Problem) -> list[dict[str, str]]:
    return [{"role": "user", "content": problem.question}]


def _said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _info(problem: Problem) -> str:
    return json.dumps({"instructions": problem.instructions})


def _problems(params: InstructionsParams, kind: Kind, split: Split, size: int) -> list[Problem]:
    return draw_problems(lambda rng: draw_problem(rng, params.most), params.seed, kind, split, size)


def _metrics(rollouts: Sequence[Rollout], outcomes: Sequence[float]) -> dict[str, float]:  # noqa: ARG001
    """Return the share of all instructions that were followed."""
    results = [
        followed(one, rollout.text) for rollout in rollouts for one in rollout.prompt.info.get("instructions", ())
    ]
    return {"instructions_followed": sum(results) / len(results)} if results else {}


TASKS = {"instructions": Task(Generator(InstructionsParams, ("chat", "prompts"), _tables), metrics=_metrics)}
