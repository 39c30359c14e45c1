"""The reward `endpoint`: a served reward model scores completions through an API like vLLM's /classify."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from posttrain.errors import RewardError
from posttrain.measure.counts import count
from posttrain.rewards.chat_tokens import without_chat_tokens
from posttrain.rewards.connection import Connection, ConnectionParams, NoReply
from posttrain.rewards.learned_options import LearnedOptions, shown
from posttrain.rewards.reward import Context, Reward, ScoreFn
from posttrain.rollout import Rollout, Score

if TYPE_CHECKING:
    from posttrain.text.chat import ChatText


class ServedModelOptions(LearnedOptions, ConnectionParams):
    """The served reward model: address, timeouts, retries and output."""

    url: str = Field(description="URL that conversations are posted to, e.g. http://127.0.0.1:8000/classify")
    label: int | None = Field(
        None, ge=0, description="index of the output that is the score, from 0; null: the model has only one output"
    )


class ServedModel(Connection):
    """Requests the scores of all conversations at once. Equal conversations are sent once."""

    def __init__(self, options: ServedModelOptions, where: str, text: ChatText | None = None) -> None:
        """`text`: the policy's template."""
        super().__init__(options, where)
        self._options, self._text = options, text

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the score of each rollout."""
        before = self.counts.copy()
        try:
            return self.run(self._scores(rollouts))
        finally:
            count({f"endpoint {name}": self.counts[key] - before[key] for name, key in COUNTED.items()})

    async def _scores(self, rollouts: Sequence[Rollout]) -> list[Score]:
        talks = [_conversation(shown(rollout, self._options.hide, self._text)) for rollout in rollouts]
        different = list(dict.fromkeys(talks))
        scores = await asyncio.gather(*(self._score(talk) for talk in different))
        score_of = dict(zip(different, scores, strict=True))
        return [score_of[talk] for talk in talks]

    async def _score(self, talk: str) -> Score:
        body = {"model": self._options.model, "messages": json.loads(talk), "use_activation": False}
        try:
            return Score(await self.post("", body, self._read, "the reply is not a classification"))
        except NoReply as error:
            return error.score

    def _read(self, data: Any) -> float:
        """Return the output that is the score, and count the tokens."""
        outputs = [float(value) for value in data["data"][0]["probs"] if not isinstance(value, bool | str)]
        complete = len(outputs) == len(data["data"][0]["probs"]) > 0
        self.counts["tokens_in"] += max(int((data.get("usage") or {}).get("prompt_tokens", 0)), 0)
        if not complete:
            raise ValueError("an output is not a number")
        label = self._options.label
        if len(outputs) > 1 if label is None else label >= len(outputs):
            fix = f"Set label to the output that is the score, 0 to {len(outputs) - 1}"
            what = f"label = {'null' if label is None else label}, but the model has {len(outputs)} outputs"
            raise RewardError(what=what, where=self._where, fix="Remove label" if len(outputs) == 1 else fix)
        if not math.isfinite(outputs[label or 0]):
            raise NoReply("error", f"the score {outputs[label or 0]} is not finite")
        return outputs[label or 0]


COUNTED = {"requests": "requests", "tokens in": "tokens_in"}


def _conversation(rollout: Rollout) -> str:
    """Return the prompt's messages and all turns as JSON."""
    turns = rollout.turns or [{"role": "assistant", "content": rollout.text}]
    sent = [{**turn, "content": without_chat_tokens(turn["content"] or "")} for turn in turns]
    return json.dumps([*map(dict, rollout.prompt.messages), *sent], ensure_ascii=True)


def _served(options: ServedModelOptions, context: Context) -> ScoreFn:
    return ServedModel(options, context.place, context.text)


REWARDS = {"endpoint": Reward(_served, ServedModelOptions, most_if_cut=lambda options: options.most_if_cut)}
