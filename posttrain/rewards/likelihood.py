"""The reward `likelihood`: the log-prob of a completion's text under a served model (any tokenizer).

vLLM and `posttrain serve` return the log-probs of a conversation's tokens and format it with their own template.
posttrain subtracts the tokens of the conversation without the completion from those with it.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from posttrain.errors import RewardError
from posttrain.rewards.connection import Connection, ConnectionParams, NoReply, TryAgainError
from posttrain.rewards.reward import Context, Reward, ScoreFn
from posttrain.rollout import Message, Rollout, Score

Tokens = Sequence[tuple[int | None, float]]
"""The id and log-prob of each token; the first one has neither."""
PROBES: Final = tuple([{"role": "user", "content": "A"}, {"role": "assistant", "content": text}] for text in "BC")
"""Conversations that end alike: with the text that the template writes after an answer."""


class LikelihoodOptions(ConnectionParams):
    """The served model: address, timeouts and retries."""

    relative: bool = Field(
        True,
        description="subtract the policy's own log-prob of the completion: the mean is then minus KL(policy || "
        "model) (reverse KL, on-policy distillation); false: only the model's log-prob",
    )


class Likelihood(Connection):
    """Requests the log-probs of conversations."""

    def __init__(self, options: LikelihoodOptions, where: str, ends: Collection[int] = ()) -> None:
        """`ends`: the policy's end-of-turn tokens."""
        super().__init__(options, where)
        self._relative, self._ending, self._ends = options.relative, 0, frozenset(ends)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the log-prob of each completion in nats."""
        if any(len(rollout.turns) > 1 for rollout in rollouts):
            fix = "Use it for tasks of one turn"
            raise RewardError(what="a completion has further turns after it", where=self._where, fix=fix)
        return self.run(self._all(rollouts))

    async def _all(self, rollouts: Sequence[Rollout]) -> list[Score]:
        if not self._ending:
            try:
                first, second = [await self._tokens(probe, opened=False) for probe in PROBES]
            except NoReply as error:
                return [error.score] * len(rollouts)
            self._ending = common(first[::-1], second[::-1])
        asked = {
            key: asyncio.ensure_future(self._tokens(messages, opened=True))
            for key, messages in {rollout.prompt.id: rollout.prompt.messages for rollout in rollouts}.items()
        }
        return await asyncio.gather(*(self._score(rollout, asked[rollout.prompt.id]) for rollout in rollouts))

    async def _score(self, rollout: Rollout, asked: asyncio.Future[Tokens]) -> Score:
        answer = {"role": "assistant", "content": rollout.text}
        if self._relative and rollout.text and not rollout.logps:
            return Score(0.0, "error", "the policy's log-probs are not known here: set relative: false")
        try:
            plain = await asked
            whole = await self._tokens([*rollout.prompt.messages, answer], opened=False)
        except NoReply as error:
            return error.score
        ids = rollout.row.rest
        stopped = rollout.finish == "stop" and (not len(ids) or not self._ends or int(ids[-1]) in self._ends)
        # a token that ended the turn was sampled, what the template writes after it was not
        whole = whole[: len(whole) - self._ending + stopped]
        start = common(plain, whole)
        logp = math.fsum(part for _, part in whole[start:]) - math.fsum(part for _, part in plain[start:])
        return Score(logp - math.fsum(rollout.logps) if self._relative else logp)

    async def _tokens(self, messages: Sequence[Message], *, opened: bool) -> Tokens:
        """Return the tokens of a conversation. `opened`: up to where the model would answer."""
        body: Mapping[str, Any] = {
            "model": self._params.model, "messages": [dict(message) for message in messages],
            "add_generation_prompt": opened, "prompt_logprobs": 0, "max_tokens": 1, "temperature": 0,
        }  # fmt: skip
        # a token has at least a byte of the text, but for those that the template adds
        return await self.post_for_logprobs("chat/completions", body, _read, len(json.dumps(body["messages"])))


def common(first: Tokens, second: Tokens) -> int:
    """Return the length of the common prefix of two conversations in tokens."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one[0] != other[0]), min(len(first), len(second)))


def _read(data: Any) -> Tokens:
    said = data["prompt_logprobs"]
    tokens = [(int(token), float(part["logprob"])) for one in said[1:] for token, part in [*one.items()][:1]]
    if len(tokens) != len(said) - 1 or not all(math.isfinite(logp) for _, logp in tokens):
        raise TryAgainError("the reply lacks log-probs of some tokens")
    return [(None, 0.0), *tokens]


def _likelihood(options: LikelihoodOptions, context: Context) -> ScoreFn:
    ends = () if context.text is None else context.text.stops.tokens
    return Likelihood(options, context.place, ends)


REWARDS = {"likelihood": Reward(_likelihood, LikelihoodOptions)}
