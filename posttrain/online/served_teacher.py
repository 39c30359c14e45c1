"""A teacher behind an endpoint, which returns the log-probs of the likeliest tokens at each token of a row."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from posttrain.errors import ModelError, ParamsError
from posttrain.rewards.connection import Connection, ConnectionParams, NoReply, TryAgainError
from posttrain.rollout import TokenRow

COMPARED = 200
"""The number of tokens of the first row whose text is compared with the endpoint's."""
Likeliest = tuple[list[list[int]], list[list[float]]]


class TeacherServer(ConnectionParams):
    """An endpoint for completions of token ids with vLLM's `prompt_logprobs`: vLLM or `posttrain serve`."""

    top: int = Field(
        20,
        ge=1,
        le=1000,
        description="likeliest tokens to request; all others count as one token (vLLM: --max-logprobs)",
    )


class ServedTeacher(Connection):
    """Sends rows of tokens to a teacher. Its vocabulary must be the student's."""

    def __init__(self, params: TeacherServer, where: str, tokenizer: Any, student: str) -> None:
        super().__init__(params, where)
        self._top, self._tokenizer, self._student = params.top, tokenizer, student
        self._is_compared = False

    def __call__(self, rows: Sequence[TokenRow]) -> tuple[Tensor, Tensor]:
        """Return ids and log-probs [M, K] of the likeliest tokens at each trained token of the rows."""
        try:
            likeliest = self.run(self._all(rows))
        except NoReply as error:
            what = f"the teacher at {self._params.url} returned no log-probs ({error.status}: {error.reason})"
            fix = "Run the stage again when the teacher answers; it continues from the last checkpoint"
            if error.status == "error":
                fix = (
                    "Serve a teacher with the student's vocabulary and a context for its longest row, or lower "
                    "served.top"
                )
            raise ModelError(what=what, where=f"{self._where}.served", fix=fix) from error
        ids = torch.tensor([token for part, _ in likeliest for token in part], dtype=torch.long)
        logps = torch.tensor([token for _, part in likeliest for token in part])
        return ids.view(-1, self._top), logps.view(-1, self._top)

    async def _all(self, rows: Sequence[TokenRow]) -> list[Likeliest]:
        tasks = [asyncio.ensure_future(self._row(row)) for row in rows]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _row(self, row: TokenRow) -> Likeliest:
        ids = [*row.prompt, *row.rest]
        body = {
            "model": self._params.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": self._top
        }  # fmt: skip
        most = len(ids) * (self._top + 1)
        logprobs = await self.post_for_logprobs("completions", body, lambda data: _read(data, len(ids)), most)
        self._compare(ids, logprobs)
        return self._likeliest([logprobs[len(row.prompt) + place] for place in row.trained])

    def _likeliest(self, tokens: Sequence[Mapping[str, Any]]) -> Likeliest:
        """Return the K likeliest tokens at each token. An endpoint adds the token itself if it is not among them."""
        ids, logps = [], []
        for token in tokens:
            ranked = sorted((-float(said["logprob"]), int(name)) for name, said in token.items())[: self._top]
            if len(ranked) < self._top:
                what = f"it returned {len(ranked)} tokens, but served.top = {self._top}"
                raise ParamsError(what=what, where=f"{self._where}.served", fix="Lower top, or raise its own limit")
            ids.append([name for _, name in ranked])
            logps.append([min(-logp, 0.0) for logp, _ in ranked])
        return ids, logps

    def _compare(self, ids: Sequence[int], logprobs: Sequence[Mapping[str, Any]]) -> None:
        """Reject an endpoint that decodes most tokens to another text, because its tokenizer differs."""
        if self._is_compared:
            return
        self._is_compared = True
        pairs = islice(zip(ids[1:], logprobs[1:], strict=True), COMPARED)
        texts = [
            (self._tokenizer.decode([token]), said.get(str(token), {}).get("decoded_token")) for token, said in pairs
        ]
        known = [(ours.strip(), str(theirs).strip()) for ours, theirs in texts if theirs is not None]
        if sum(ours == theirs for ours, theirs in known) * 2 < len(texts):
            ours, theirs = next(((ours, theirs) for ours, theirs in known if ours != theirs), ("", "nothing"))
            what = (
                f"the teacher's tokenizer differs from that of {self._student}: a token is {ours!r} here, "
                f"{theirs!r} there"
            )
            fix = (
                "Serve a teacher of the same family, use the reward likelihood, or sample the teacher and train "
                "with sft"
            )
            raise ParamsError(what=what, where=f"{self._where}.served", fix=fix)


def _read(data: Any, tokens: int) -> list[Mapping[str, Any]]:
    """Return the endpoint's answer for each token: id -> log-prob."""
    logprobs = [said or {} for said in data["choices"][0]["prompt_logprobs"]]
    if len(logprobs) != tokens or not all(
        float(part["logprob"]) <= 1e-3 for said in logprobs for part in said.values()
    ):
        raise TryAgainError(
            f"the reply has log-probs of {len(logprobs)} tokens, and {tokens} were sent, or they are above 0"
        )
    return logprobs
