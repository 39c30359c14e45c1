"""Episodes from prompts: encode, check that they fit, sample, and let the task answer until it ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.measure.phases import phase
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.sampling.sampler import Completion, Mixture, Request, Sampler, SamplingParams
from posttrain.tasks.catalog import load_task
from posttrain.text.chat import ChatText


def prompts_of(rows: Iterable[Mapping[str, Any]]) -> list[Prompt]:
    """Rows of a table of prompts, not yet as ids."""
    return [
        Prompt(row["id"], row["prompt"], (), row["answer"], json.loads(row["info"]), row["task"], row["problem"])
        for row in rows
    ]


@phase("load")
def encode_prompts(text: ChatText, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with the ids that the policy is asked to continue."""
    encoded = text.prompts([one.messages for one in prompts])
    return [replace(one, ids=ids) for one, ids in zip(prompts, encoded, strict=True)]


@phase("generate")
def generate_rollouts(
    sampler: Sampler,
    text: ChatText,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    seed: int,
    *,
    samples: int = 1,
    name: str = "",
    greedy: bool = False,
    mixture: Mixture | None = None,
    advance: Callable[[int], None] | None = None,
) -> list[Rollout]:
    """The samples of each prompt, prompt by prompt; the seed, the prompt's id and `name` decide the random numbers."""
    asked = [(prompt, sample) for prompt in prompts for sample in range(samples)]
    names = [f"{prompt.id}:{name}:{sample}" if name else f"{prompt.id}:{sample}" for prompt, sample in asked]
    requests = [Request(prompt.ids, one) for (prompt, _), one in zip(asked, names, strict=True)]
    drawn = sampler.generate(requests, params, seed, greedy=greedy, mixture=mixture, advance=advance)
    rollouts = [
        _first(prompt, sample, one, text, sampler.version) for (prompt, sample), one in zip(asked, drawn, strict=True)
    ]
    for turn in range(1, max((load_task(one.task).turns for one in prompts), default=1)):
        waiting = _answered(rollouts, text, turn)
        if not waiting:
            break
        requests = [Request([*one.row.prompt, *one.row.rest], f"{names[i]}:turn{turn}") for i, one in waiting.items()]
        drawn = sampler.generate(requests, params, seed, greedy=greedy, mixture=mixture)
        for (place, rollout), completion in zip(waiting.items(), drawn, strict=True):
            rollouts[place] = _continued(rollout, completion, text)
    return rollouts


def _first(prompt: Prompt, sample: int, drawn: Completion, text: ChatText, version: str) -> Rollout:
    said = text.decode(drawn.ids)
    turns = ({"role": "assistant", "content": said},)
    return Rollout(prompt, sample, TokenRow(prompt.ids, drawn.ids), drawn.logps, said, drawn.finish, turns, version)


def _answered(rollouts: Sequence[Rollout], text: ChatText, turn: int) -> dict[int, Rollout]:
    """The episodes that go on, by their place, with what the task answers as tokens that are not trained."""
    found: dict[int, Rollout] = {}
    for place, one in enumerate(rollouts):
        task = load_task(one.prompt.task)
        if one.truncated or turn >= task.turns or len(one.turns) < 2 * turn - 1:
            continue
        reply = task.reply(one)
        if reply:
            messages = [*one.prompt.messages, *one.turns]
            ids = text.reply(messages, list(reply))
            mask = [*_mask(one.row), *(False for _ in ids)]
            row = replace(one.row, rest=[*one.row.rest, *ids], mask=mask)
            found[place] = replace(one, row=row, turns=(*one.turns, *reply))
    return found


def _continued(rollout: Rollout, drawn: Completion, text: ChatText) -> Rollout:
    said, row = text.decode(drawn.ids), rollout.row
    return replace(
        rollout,
        row=replace(row, rest=[*row.rest, *drawn.ids], mask=[*_mask(row), *(True for _ in drawn.ids)]),
        logps=[*rollout.logps, *drawn.logps],
        text=said,
        finish=drawn.finish,
        turns=(*rollout.turns, {"role": "assistant", "content": said}),
    )


def _mask(row: TokenRow) -> Sequence[bool]:
    return [True] * len(row.rest) if row.mask is None else row.mask
