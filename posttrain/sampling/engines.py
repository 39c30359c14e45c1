"""The engines that sample a model, by their names in the settings: their capabilities, and how they are opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol

from pydantic import AfterValidator, Field

from posttrain.models.device import Runtime
from posttrain.sampling.sampler import Capability, Sampler, SamplingParams
from posttrain.sampling.vllm.hosts import HOSTS, server_hosts
from posttrain.settings.listing import Listing, instance, why_unknown
from posttrain.text.chat import ChatText


def _known(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(". ".join(why_unknown(ENGINES, name)))
    return name


EngineName = Annotated[str, AfterValidator(_known)]
ENGINE: Any = Field(
    "builtin",
    description="builtin: posttrain's decoder; vllm: a vLLM server (docs/sampling.md); or a plugin's engine",
)
"""The setting `engine`."""
EngineArgs = Annotated[
    dict[str, Any],
    Field(
        description="vLLM's own settings, passed on unchanged, e.g. {quantization: fp8, enable_prefix_caching: false}. "
        "In a rollout also {sleep: true}: free the GPU's memory while the policy is trained"
    ),
]
"""The setting `engine_args`."""
Servers = Annotated[
    int | list[list[int]],
    Field(
        description="vLLM servers that share the samples: their number, on the run's own devices; or the GPUs of each "
        "server, numbered as the run sees them, e.g. [[1], [2, 3]]: one server on GPU 1, one on GPUs 2 "
        "and 3"
    ),
]
"""The setting `engine_servers`."""
SLEEP: Final = "sleep"
"""The key of `engine_args` that posttrain adds: servers give the GPU's memory back while the policy is trained."""
PARALLEL: Final = {f"{kind}_parallel_size" for kind in ("tensor", "pipeline", "data")}
"""vLLM's settings for parallelism, which concern GPUs."""


class SampledModel(NamedTuple):
    """A model to sample from. `folder` contains its tokenizer."""

    policy: Any
    folder: Path
    text: ChatText
    runtime: Runtime


class Open(Protocol):
    """Opens a sampler of a model.

    `longest`: the most tokens of a row. `where`: the section of its settings. `args`: the engine's own settings.
    `servers`: the number of servers, or the GPUs of each.
    """

    def __call__(
        self, model: SampledModel, sampling: SamplingParams, longest: int, where: str, args: EngineArgs,
        servers: Servers = 1,
    ) -> AbstractContextManager[Sampler]: ...  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """An engine that samples from a model."""

    can: frozenset[Capability]
    open: Open
    check: Callable[[], object] = lambda: None
    """Raises if this machine lacks something that the engine needs."""
    sets: Mapping[str, str] | None = None
    """The engine's settings that `engine_args` may not contain -> why; None: it has no extra settings."""

    def refuse(self, name: str, needs: Mapping[str, Capability]) -> None:
        """Raise if a setting needs an ability that the engine lacks. `needs`: the setting -> the ability."""
        if reason := next((text for text, ability in needs.items() if ability not in self.can), ""):
            able = ", or use engine builtin" if set(needs.values()) <= ENGINES["builtin"].can else ""
            raise ValueError(f"engine {name} cannot have {reason}. Change it{able}")


ENGINES: Final[Listing[Engine]] = Listing("posttrain.sampling", "ENGINES", group="engines", adopt=instance(Engine))
"""Name -> engine. A run imports only its own engine's file."""


def refuse_sampling(name: EngineName, sampling: SamplingParams, args: EngineArgs, servers: Servers) -> None:
    """Raise if settings need a missing ability, or set options that posttrain must set itself."""
    _refuse_servers(name, servers)
    if args and ENGINES[name].sets is None:
        raise ValueError(f"engine_args: engine {name} has no extra settings. Remove them, or set engine: vllm")
    for key, value in args.items():
        plain = key.replace("-", "_").partition(".")[0]
        if decided := (ENGINES[name].sets or {}).get(plain):
            raise ValueError(f"engine_args.{key}: {decided}. Remove it")
        if key == SLEEP and not isinstance(value, bool):
            raise ValueError(f"engine_args.{SLEEP} = {value}: expected true or false")
        if plain in PARALLEL and isinstance(servers, list):
            raise ValueError(f"engine_args.{key}: engine_servers has the GPUs of each server. Remove it")
        if not re.fullmatch(r"[a-z][\w.-]*", key) or value is None:
            raise ValueError(f"engine_args.{key} = {value}: expected the name of a setting of vLLM and its value")
    needs: dict[str, Capability] = {}
    needs |= {f"sampling.top_p = {sampling.top_p:g}": "top_p"} if sampling.top_p < 1 else {}
    needs |= {f"sampling.top_k = {sampling.top_k}": "top_k"} if sampling.top_k is not None else {}
    needs |= {"sampling.stop": "stop_strings"} if sampling.stop else {}
    ENGINES[name].refuse(name, needs)


def _refuse_servers(name: EngineName, servers: Servers) -> None:
    if servers != 1 and ENGINES[name].sets is None:
        raise ValueError(f"engine_servers: engine {name} has no servers. Remove it, or set engine: vllm")
    hosts = zip(server_hosts(len(servers)), servers, strict=True) if isinstance(servers, list) else []
    gpus = [(host, gpu) for host, one in hosts for gpu in one]
    right = servers >= 1 if isinstance(servers, int) else servers and all(servers) and min(gpu for _, gpu in gpus) >= 0
    if not right or len(set(gpus)) < len(gpus):
        what = (
            f"expected the number of servers, or the GPUs of each server, each GPU once on a host (their hosts: "
            f"{HOSTS})"
        )
        raise ValueError(f"engine_servers = {servers}: {what}. Write e.g. 2, or [[1], [2, 3]]")
