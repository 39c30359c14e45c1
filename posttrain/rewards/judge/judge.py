"""The reward `judge`: a language model behind an OpenAI-compatible endpoint scores completions (docs/rewards.md)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import httpx
from pydantic import Field, model_validator

from posttrain.measure.counts import count
from posttrain.pipeline.user_cache import cache_folder
from posttrain.rewards.judge.endpoint import Endpoint, EndpointParams, NoReply, connection
from posttrain.rewards.judge.prompts import (
    WHICH,
    YES_NO,
    Form,
    Mode,
    check_template,
    number_form,
    question,
    read_verdict,
    template_of,
)
from posttrain.rewards.judge.verdict_cache import VerdictCache
from posttrain.rewards.reward import Context, Reward, ScoreFn
from posttrain.rollout import FAILED, Message, Prompt, Rollout, Score

Verdict = float | Score
"""A number in [0, 1], or why there is none."""


class JudgeOptions(EndpointParams):
    """What the judge is asked."""

    prompt: str | None = Field(
        None, min_length=1, description="the template: a text, or a file such as custom/judge.txt"
    )
    mode: Mode = Field("score", description="score: each completion by itself; pairwise: compared with another text")
    scale: list[float] = Field([1.0, 10.0], min_length=2, max_length=2, description="worst and best number of a score")
    rubric: dict[str, float] | None = Field(
        None,
        min_length=1,
        description="yes/no questions with weights in place of a scale: the score is the share of yes",
    )
    against: Literal["group", "answer"] = Field(
        "group", description="pairwise: against the samples of the same prompt, or the prompt's answer"
    )
    cache: bool = Field(True, description="remember verdicts in the user's cache folder")

    @model_validator(mode="after")
    def _consistent(self) -> JudgeOptions:
        if self.scale[0] >= self.scale[1]:
            raise ValueError(f"scale: {self.scale} does not rise. Give the worst and the best number, e.g. [1, 10]")
        if self.rubric is not None and any(weight <= 0 for weight in self.rubric.values()):
            raise ValueError("rubric: a weight is not above 0. Ask the question the other way round")
        unread = {
            "scale": self.rubric is not None or self.mode == "pairwise",
            "rubric": self.mode == "pairwise",
            "against": self.mode == "score",
        }
        ignored = [name for name, is_unread in unread.items() if is_unread and name in self.model_fields_set]
        if ignored:
            other = " with a rubric" if self.rubric is not None and self.mode == "score" else ""
            raise ValueError(f"{ignored[0]}: has no effect with mode: {self.mode}{other}. Remove it")
        if self.prompt is not None:
            check_template(self.prompt, self.mode)
        return self


class LanguageJudge:
    """Asks for the verdicts on all rollouts at once; equal questions are asked once."""

    def __init__(self, options: JudgeOptions, where: str) -> None:
        self._options, self._endpoint = options, Endpoint(options, where)
        self._cache = VerdictCache(cache_folder() / "judge") if options.cache else None
        # Next to the answer as one of two replies, a reference answer would give away which one it is.
        shown = options.mode == "score" or options.against == "group"
        self._templates = [
            template_of(options.prompt, options.mode, answered=answered and shown) for answered in (False, True)
        ]
        self._cached = 0
        self._weights = ""

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the score of each rollout."""
        before = self.counts()
        try:
            return asyncio.run(self._scores(rollouts))
        finally:
            count({f"judge {name}": value - before[name] for name, value in self.counts().items()})

    def counts(self) -> dict[str, float]:
        """Requests, verdicts found in the cache, tokens as the endpoint counts them, and what they cost."""
        sent = self._endpoint.counts
        tokens = {"tokens in": sent["tokens_in"], "tokens out": sent["tokens_out"]}
        return {"requests": sent["requests"], "cached": self._cached, **tokens, "cost": self._endpoint.cost}

    async def _scores(self, rollouts: Sequence[Rollout]) -> list[Score]:
        options = self._options
        if options.mode == "pairwise":
            return await self._compared(rollouts, _duels(rollouts, options.against))
        rubric = options.rubric or {"": 1.0}
        form = YES_NO if options.rubric else number_form(*options.scale)
        asked = [[self._question(rollout, form, criterion) for criterion in rubric] for rollout in rollouts]
        found = await self._verdicts([text for texts in asked for text in texts], form)
        return [_weighted([found[text] for text in texts], list(rubric.values())) for texts in asked]

    def _question(self, rollout: Rollout, form: Form, criterion: str) -> str:
        prompt = rollout.prompt
        texts = {"question": _asked(prompt), "answer": prompt.answer, "completion": said(rollout)}
        return question(self._template(prompt), texts, form, criterion)

    def _template(self, prompt: Prompt) -> str:
        return self._templates[bool(prompt.answer.strip())]

    async def _compared(self, rollouts: Sequence[Rollout], duels: Sequence[Duel]) -> list[Score]:
        """Return the mean of each rollout's duels: 1 won, 0 lost, 0.5 tied or decided by the order."""
        asked: dict[Duel, list[str]] = {}
        for duel in duels:
            prompt = rollouts[duel.mine].prompt
            shared, orders = {"question": _asked(prompt), "answer": prompt.answer}, (duel.texts, duel.texts[::-1])
            asked[duel] = [
                question(self._template(prompt), {**shared, "first": first, "second": second}, WHICH)
                for first, second in orders
                if first != second
            ]
        found = await self._verdicts([text for texts in asked.values() for text in texts], WHICH)
        results: dict[int, list[Verdict]] = defaultdict(list)
        for duel, texts in asked.items():
            won = _won([found[text] for text in texts])
            results[duel.mine].append(won)
            if duel.theirs is not None:
                results[duel.theirs].append(won if isinstance(won, Score) else 1 - won)
        alone = Score(0.5, "unparseable", "the prompt has no other completion to compare it with")
        return [
            _weighted(results[place], [1.0] * len(results[place])) if place in results else alone
            for place in range(len(rollouts))
        ]

    async def _verdicts(self, questions: Sequence[str], form: Form) -> dict[str, Verdict]:
        """Return the verdict on each question; equal ones are asked once."""
        different = list(dict.fromkeys(questions))
        async with self._endpoint.opened() as client:
            if self._cache is not None:
                self._weights = self._cache.weights(connection(self._options), await self._endpoint.weights(client))
            found = await asyncio.gather(*(self._verdict(client, text, form) for text in different))
        return dict(zip(different, found, strict=True))

    async def _verdict(self, client: httpx.AsyncClient, text: str, form: Form) -> Verdict:
        served = {"weights": self._weights} if self._weights else {}
        asked = {**connection(self._options), **served, "question": text}
        if self._cache is not None and (known := self._cache.read(asked)) is not None:
            self._cached += 1
            return known
        messages = [{"role": "user", "content": text}]
        try:
            for _ in range(2):
                reply = await self._endpoint.ask(client, messages)
                found = None if reply.cut else read_verdict(reply.text, form)
                if found is not None:
                    if self._cache is not None:
                        self._cache.write(asked, found)
                    return found
                if reply.text.strip():
                    again = {"role": "user", "content": f"End your reply with one line: {form.hint}"}
                    messages += [{"role": "assistant", "content": reply.text}, again]
        except NoReply as error:
            return Score(0.0, error.status, error.reason)
        if reply.cut:  # by our own limit, so it says nothing of the completion
            return Score(0.0, "error", f"the judge's reply was cut at max_tokens: {self._options.max_tokens}. Raise it")
        return Score(0.0, "unparseable", f"the judge gave no verdict, its reply ends with {reply.text[-60:]!r}")


@dataclass(frozen=True)
class Duel:
    """Two replies to compare, by their places among the rollouts; None: the prompt's answer."""

    mine: int
    theirs: int | None
    texts: tuple[str, str]


def _duels(rollouts: Sequence[Rollout], against: Literal["group", "answer"]) -> list[Duel]:
    """Return each rollout with its prompt's answer, or with the next one of its group, which is a ring."""
    if against == "answer":
        return [Duel(place, None, (said(rollout), rollout.prompt.answer)) for place, rollout in enumerate(rollouts)]
    groups: dict[str, list[int]] = defaultdict(list)
    for place, rollout in enumerate(rollouts):
        groups[rollout.prompt.id].append(place)
    pairs = [
        (place, group[(nth + 1) % len(group)])
        for group in groups.values()
        for nth, place in enumerate(group[: len(group) if len(group) > 2 else len(group) - 1])
    ]
    return [Duel(mine, theirs, (said(rollouts[mine]), said(rollouts[theirs]))) for mine, theirs in pairs]


def _won(verdicts: Sequence[Verdict]) -> Verdict:
    """Return whether the first text won in both orders; no verdicts: the texts are the same."""
    failed = _failed(verdicts)
    if failed is not None:
        return failed
    if not verdicts:
        return 0.5
    forth, back = (verdict for verdict in verdicts if not isinstance(verdict, Score))
    return forth if forth == 1 - back else 0.5


def _weighted(verdicts: Sequence[Verdict], weights: Sequence[float]) -> Score:
    """sum_k weight_k verdict_k / sum_k weight_k; one verdict that is missing makes the score unknown."""
    failed = _failed(verdicts)
    if failed is not None:
        return failed
    numbers = [verdict for verdict in verdicts if not isinstance(verdict, Score)]
    return Score(sum(weight * number for weight, number in zip(weights, numbers, strict=True)) / sum(weights))


def _failed(verdicts: Sequence[Verdict]) -> Score | None:
    """Return the first failure; one of the endpoint before one that only this completion has."""
    failures = [verdict for verdict in verdicts if isinstance(verdict, Score)]
    return next((failure for failure in failures if failure.status in FAILED), failures[0] if failures else None)


def said(rollout: Rollout) -> str:
    """Return the completion; all turns of an episode of several."""
    return rollout.text if len(rollout.turns) < 2 else _talk(rollout.turns)


def _asked(prompt: Prompt) -> str:
    return prompt.messages[0]["content"] if len(prompt.messages) == 1 else _talk(prompt.messages)


def _talk(turns: Sequence[Message]) -> str:
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)


def _cannot_score(prompt: Prompt, options: JudgeOptions) -> str | None:
    reads = options.prompt is not None and "{answer}" in template_of(options.prompt, options.mode, answered=True)
    compares = options.mode == "pairwise" and options.against == "answer"
    return "empty" if (reads or compares) and not prompt.answer.strip() else None


def _judge(options: JudgeOptions, context: Context) -> ScoreFn:
    return LanguageJudge(options, f"{context.where}.reward.judge")


REWARDS = {"judge": Reward(_judge, JudgeOptions, _cannot_score)}
