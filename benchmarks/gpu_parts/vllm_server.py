"""Part E: where a round goes with vLLM: new weights, and answers with and without log-probs and seeds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import httpx

from benchmarks.gpu_parts.figures import Figures, MissingError, Result, limit, predicted
from benchmarks.gpu_parts.sizes import Device, Sizes
from benchmarks.speed import ours
from benchmarks.speed.case import Case, prompts
from posttrain.errors import EngineError
from posttrain.sampling.engines import ENGINES
from posttrain.sampling.sampler import Request, SamplingParams
from posttrain.sampling.vllm.server import HEADER, POLICY

START = "start of the server"
CAP = 38_000
"""Tokens a second that a server's CPU work allows with log-probs, by 26 microseconds for each token."""
SHOWN_LINES = 4


def run(figures: Figures, device: Device, sizes: Sizes) -> None:
    """Start one server, give it new weights, then ask for samples in several ways."""
    del device
    try:
        ENGINES["vllm"].check()
    except EngineError as error:
        raise MissingError(f"{error.what}. {error.fix}") from error
    case = replace(sizes.grpo, batch=max(sizes.requests))
    models = ours.models_of(case, ours.device(case), reference=False, lora=False)
    text: Any = ours._Text(case)
    with ours.sampler_of(case, models, text, "vllm") as sampler:
        _measure(figures, sizes, case, sampler, models.policy)


def _measure(figures: Figures, sizes: Sizes, case: Case, sampler: Any, policy: Any) -> None:
    start = time.perf_counter()
    sampler.sync(policy, "first")  # a run that goes on needs the server too
    spent = time.perf_counter() - start
    [server] = sampler._servers  # the log and the socket are no part of a sampler's interface
    figures.take(START, partial(_started, spent, server))
    figures.take(
        "new weights", partial(_new_weights, sampler, policy),
        limit("write_s", 0.6, "writing makes new pages each time", "written over the same pages", unit="s to write"),
    )  # fmt: skip
    for rows in sizes.requests:
        requests = [Request(ids, f"r{place}") for place, ids in enumerate(prompts(replace(case, batch=rows), rows))]
        figures.take(f"{rows} samples as a run takes them", partial(_sampled, sampler, requests, case.longest_answer))
        base: Result | None = None
        for name, body in _BODIES.items():
            title = f"{rows} answers {name}"
            measure = partial(_answered, figures, server, sampler.version, requests, body, case.longest_answer)
            found = figures.take(title, measure if base is None else _against(measure, base), _judge(name))
            base = base or found


_BODIES: dict[str, dict[str, Any]] = {
    "with seeds and log-probs": {"seed": 1, "logprobs": 0},
    "with log-probs": {"logprobs": 0},
    "with seeds": {"seed": 1},
    "alone": {},
}
"""What is asked for beyond tokens. The first is what a run asks for."""


def _judge(name: str) -> Any:
    if name == "with seeds and log-probs":
        below = "below what the server's CPU allows"
        return limit("tokens_s", CAP, "the CPU of the server is no cap", below, unit="tokens/s")
    if name == "with log-probs":
        return predicted("speed", 1.0, "seeds cost nothing", "seeds cost time", unit="times as fast", within=0.05)
    return limit("speed", 1.1, "log-probs cost time", "log-probs cost nothing", unit="times as fast")


def _against(measure: Callable[[], Result], base: Result) -> Callable[[], Result]:
    def taken() -> Result:
        found = measure()
        return {**found, "speed": found["tokens_s"] / base["tokens_s"]}

    return taken


def _started(seconds: float, server: Any) -> Result:
    """Return the seconds until the server had the first weights, and the lines of its log that name its runner."""
    lines = server._log.read_text(encoding="utf-8", errors="replace").splitlines()
    named = [line.strip()[-200:] for line in lines if "runner" in line.lower()]
    return {"start_s": seconds, "runner": " | ".join(named[:SHOWN_LINES]) or "its log does not name the runner"}


def _new_weights(sampler: Any, policy: Any) -> Result:
    """Return the seconds of writing and of loading the weights, in the second of two rounds after the start."""
    spent: dict[str, float] = {}
    for version in ("second", "third"):
        with _clocked(sampler, "_write", spent), _clocked(sampler, "_give_all", spent):
            sampler.sync(policy, version)
    return {"write_s": spent["_write"], "load_s": spent["_give_all"]}


class _clocked:  # noqa: N801
    """Keep the seconds of a method's last call."""

    def __init__(self, owner: Any, name: str, spent: dict[str, float]) -> None:
        self._owner, self._name, self._spent = owner, name, spent

    def __enter__(self) -> None:
        own = getattr(self._owner, self._name)

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return own(*args, **kwargs)
            finally:
                self._spent[self._name] = time.perf_counter() - start

        setattr(self._owner, self._name, call)

    def __exit__(self, *raised: object) -> None:
        delattr(self._owner, self._name)


def _sampled(sampler: Any, requests: list[Request], most: int) -> Result:
    """Return the speed of the library's own requests, which end where the model ends them."""
    start = time.perf_counter()
    completions = sampler.generate(requests, SamplingParams(max_tokens=most, rows=len(requests)), 0)
    seconds = time.perf_counter() - start
    tokens = sum(len(one.ids) for one in completions)
    return {"generate_s": seconds, "tokens_s": tokens / seconds, "tokens": tokens}


def _answered(
    figures: Figures, server: Any, version: str, requests: list[Request], body: dict[str, Any], most: int
) -> Result:
    """Return the speed of completions of the same length, asked for at once by vLLM's own route."""
    wait = max(figures.seconds_left, 1.0)
    asyncio.run(_ask(server, version, requests, body, 2, wait))  # the first of its kind may compile something
    start = time.perf_counter()
    asyncio.run(_ask(server, version, requests, body, most, wait))
    seconds = time.perf_counter() - start
    return {"s": seconds, "tokens_s": most * len(requests) / seconds, "ms_a_token": seconds / most * 1e3}


async def _ask(
    server: Any, version: str, requests: list[Request], body: dict[str, Any], most: int, seconds: float
) -> None:
    transport = httpx.AsyncHTTPTransport(uds=str(server.socket), limits=httpx.Limits(max_connections=None))
    common = {"model": POLICY, "max_tokens": most, "temperature": 1.0, "ignore_eos": True}
    async with httpx.AsyncClient(transport=transport, timeout=seconds, headers={HEADER: version}) as client:
        asked = [
            client.post("http://engine/v1/completions", json={**common, **body, "prompt": list(request.ids)})
            for request in requests
        ]
        for answer in await asyncio.gather(*asked):
            answer.raise_for_status()
