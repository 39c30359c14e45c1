"""Turns before every evaluated prompt: a system turn and examples, as a baseline without training.

URIAL (arXiv:2312.01552) aligns a base model with such turns alone. ICDPO (arXiv:2402.09320) takes the sample whose
likelihood they raise most: the highest log p(y | context, x) - log p(y | x).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from posttrain.errors import DataError, excerpt
from posttrain.evaluate.context import ContextTurn
from posttrain.models.device import Runtime
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.sampling.sampler import encode_prompts
from posttrain.text.chat import ChatText

BY_CONTEXT = "context"
"""The name of the score that ICDPO maximises."""


def encode_in_context(
    text: ChatText, prompts: Sequence[Prompt], context: Sequence[ContextTurn], where: str
) -> list[Prompt]:
    """Return the prompts with the context's tokens before their own tokens. Their messages are unchanged."""
    system = [turn.content for turn in context if turn.role == "system"]
    examples = [{"role": turn.role, "content": turn.content} for turn in context if turn.role != "system"]
    asked = {turn["content"] for turn in examples if turn["role"] == "user"}
    if known := next((prompt for prompt in prompts if prompt.messages[-1]["content"] in asked), None):
        what = f"an example is also an evaluation prompt, {known.id}: {excerpt(known.messages[-1]['content'], 60)}"
        raise DataError(what=what, where=where, fix="Take examples from the split train")
    whole = []
    for prompt in prompts:
        system_turns = prompt.messages[:1] if prompt.messages[0]["role"] == "system" else ()
        said = "\n\n".join([*system, *(turn["content"] for turn in system_turns)])
        head = [{"role": "system", "content": said}] if said else []
        whole.append(replace(prompt, messages=[*head, *examples, *prompt.messages[len(system_turns) :]]))
    ids = [prompt.ids for prompt in encode_prompts(text, whole)]
    return [replace(prompt, ids=whole_ids) for prompt, whole_ids in zip(prompts, ids, strict=True)]


def without_context(text: ChatText, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the rollouts as answers to the prompts without context, for rewards and the reference."""
    known = {rollout.prompt.id: rollout.prompt for rollout in rollouts}
    plain = {prompt.id: prompt for prompt in encode_prompts(text, list(known.values()))}
    prompts = [plain[rollout.prompt.id] for rollout in rollouts]
    return [
        replace(rollout, prompt=prompt, row=replace(rollout.row, prompt=prompt.ids))
        for rollout, prompt in zip(rollouts, prompts, strict=True)
    ]


def score_by_context(model: Any, seen: Sequence[Rollout], plain: Sequence[Rollout], runtime: Runtime) -> list[Rollout]:
    """Return the plain rollouts with ICDPO's score: log p(y | context, x) - log p(y | x)."""
    from posttrain.evaluate.likelihood import row_logps

    after, before = (row_logps(model, [rollout.row for rollout in some], runtime) for some in (seen, plain))
    gained = [math.fsum(with_context) - math.fsum(without) for with_context, without in zip(after, before, strict=True)]
    return [
        replace(rollout, scores={**rollout.scores, BY_CONTEXT: Score(gain)})
        for rollout, gain in zip(plain, gained, strict=True)
    ]
