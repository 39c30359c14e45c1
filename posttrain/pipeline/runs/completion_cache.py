"""Cache completions by content. Repeated sampling with the same model, requests and settings reads a file.

The file name is a digest of everything that decides a completion: the model's files, the requests, the sampling
settings, the sampling code, packages, CPU instructions and device. The file contains token ids and no text.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, cast

import polars as pl
import torch

from posttrain.data.parquet import DECODE_ERRORS, decode, write_parquet
from posttrain.files import file_digest, remove_oldest, write_text
from posttrain.measure.record import cpu_isa, versions
from posttrain.models.device import DeviceParams
from posttrain.pipeline.lock.code_manifest import Library
from posttrain.pipeline.lock.digests import Digests
from posttrain.pipeline.workspace import main_root
from posttrain.rollout import Prompt
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import OpenSampler
from posttrain.sampling.sampler import BUILTIN_CAN, Capability, Completion, Mixture, Request, Sampler, SamplingParams

CACHE_BYTES: Final = 2_000_000_000
"""The size of the cache in bytes. Beyond it, the least recently used files are removed."""
_SCHEMA: Final = {"ids": pl.List(pl.Int64()), "logps": pl.List(pl.Float32()), "finish": pl.String()}


class ExactSampler(Sampler, Protocol):
    """A sampler that always returns the same completions."""

    @property
    def computes_with(self) -> str:
        """The device and number format."""


def cached(opens: OpenSampler, device: DeviceParams, where: str, *, keep: bool = True) -> OpenSampler:
    """Return a function that opens a sampler for a folder's unchanged model, with the cache if sampling is exact.

    `where`: the section of its settings. `keep`: whether completions may be cached.
    """

    @contextmanager
    def opened(policy: SampledModel, sampling: SamplingParams, prompts: Sequence[Prompt]) -> Iterator[Sampler]:
        with opens(policy, sampling, prompts) as sampler:
            if not (keep and "exact" in sampler.can):
                yield sampler
                return
            yield CachedSampler(cast("ExactSampler", sampler), policy.folder, device.model_dump(), where)

    return opened


class CachedSampler:
    """A sampler for a folder's unchanged model. It samples only if the cache lacks the completions."""

    can: frozenset[Capability] = BUILTIN_CAN

    def __init__(self, inner: ExactSampler, folder: Path, device: Mapping[str, Any], where: str) -> None:
        """`device`: the device settings. `where`: the caller, for the line that reports cached completions."""
        self._inner, self._where, self.version = inner, where, inner.version
        self._base: list[Any] | None = [
            Digests().of(str(folder)), _code(), versions(), cpu_isa(),
            dict(device), torch.get_num_threads(), inner.computes_with,
        ]  # fmt: skip

    @property
    def context(self) -> int | None:
        """The model's context length."""
        return self._inner.context

    def sync(self, model: Any, version: str) -> None:
        """Sample from this model from now on, without the cache, because the model has no folder."""
        self._base, self.version = None, version
        self._inner.sync(model, version)

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
        """Return a completion for each request, from the cache if it has all completions."""
        folder = main_root() / ".dvc/tmp"
        if mixture is not None or self._base is None or not folder.is_dir():  # not a DVC workspace
            return self._inner.generate(requests, params, seed, greedy=greedy, mixture=mixture, advance=advance)
        settings = [params.model_dump(mode="json"), seed, greedy]
        file = folder / "completions" / f"{self._key(requests, settings)}.parquet"
        if (stored := _cached(file, len(requests))) is not None:
            print(f"{self._where}: {len(stored):,} completions from the cache")
            if advance:
                advance(len(stored))
            return stored
        completions = self._inner.generate(requests, params, seed, greedy=greedy, advance=advance)
        _write(file, completions)
        return completions

    def _key(self, requests: Sequence[Request], settings: list[Any]) -> str:
        digest = hashlib.sha256(json.dumps([self._base, settings], sort_keys=True).encode())
        for request in requests:
            digest.update(json.dumps([request.name, list(request.ids)]).encode())
        return digest.hexdigest()[:32]


@cache
def _code() -> dict[str, str]:
    """Return the digests of the sampling code."""
    library = Library()
    outlines = library.closure("posttrain.sampling.builtin")
    library.outlines.keep()
    return outlines


def _cached(file: Path, count: int) -> list[Completion] | None:
    """Return the completions in a file whose digest is right."""
    try:
        if file.with_suffix(".md5").read_text(encoding="utf-8") != file_digest(file):
            return None
        rows = decode(file).rows()
        os.utime(file)
    except DECODE_ERRORS:
        return None
    return [Completion(*row) for row in rows] if len(rows) == count else None


def _write(file: Path, completions: Sequence[Completion]) -> None:
    """Write the file under a temporary name first, because another process may be writing the same file."""
    values = {name: [getattr(completion, name) for completion in completions] for name in _SCHEMA}
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".", suffix=".tmp") as scratch:
        partial = Path(scratch, file.name)
        write_parquet(pl.DataFrame(values, schema=_SCHEMA), partial)
        os.replace(partial, file)
    write_text(file.with_suffix(".md5"), file_digest(file), shared=True)
    remove_oldest(file, CACHE_BYTES)
