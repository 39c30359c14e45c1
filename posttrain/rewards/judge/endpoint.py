"""An OpenAI-compatible chat endpoint for a judge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from posttrain.rewards.connection import MALFORMED, Connection, ConnectionParams, SilentError, TryAgainError
from posttrain.rewards.usage import Usage


class EndpointParams(ConnectionParams):
    """The endpoint: address, timeouts, retries and price."""

    max_tokens: int = Field(
        256, ge=1, description="maximum tokens of the judge's reply; raise it for judges that reason first"
    )
    body: dict[str, Any] = Field(
        default_factory=dict,
        description="additional keys of the request; null removes a key: {max_tokens: null, max_completion_tokens: "
        "2000}",
    )
    price_in: float = Field(0.0, ge=0, description="price of a million input tokens")
    price_out: float = Field(0.0, ge=0, description="price of a million output tokens")


@dataclass(frozen=True)
class Reply:
    """The model's reply."""

    text: str
    cut: bool
    """True if `max_tokens` cut the reply."""
    used: Usage = field(default_factory=Usage)


class Endpoint(Connection):
    """Sends questions to one judge."""

    def __init__(self, params: EndpointParams, where: str) -> None:
        super().__init__(params, where)
        self._judge = params

    async def weights(self) -> str | None:
        """Return the digest of the served model's weights from `posttrain serve`; None if no server answers."""
        try:
            _, content = await self.exchange("GET", "models")
        except TryAgainError as error:
            return None if isinstance(error, SilentError) else ""
        try:
            data = json.loads(content)["data"]
            return next(str(entry["weights"]) for entry in data if entry["id"] == self._params.model)
        except (StopIteration, *MALFORMED):
            return ""

    async def ask(self, messages: Sequence[Mapping[str, str]]) -> Reply:
        """Return the reply at temperature 0. Raise NoReply, or RewardError if no request can succeed."""
        params = self._judge
        body = {"model": params.model, "messages": messages, "temperature": 0, "max_tokens": params.max_tokens}
        return await self.post("chat/completions", body, self._read, "the reply is not a chat completion")

    def _read(self, data: Any) -> Reply:
        """Return the first choice of a completion, and count its tokens."""
        choice = data["choices"][0]
        text = choice["message"]["content"]
        usage = data.get("usage") or {}
        sent, received = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
        if not isinstance(text, str | None):
            raise TypeError("the content is not a text")
        used = Usage(requests=1, tokens_in=max(sent, 0), tokens_out=max(received, 0))
        self.counts.update(tokens_in=used["tokens_in"], tokens_out=used["tokens_out"])
        return Reply(text or "", choice.get("finish_reason") == "length", used)

    def cost(self, used: Mapping[str, float]) -> float:
        """Return the cost of these tokens."""
        params = self._judge
        return (used["tokens_in"] * params.price_in + used["tokens_out"] * params.price_out) / 1e6


def connection(params: EndpointParams) -> dict[str, Any]:
    """Return everything that a reply depends on, except the messages."""
    body = {"body": params.body} if params.body else {}
    return {"url": params.url, "model": params.model, "max_tokens": params.max_tokens, **body}
