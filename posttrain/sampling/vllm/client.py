"""Sample with an external engine: servers with vLLM's completions API, in a separate environment.

Each completion is one request with its own seed: token ids in, token ids and log-probs out. Any server may answer it.
Requests and answers carry the version of the weights. If a server dies or hangs, only this server is restarted with the
present weights, and its unanswered requests are sent again with the same seeds.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import torch

from posttrain.errors import EngineError
from posttrain.formulas.ragged import row_keys
from posttrain.measure.counts import count, seconds_of
from posttrain.measure.phases import phase
from posttrain.measure.record import note
from posttrain.models.device import Runtime
from posttrain.models.files.text import context_of
from posttrain.models.forward.routers import find_routers
from posttrain.sampling.sampler import VLLM_CAN, Capability, Completion, Mixture, Request, SamplingParams
from posttrain.sampling.vllm.answers import read_completion, request_of
from posttrain.sampling.vllm.given import FROZEN, GivenWeights
from posttrain.sampling.vllm.process import EngineProcess
from posttrain.sampling.vllm.server import DROPS_WEIGHTS, HEADER, KEEPS_WEIGHTS, LORA, POLICY, SAMPLES
from posttrain.sampling.vllm.together import announce, probe_logps
from posttrain.text.stops import Stops

TRIES: Final = 4
"""The number of tries per completion. Between two tries, the server is checked."""
SILENT_S: Final = 1800.0
"""Seconds without any answer after which a server counts as hanging."""
HEALTH_S: Final = 30.0
"""Seconds in which a server that failed to answer must say which weights it holds."""
PROBE: Final = SamplingParams(max_tokens=8)
PROBE_GAP: Final = 0.5
"""The largest mean difference of log-probs between server and trainer, in nats, in the first sample of a server."""
T = TypeVar("T")


class _LostError(Exception):
    """A request got no usable answer and may be sent again."""


@dataclass(frozen=True)
class Patience:
    """The maximum silence of the server, and the number of tries of a request."""

    silent_s: float = SILENT_S
    health_s: float = HEALTH_S
    tries: int = TRIES
    pause_s: float = 0.5
    """Seconds before the second try. The pause doubles with each further try."""


class EngineSampler:
    """Samples with servers that are started with the first weights. `close` ends them.

    If vLLM can load the model's adapter separately, the servers start with the frozen model and then get adapters.
    """

    can: frozenset[Capability] = VLLM_CAN

    def __init__(
        self,
        model: Any,
        files: Path,
        stops: Stops,
        runtime: Runtime,
        servers: Sequence[EngineProcess],
        *,
        longest: int | None = None,
        patience: Patience = Patience(),
        sleeps: bool = False,
    ) -> None:
        """`files`: the folder with the tokenizer. `longest`: the most tokens of a request. `servers` share a folder.

        `sleeps`: the servers give the GPU's memory back when `rest` is called.
        """
        self._sleeps, self._asleep = sleeps, False
        self._model, self._stops, self._runtime = model, stops, runtime
        self._servers, self._patience, self._longest = servers, patience, longest
        self._given = GivenWeights(model, files, servers[0].folder, torch.bfloat16 if runtime.bf16 else torch.float32)
        self._begun, self._first = 0.0, math.inf
        self.version = ""

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of a request with its completion."""
        return self._longest or context_of(self._model.config)

    @phase("load")
    def sync(self, model: Any, version: str) -> None:
        """Give the servers these weights. Start servers that are not running."""
        before, self._model, self.version = self._given.folder, model, version
        first = not any(server.starts for server in self._servers)
        self._make_room()
        with seconds_of("engine_write_s"):
            self._write()
        try:
            with seconds_of("engine_load_s"):
                self._give_all()
        except EngineError as error:
            if not first or self._given.rank is None:
                raise
            print(f"engine: the adapter is merged into the model for each round, since {error.what}", flush=True)
            self._merge()
            self._give_all()
        if before is not None:
            for server in self._servers:
                server.forget(before)
            self._given.forget(before)

    def generate(
        self,
        requests: Sequence[Request],
        params: SamplingParams,
        seed: int,
        *,
        greedy: bool = False,
        mixture: Mixture | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Return a completion for each request."""
        if mixture is not None or params.top_p < 1 or params.top_k is not None:
            raise ValueError("an external engine samples from one policy, without top_p and top_k")
        if greedy:  # vLLM's word for it; log-probs are those at temperature 1
            params = params.model_copy(update={"temperature": 0.0})
        self._wake()
        with seconds_of("engine_generate_s"):
            completions = self._all(self._servers, requests, params, seed, advance)
        count({"generate_tokens": sum(len(completion.ids) for completion in completions)})
        return completions

    def rest(self) -> None:
        """Let the servers free the GPU's memory, if they may sleep. The next samples or weights wake them."""
        if not self._sleeps or self._asleep:
            return
        # without an adapter the weights are in a file, so a server need not keep them
        level = DROPS_WEIGHTS if self._given.rank is None else KEEPS_WEIGHTS
        with seconds_of("engine_sleep_s"):
            self._each(lambda server: server.ask("POST", {"sleep": level}))
        self._asleep = True

    def _wake(self) -> None:
        """Wake the servers for more samples of the same weights."""
        if self._asleep:
            self._make_room()
            with seconds_of("engine_load_s"):
                self._each(self._give)

    def _make_room(self) -> None:
        """Give back the GPU memory that this process keeps for later, before servers that sleep take it."""
        if self._asleep and self._runtime.device.type == "cuda":
            torch.cuda.empty_cache()
        self._asleep = False

    def close(self) -> None:
        """End the servers. A request in progress fails."""
        for server in self._servers:
            server.retire()
        for server in self._servers:
            server.close()
        self._given.remove()

    def _each(self, do: Callable[[EngineProcess], T]) -> list[T]:
        """Call a function with each server, in parallel."""
        with ThreadPoolExecutor(len(self._servers)) as pool:
            try:
                return list(pool.map(do, self._servers))
            except (KeyboardInterrupt, SystemExit):
                self.close()  # so that no thread waits for a start
                raise

    def _all(
        self, servers: Sequence[EngineProcess], requests: Sequence[Request], params: SamplingParams, seed: int,
        advance: Callable[[int], None] | None = None, *, restarts: bool = True,
    ) -> list[Completion]:  # fmt: skip
        """Return the completions. Each server gets adjacent requests, so samples of one prompt stay together."""
        keys = row_keys(seed, [request.name for request in requests]).tolist()
        model = POLICY if self._given.rank is None else LORA
        bodies = [
            request_of(request, key, params, self._stops, model, f"{seed}:{request.name}")
            for request, key in zip(requests, keys, strict=True)
        ]
        completions: dict[int, Completion] = {}
        bounds = [len(bodies) * number // len(servers) for number in range(len(servers) + 1)]

        async def ask() -> None:
            parts = zip(servers, pairwise(bounds), strict=True)
            asked = (
                self._ask(one, bodies, range(*part), params, completions, advance, restarts) for one, part in parts
            )
            try:
                await asyncio.gather(*asked)
            except asyncio.CancelledError:
                self.close()  # so that no thread waits for a start
                raise

        self._begun, self._first = time.perf_counter(), math.inf
        asyncio.run(ask())
        count({"engine_first_token_s": self._first} if math.isfinite(self._first) else {})
        note(engine_starts=sum(server.starts for server in self._servers))
        return [completions[place] for place in range(len(bodies))]

    async def _ask(
        self, server: EngineProcess, bodies: Sequence[Mapping[str, Any]], places: Sequence[int], params: SamplingParams,
        completions: dict[int, Completion], advance: Callable[[int], None] | None, restarts: bool,  # noqa: FBT001
    ) -> None:  # fmt: skip
        """Request the completions at these indices from a server, again if answers were lost."""
        lost = ""
        for number in range(self._patience.tries):
            left = [place for place in places if place not in completions]
            if not left:
                return
            if number:
                await asyncio.to_thread(self._look_after, server, number, lost, restarts=restarts)
            lost = await self._round(server, bodies, left, params, completions, advance) or lost
        if left := [place for place in places if place not in completions]:
            what = f"{len(left)} of {len(places)} completions were not answered in "
            raise server.failed(f"{what}{self._patience.tries} tries ({lost})")

    async def _round(
        self, server: EngineProcess, bodies: Sequence[Mapping[str, Any]], places: Sequence[int], params: SamplingParams,
        completions: dict[int, Completion], advance: Callable[[int], None] | None,
    ) -> str:  # fmt: skip
        """Request the completions at these indices and put them into `completions`. Return why some were lost."""
        slots, lost = asyncio.Semaphore(-(-params.rows // len(self._servers))), ""
        transport = httpx.AsyncHTTPTransport(
            uds=str(server.socket), limits=httpx.Limits(max_connections=None, max_keepalive_connections=64)
        )
        async with httpx.AsyncClient(transport=transport, timeout=None, headers={HEADER: self.version}) as client:

            async def ask(place: int) -> None:
                async with slots:
                    completions[place] = await self._completion(server, client, bodies[place], params)
                if advance:
                    advance(1)

            tasks = waiting = {asyncio.create_task(ask(place)) for place in places}
            try:
                while waiting:
                    done, waiting = await asyncio.wait(
                        waiting, timeout=self._patience.silent_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    if not done:
                        return f"no answer for {self._patience.silent_s:g} s"
                    for task in done:
                        error = task.exception()
                        if isinstance(error, _LostError):
                            lost = str(error)
                        elif error is not None:
                            raise error
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return lost

    async def _completion(
        self, server: EngineProcess, client: httpx.AsyncClient, body: Mapping[str, Any], params: SamplingParams
    ) -> Completion:
        sent = time.perf_counter() - self._begun
        try:
            answer = await client.post(f"http://engine{SAMPLES}", json=body)
        except httpx.TransportError as error:
            raise _LostError(f"the connection failed: {type(error).__name__}") from error
        if answer.status_code >= 500 or answer.status_code in (408, 409, 429):
            raise _LostError(f"HTTP {answer.status_code}: {answer.text:.200}")
        if answer.status_code != 200:
            raise server.failed(f"the server rejected a request: HTTP {answer.status_code}: {answer.text:.300}")
        if (held := answer.headers.get(HEADER)) != self.version:
            raise _LostError(f"an answer used the weights {held!r}, not {self.version!r}")
        with seconds_of("engine_read_s"):
            return self._read(server, answer, body, params, sent)

    def _read(
        self, server: EngineProcess, answer: httpx.Response, body: Mapping[str, Any], params: SamplingParams,
        sent: float,
    ) -> Completion:  # fmt: skip
        """Return the completion in an answer. Reject an answer that cannot be a sample for this request."""
        try:
            reply = answer.json()
            self._first = min(self._first, sent + float(reply["first_s"]))
            return read_completion(reply, body["prompt"], params, self._stops, self._model)
        except (ValueError, LookupError, TypeError) as error:
            why = str(error) if type(error) is ValueError else repr(error)
            what = f"the server returned an invalid answer ({why:.200}): {answer.text:.300}"
            raise server.failed(what) from error

    def _look_after(self, server: EngineProcess, number: int, lost: str, *, restarts: bool) -> None:
        """Prepare another try: restart a dead or silent server, and reload the weights if it has others."""
        print(f"engine: {lost}; try {number + 1} of {self._patience.tries}", flush=True)
        pause = self._patience.pause_s * 2 ** (number - 1)
        time.sleep(pause)
        if not restarts:
            return
        silent = lost.startswith("no answer")
        try:
            held = None if silent or not server.alive else self._held(server)
        except (httpx.TransportError, EngineError):
            held = None
        if held is None or (held != self.version and not self._load(server)):
            self._start(server)

    def _held(self, server: EngineProcess) -> str | None:
        state = server.ask("GET", seconds=self._patience.health_s)
        return state.get("weights")

    def _write(self) -> None:
        count({"weight_bytes": self._given.write(self._model, self.version)})

    def _merge(self) -> None:
        """End the servers, and write the present weights with the adapter merged. Later syncs do the same."""
        for server in self._servers:
            server.end()
        self._given.merge()
        self._write()

    def _give_all(self) -> None:
        """Make all servers load the present weights. Test newly started servers with a first sample."""
        started = self._each(self._give)
        for server in (one for one, new in zip(self._servers, started, strict=True) if new):
            self._probe(server)

    def _give(self, server: EngineProcess) -> bool:
        """Make a server load the present weights, or start it with them. Return whether it was started."""
        if server.alive and self._load(server):
            return False
        self._start(server)
        return True

    def _start(self, server: EngineProcess) -> None:
        assert self._given.folder is not None
        if self._given.rank is None:
            _check(server, self._started(server, self._given.folder, []), self.version)
            return
        assert self._given.frozen is not None
        lora = ["--enable-lora", "--max-loras", "1", "--max-lora-rank", str(self._given.rank)]
        _check(server, self._started(server, self._given.frozen, lora), FROZEN)
        if not self._load(server):
            raise server.failed("the server did not answer when it received the adapter")

    def _started(self, server: EngineProcess, weights: Path, options: Sequence[str]) -> dict[str, Any]:
        state = server.start(weights, options)
        engine = str(state.get("engine"))
        if not engine.startswith("vllm "):
            raise server.failed(f"the server is {engine!r:.60}, not vLLM")
        note(engine=engine)
        return state

    def _load(self, server: EngineProcess) -> bool:
        """Make a server load the present weights. Return whether it answered.

        When vLLM 0.30 starts on a CPU, it packs a mixture's experts, but it computes with unpacked ones after loading
        other weights. Such a server is restarted instead.
        """
        if self._given.rank is None and self._runtime.device.type == "cpu" and find_routers(self._model):
            return False
        try:
            assert self._given.folder is not None
            _check(server, server.load(self._given.folder), self.version)
        except (httpx.TransportError, BrokenPipeError):
            return False
        return True

    def _probe(self, server: EngineProcess) -> None:
        """Check that the log-probs of a first sample equal the trainer's for the same tokens."""
        known = list(range(min(4, self._model.config.get_text_config().vocab_size)))
        stops, self._stops = self._stops, Stops((), self._stops.decode)
        try:
            [sample] = self._all([server], [Request(known, "probe")], PROBE, 0, restarts=False)
        finally:
            self._stops = stops
        announce("probe", prompt=known, ids=sample.ids)
        logps = probe_logps(self._model, known, sample.ids)
        gap = float((logps - torch.tensor(sample.logps)).abs().mean())
        if not gap < PROBE_GAP:
            what = f"the log-probs of the server's first sample differ by {gap:.3g} nats from the trainer's"
            raise server.failed(what)


def _check(server: EngineProcess, state: Mapping[str, Any], version: str) -> None:
    if state.get("weights") != version:
        what = f"the server has the weights {state.get('weights')!r} after an update to {version!r}"
        raise server.failed(what)
