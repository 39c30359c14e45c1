"""A model that answers conversations, shared by `serve` and `chat`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from posttrain.errors import DataError, ParamsError, PosttrainError
from posttrain.formulas.distill import TILE_TOKENS, log_probs
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.adapter_files import config_file
from posttrain.models.files.store import load_policy
from posttrain.models.files.text import load_text
from posttrain.models.forward.forward import packed_states
from posttrain.models.forward.logp import head_of
from posttrain.models.master_weights import frozen_on
from posttrain.models.memory import vocabulary
from posttrain.pipeline.lock.digests import Digests
from posttrain.pipeline.workspace import model_path
from posttrain.rollout import TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Finish, Request, SamplingParams
from posttrain.text.packing import pack

ANSWER_TOKENS = 512
"""The longest answer if the request does not set it, limited by the remaining context."""


@dataclass(frozen=True)
class Job:
    """A conversation to answer `n` times. The answers depend on the seed, not on other jobs in the batch."""

    messages: Sequence[Mapping[str, str]]
    sampling: SamplingParams
    n: int = 1
    seed: int = 0
    greedy: bool = False


@dataclass(frozen=True)
class Answer:
    """One completion."""

    text: str
    """The text without end token or stop string."""
    finish: Finish
    ids: Sequence[int]
    logps: Sequence[float]


@dataclass(frozen=True)
class Answers:
    """The completions of a job."""

    prompt_tokens: int
    answers: Sequence[Answer]


class Scored(NamedTuple):
    """The log-probs at each position of a text, for the likeliest tokens and for the text's token."""

    likeliest: Sequence[Mapping[int, float]]
    """For each token except the first: id -> log-prob, the likeliest first."""
    text_logps: Sequence[Mapping[int, float]]
    """For each token except the first: its id -> its log-prob."""
    following: int
    """The likeliest token after the text."""


class Policy:
    """A model in memory."""

    def __init__(self, model: str, threads: int) -> None:
        """`model`: a folder, or a name under models/ such as online/grpo."""
        folder, runtime = _folder(model), Runtime(DeviceParams(threads=threads))
        self.text = load_text(folder)
        self.weights = Digests().of(str(folder))
        self._model, self._device = frozen_on(load_policy(folder), runtime), runtime.device
        self._longest = max(map(len, self.text.tokenizer.get_vocab()))
        self._sampler = LocalSampler(self._model, self.text.stops, runtime, model)

    def answer(self, jobs: Sequence[Job]) -> list[Answers | PosttrainError]:
        """Return the answers to each job, or an error for a conversation that the model cannot read."""
        answers: dict[int, Answers | PosttrainError] = {}
        together: dict[tuple[str, bool], list[tuple[int, list[int]]]] = defaultdict(list)
        sampling: dict[str, SamplingParams] = {}
        for place, job in enumerate(jobs):
            try:
                self._check_size(job.messages)
                ids = self.text.prompt(job.messages)
                params = self._fitting(job.sampling, len(ids))
            except PosttrainError as error:
                answers[place] = error
                continue
            key = params.model_dump_json()
            sampling[key] = params
            together[key, job.greedy].append((place, ids))
        for (key, greedy), members in together.items():
            answers |= self._sampled(
                [(place, jobs[place], ids) for place, ids in members], sampling[key], greedy=greedy
            )
        return [answers[place] for place in range(len(jobs))]

    @torch.no_grad()
    def score(self, ids: Sequence[int], top: int) -> Scored:
        """Return the log-probs of the likeliest tokens at each position of a text, and of the text's tokens."""
        context, size = self._sampler.context, vocabulary(self._model)
        if context is not None and len(ids) > context:
            what = f"{len(ids)} tokens are more than the model's context of {context}"
            raise DataError(what=what, where=self._sampler.version, fix="Send fewer")
        if wrong := [token for token in ids if not 0 <= token < size]:
            raise DataError(
                what=f"token {wrong[0]} does not exist",
                where=self._sampler.version,
                fix=f"Use ids from 0 to {size - 1}",
            )
        hidden_TD = packed_states(self._model, pack([TokenRow(ids[:1], ids[1:])]).to(self._device))
        logits = head_of(self._model).logits
        likeliest: list[dict[int, float]] = []
        for start in range(0, len(ids), TILE_TOKENS):
            logp_TV = log_probs(logits(hidden_TD[start : start + TILE_TOKENS]), 1.0)
            best_logp_TK, best_TK = logp_TV.topk(min(top, size), dim=-1)
            next_T = torch.tensor([*ids[1:], int(best_TK[-1, 0])])[start : start + TILE_TOKENS].to(self._device)
            next_logp_T = logp_TV.gather(-1, next_T[:, None]).squeeze(-1)
            rows = zip(best_TK.tolist(), best_logp_TK.tolist(), next_T.tolist(), next_logp_T.tolist(), strict=True)
            likeliest += [
                dict(zip(best, logps, strict=True)) | {text_token: logp} for best, logps, text_token, logp in rows
            ]
        text_logps = [{token: said[token]} for token, said in zip(ids[1:], likeliest, strict=False)]
        return Scored(likeliest[:-1], text_logps, int(best_TK[-1, 0]))

    def score_chat(self, messages: Sequence[Mapping[str, str]], *, opened: bool) -> Scored:
        """Return the log-probs of a conversation's tokens; `opened`: including the header of the model's answer."""
        self._check_size(messages)
        return self.score(self.text.prompt(messages) if opened else self.text.whole([messages])[0], 1)

    def _check_size(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Reject a conversation that cannot fit before counting its tokens, which takes minutes for megabytes."""
        context, size = self._sampler.context, sum(len(turn["content"]) for turn in messages)
        if context is not None and size > context * self._longest:
            what = f"the conversation has {size:,} characters, more than the model's context of {context} tokens can"
            what += f" hold (its longest token has {self._longest})"
            raise DataError(what=what, where=self._sampler.version, fix="Shorten it")

    def token(self, token: int) -> str:
        """Return the text of one token."""
        text: str = self.text.tokenizer.decode([token])
        return text

    def _fitting(self, params: SamplingParams, prompt: int) -> SamplingParams:
        """Return the sampling parameters with the remaining length, if none was given."""
        context = self._sampler.context
        if "max_tokens" not in params.model_fields_set:
            length = ANSWER_TOKENS if context is None else max(min(ANSWER_TOKENS, context - prompt), 1)
            params = params.model_copy(update={"max_tokens": length})
        if context is not None and prompt + params.max_tokens > context:
            what = (
                f"the conversation has {prompt} tokens and max_tokens is {params.max_tokens}, together more than the "
            )
            what += f"model's context of {context}"
            raise DataError(what=what, where=self._sampler.version, fix="Shorten it, or lower max_tokens")
        return params

    def _sampled(
        self, jobs: Sequence[tuple[int, Job, list[int]]], params: SamplingParams, *, greedy: bool
    ) -> dict[int, Answers]:
        requests = [Request(ids, f"{job.seed}:{index}") for _, job, ids in jobs for index in range(job.n)]
        completions = iter(self._sampler.generate(requests, params, 0, greedy=greedy))
        return {
            place: Answers(
                len(ids),
                [
                    Answer(self._read(completion.ids, params.stop), completion.finish, completion.ids, completion.logps)
                    for completion in (next(completions) for _ in range(job.n))
                ],
            )
            for place, job, ids in jobs
        }

    def _read(self, ids: Sequence[int], stop: Sequence[str]) -> str:
        text = self.text.decode(ids)
        ends = [place for stop_text in stop if (place := text.find(stop_text)) >= 0]
        return text[: min(ends)] if ends else text


def _folder(model: str) -> Path:
    for folder in (Path(model), model_path(model)):
        if config_file(folder).is_file():
            return folder
    fix = "Give a folder with config.json, or a model under models/ such as online/grpo, which `dvc repro` makes"
    raise ParamsError(what="this is not a model", where=model, fix=fix)
