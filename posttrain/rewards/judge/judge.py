"""The reward `judge`: a language model behind an OpenAI-compatible endpoint scores completions (docs/rewards.md)."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from posttrain.files import user_cache
from posttrain.measure.counts import count
from posttrain.rewards.connection import NoReply
from posttrain.rewards.judge.endpoint import Endpoint, EndpointParams, connection
from posttrain.rewards.judge.pairs import Duel, duels_of, first_slot, won
from posttrain.rewards.judge.prompts import (
    WHICH,
    YES_NO,
    Form,
    Mode,
    check_template,
    group_form,
    in_order,
    number_form,
    question,
    read_verdicts,
    template_of,
)
from posttrain.rewards.judge.rubrics import rubric_of
from posttrain.rewards.judge.texts import asked_of, said
from posttrain.rewards.judge.verdict_cache import VerdictCache
from posttrain.rewards.judge.verdicts import Verdict, weighted
from posttrain.rewards.learned_options import LearnedOptions, shown
from posttrain.rewards.reward import Context, Reward, ScoreFn
from posttrain.rewards.scorable import NOT_JUDGED
from posttrain.rewards.score import CUT
from posttrain.rewards.usage import USED, Usage
from posttrain.rollout import Prompt, Rollout, Score

if TYPE_CHECKING:
    from posttrain.text.chat import ChatText


class JudgeOptions(LearnedOptions, EndpointParams):
    """The judge's mode, templates, scale and rubric."""

    prompt: str | None = Field(
        None, min_length=1, description="the template: a text, or a file such as custom/judge.txt"
    )
    mode: Mode = Field(
        "score",
        description="score: each completion separately; pairwise: compared with another text; group: all samples "
        "of a prompt in one request",
    )
    scale: list[float] = Field(
        [1.0, 10.0], min_length=2, max_length=2, description="worst and best number on the scale"
    )
    rubric: dict[str, float] | Literal["info"] | None = Field(
        None,
        description="yes/no questions with weights instead of a scale; the score is the share of yes; info: each "
        "prompt's own `rubric` in its info",
    )
    against: Literal["group", "answer"] = Field(
        "group", description="pairwise: compare with samples of the same prompt, or with the prompt's answer"
    )
    cache: bool = Field(True, description="cache verdicts in the user's cache folder")
    truncated: float | Literal["score"] = Field(
        0.0,
        description="score of a completion that was cut off, about which the judge is not asked; with a negative "
        "weight 1 minus this; score: ask about it as about any other",
    )

    @model_validator(mode="after")
    def _consistent(self) -> JudgeOptions:
        if self.scale[0] >= self.scale[1]:
            raise ValueError(f"scale: {self.scale} does not rise. Give the worst and the best number, e.g. [1, 10]")
        if isinstance(self.rubric, dict):
            if not self.rubric:
                raise ValueError("rubric: it has no questions. Write {QUESTION: WEIGHT}, or leave it out")
            if not all(0 < weight < math.inf for weight in self.rubric.values()):
                raise ValueError("rubric: a weight is not above 0. Ask the question the other way round")
        unread = {
            "scale": self.rubric is not None or self.mode == "pairwise",
            "rubric": self.mode != "score",
            "against": self.mode != "pairwise",
        }
        ignored = [name for name, is_unread in unread.items() if is_unread and name in self.model_fields_set]
        if ignored:
            other = " with a rubric" if self.rubric is not None and self.mode == "score" else ""
            raise ValueError(f"{ignored[0]}: has no effect with mode: {self.mode}{other}. Remove it")
        if self.prompt is not None:
            check_template(self.prompt, self.mode)
        if (self.most_if_cut or 0) > 0:
            what = f"truncated: {self.truncated} is above 0, so a truncated completion could beat a complete one"
            raise ValueError(f"{what}. Write 0 or less, or score")
        return self


class LanguageJudge:
    """Requests the verdicts on all rollouts at once. Equal questions are sent once."""

    def __init__(
        self, options: JudgeOptions, where: str, text: ChatText | None = None, sign: Literal[1, -1] = 1
    ) -> None:
        """`text`: the policy's template. `sign`: -1 if the highest score is the worst."""
        self._options, self._endpoint, self._text = options, Endpoint(options, where), text
        worst = options.most_if_cut
        self._cut = None if worst is None else Score(worst if sign > 0 else 1 - worst, reason=CUT)
        self._cache = VerdictCache(user_cache() / "judge") if options.cache else None
        # Next to the answer as one of two replies, a reference answer would give away which one it is.
        safe = options.mode != "pairwise" or options.against == "group"
        self._templates = [
            template_of(options.prompt, options.mode, answered=answered and safe) for answered in (False, True)
        ]
        self._cached = 0
        self._weights = ""
        self.first_slot: dict[str, list[float]] = {}
        """From the last call: prompt -> how often the first shown reply won, for each of its duels."""

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the score of each rollout."""
        before = self.counts()
        self._used, self.first_slot = Usage(requests=0, tokens_in=0, tokens_out=0), {}
        try:
            return self._endpoint.run(self._scores([shown(one, self._options.hide, self._text) for one in rollouts]))
        finally:
            count({f"judge {name}": value - before[name] for name, value in self.counts().items()})
            priced = self._options.price_in or self._options.price_out
            USED.update({**self._used, **({"cost": self._endpoint.cost(self._used)} if priced else {})})

    def counts(self) -> dict[str, float]:
        """The numbers of requests, of cached verdicts and of tokens as the endpoint counts them, and the cost."""
        sent = self._endpoint.counts
        tokens = {"tokens in": sent["tokens_in"], "tokens out": sent["tokens_out"]}
        return {"requests": sent["requests"], "cached": self._cached, **tokens, "cost": self._endpoint.cost(sent)}

    async def _scores(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the scores. The judge is not asked about completions that were cut off."""
        if self._cut is None:
            return await self._judged(rollouts, ())
        cut = {rollout.prompt.id for rollout in rollouts if rollout.truncated}
        judged = iter(await self._judged([rollout for rollout in rollouts if not rollout.truncated], cut))
        return [self._cut if rollout.truncated else next(judged) for rollout in rollouts]

    async def _judged(self, rollouts: Sequence[Rollout], cut: Container[str]) -> list[Score]:
        """Return the verdicts. `cut`: prompts of which another completion was cut off."""
        options = self._options
        if options.mode == "pairwise":
            return await self._compared(rollouts, duels_of(rollouts, options.against), cut)
        if options.mode == "group":
            return await self._together(rollouts)
        form = YES_NO if options.rubric else number_form(*options.scale)
        rubrics = [self._rubric(rollout.prompt) for rollout in rollouts]
        asked = [
            [] if isinstance(rubric, Score) else [self._question(rollout, form, criterion) for criterion in rubric]
            for rollout, rubric in zip(rollouts, rubrics, strict=True)
        ]
        verdict_of = await self._verdicts([text for texts in asked for text in texts], form)
        return [
            rubric
            if isinstance(rubric, Score)
            else weighted([verdict_of[text] for text in texts], list(rubric.values()))
            for texts, rubric in zip(asked, rubrics, strict=True)
        ]

    def _rubric(self, prompt: Prompt) -> dict[str, float] | Score:
        """Return question -> weight for a prompt's completions, or a score that says why there are none."""
        if self._options.rubric != "info":
            return self._options.rubric or {"": 1.0}
        try:
            return rubric_of(prompt.info)
        except ValueError as error:
            return Score(0.0, "unparseable", f"{NOT_JUDGED}: {error}")

    def _question(self, rollout: Rollout, form: Form, criterion: str) -> str:
        prompt = rollout.prompt
        texts = {"question": asked_of(prompt), "answer": prompt.answer, "completion": said(rollout)}
        return question(self._template(prompt), texts, form, criterion)

    def _template(self, prompt: Prompt) -> str:
        return self._templates[bool(prompt.answer.strip())]

    async def _compared(self, rollouts: Sequence[Rollout], duels: Sequence[Duel], cut: Container[str]) -> list[Score]:
        """Return the mean of each rollout's duels: won 1, lost 0, tied or decided by the order 0.5.

        The only completion that was not cut off has won.
        """
        asked: dict[Duel, list[str]] = {}
        for duel in duels:
            prompt = rollouts[duel.first].prompt
            shared, orders = {"question": asked_of(prompt), "answer": prompt.answer}, (duel.texts, duel.texts[::-1])
            asked[duel] = [
                question(self._template(prompt), {**shared, "first": first, "second": second}, WHICH)
                for first, second in orders
                if first != second
            ]
        verdict_of = await self._verdicts([text for texts in asked.values() for text in texts], WHICH)
        results: dict[int, list[Verdict]] = defaultdict(list)
        for duel, texts in asked.items():
            verdicts = [verdict_of[text] for text in texts]
            result, slot = won(verdicts), first_slot(verdicts)
            if slot is not None:
                self.first_slot.setdefault(rollouts[duel.first].prompt.id, []).append(slot)
            results[duel.first].append(result)
            if duel.second is not None:
                results[duel.second].append(result if isinstance(result, Score) else 1 - result)
        alone = Score(0.5, "unparseable", "the prompt has no other completion to compare it with")
        won_all = Score(1.0, reason="the prompt's other completions were cut off")
        return [
            weighted(results[place], [1.0] * len(results[place]))
            if place in results
            else (won_all if rollout.prompt.id in cut else alone)
            for place, rollout in enumerate(rollouts)
        ]

    async def _together(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the scores of groups, one request per group. Equal texts in a group share a number."""
        texts_of: dict[str, list[str]] = defaultdict(list)
        for rollout in rollouts:
            texts_of[rollout.prompt.id].append(said(rollout))
        replies_of = {key: in_order(texts) for key, texts in texts_of.items()}
        asked: dict[str, tuple[str, Form]] = {}
        for prompt in {rollout.prompt.id: rollout.prompt for rollout in rollouts}.values():
            replies = replies_of[prompt.id]
            texts = {"question": asked_of(prompt), "answer": prompt.answer, "completions": replies}
            form = group_form(len(replies), *self._options.scale)
            asked[prompt.id] = question(self._template(prompt), texts, form), form
        verdicts_of = await self._replies(dict(asked.values()))
        scores = {}
        for key, replies in replies_of.items():
            verdicts = verdicts_of[asked[key][0]]
            for index, text in enumerate(replies):
                scores[key, text] = verdicts if isinstance(verdicts, Score) else Score(verdicts[index])
        return [scores[rollout.prompt.id, said(rollout)] for rollout in rollouts]

    async def _verdicts(self, questions: Sequence[str], form: Form) -> dict[str, Verdict]:
        """Return the verdict on each question. Equal questions are sent once."""
        verdicts_of = await self._replies(dict.fromkeys(questions, form))
        return {
            text: verdicts if isinstance(verdicts, Score) else verdicts[0] for text, verdicts in verdicts_of.items()
        }

    async def _replies(self, forms: Mapping[str, Form]) -> dict[str, tuple[float, ...] | Score]:
        """Return the verdicts on each question, read in the question's form."""
        if self._cache is not None:
            self._weights = self._cache.weights(connection(self._options), await self._endpoint.weights())
        verdicts = await asyncio.gather(*(self._reply(text, form) for text, form in forms.items()))
        return dict(zip(forms, verdicts, strict=True))

    async def _reply(self, text: str, form: Form) -> tuple[float, ...] | Score:
        served = {"weights": self._weights} if self._weights else {}
        asked = {**connection(self._options), **served, "question": text}
        if self._cache is not None and (known := self._cache.read(asked, form.count or 1)) is not None:
            self._cached += 1
            self._used.update(self._cache.usage(asked))
            return known
        messages, used = [{"role": "user", "content": text}], Usage()
        try:
            for _ in range(2):
                reply = await self._endpoint.ask(messages)
                used.update(reply.used)
                verdicts = None if reply.cut else read_verdicts(reply.text, form)
                if verdicts is not None:
                    if self._cache is not None:
                        self._cache.write(asked, verdicts, used)
                    return verdicts
                if reply.text.strip():
                    again = {"role": "user", "content": form.ending}
                    said = reply.text.encode(errors="replace").decode()  # half a character cannot be sent back
                    messages += [{"role": "assistant", "content": said}, again]
        except NoReply as error:
            return error.score
        finally:
            self._used.update(used)
        if reply.cut:  # by our own limit, so it says nothing of the completion
            return Score(0.0, "error", f"the judge's reply was cut at max_tokens: {self._options.max_tokens}. Raise it")
        return Score(0.0, "error", f"the judge gave no verdict; its reply ends with {reply.text[-60:]!r}")


def _cannot_score(prompt: Prompt, options: JudgeOptions) -> str | None:
    reads = options.prompt is not None and "{answer}" in template_of(options.prompt, options.mode, answered=True)
    if options.rubric == "info":
        try:
            rubric_of(prompt.info)
        except ValueError as error:
            return str(error)
    compares = options.mode == "pairwise" and options.against == "answer"
    return "empty" if (reads or compares) and not prompt.answer.strip() else None


def _judge(options: JudgeOptions, context: Context) -> ScoreFn:
    return LanguageJudge(options, context.place, context.text, context.sign)


REWARDS = {"judge": Reward(_judge, JudgeOptions, _cannot_score, compares=lambda options: options.mode != "score")}
