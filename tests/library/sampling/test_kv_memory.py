"""The memory of keys and values: their dtype, its estimate, and the budget that limits the rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.errors import ParamsError
from posttrain.models.decoder.kv_size import kv_bytes, kv_sizes
from posttrain.models.decoder.step import CachedDecoder
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.master_weights import frozen_on
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.stops import Stops
from tests.library.models.families import FAMILIES
from tests.library.models.test_families import family
from tests.library.models.tiny import Samples, random_rows, sample, tiny_model
from tests.library.sampling.naive import assert_same

PROMPTS = [*random_rows(5, seed=1)[0], [7]]  # some of them are shared by neighbours
NAMES = [str(i) for i in range(len(PROMPTS))]
LONGEST, DISTINCT = max(map(len, PROMPTS)), len({tuple(ids) for ids in PROMPTS})
NEVER, ENDS = Stops((), str), Stops((2, 11, 50), str)
MOST = 17


class Held:
    """The bytes and the rows that the cache held at its fullest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = self.rows = 0
        append = CachedDecoder.append_tokens

        def noted(decoder: CachedDecoder, token_R: torch.Tensor, position_R: torch.Tensor) -> None:
            append(decoder, token_R, position_R)
            self.bytes, self.rows = max(self.bytes, decoder._cache.nbytes), max(self.rows, len(token_R))

        monkeypatch.setattr(CachedDecoder, "append_tokens", noted)


def drawn(model: Any, stop: Stops = NEVER, precision: str = "fp32", **params: Any) -> Samples:
    device = Runtime(DeviceParams(device="cpu", precision=precision, threads=1))  # type: ignore[arg-type]
    settings = SamplingParams(max_tokens=MOST, **params)
    model = frozen_on(model, device)
    return sample(model, PROMPTS, NAMES, n=3, params=settings, seed=4, stop=stop, device=device)


def said(model: Any, itemsize: int, prompts: int, longest: int, rows: int) -> int:
    token, row = kv_bytes(kv_sizes(model), itemsize, MOST)
    return prompts * longest * token + rows * row


@pytest.mark.parametrize(("precision", "itemsize"), [("fp32", 4), ("bf16", 2)])
def test_keys_and_values_have_the_dtype_of_the_products(
    precision: str, itemsize: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each step casts all of them again, and the cache takes half as much more."""
    held, model = Held(monkeypatch), tiny_model()
    drawn(model, precision=precision)
    numbers = 2 * 2 * 2 * 8  # layers, keys and values, heads, width
    assert held.bytes == itemsize * numbers * (DISTINCT * LONGEST + 3 * len(PROMPTS) * MOST)
    assert held.bytes == said(model, itemsize, DISTINCT, LONGEST, 3 * len(PROMPTS))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_said_of_a_family_is_what_its_cache_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of several widths, shared ones, windows; and the same without weights."""
    held, model = Held(monkeypatch), family(name)
    drawn(model)
    assert held.bytes == said(model, 4, DISTINCT, LONGEST, 3 * len(PROMPTS))
    del model.kv_sizes
    assert said(model.to("meta", torch.bfloat16), 4, DISTINCT, LONGEST, 3 * len(PROMPTS)) == held.bytes


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "rows", "most"), [(1, 1, 1), (1, 3, 3), (DISTINCT, 100, 18)])
def test_samples_are_the_same_for_any_budget(
    prompts: int, rows: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model().double()
    expected = drawn(model, ENDS, rows=7)
    held, budget = Held(monkeypatch), said(model, 8, prompts, LONGEST, rows)
    assert_same(drawn(model, ENDS, kv_gb=budget / 1e9), expected)
    assert held.bytes <= budget
    assert held.rows == most or (prompts == 1 and most <= held.rows < 18), "shorter prompts leave room for more rows"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 100])
def test_prompts_of_several_passes_give_the_same_samples(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over all prompts at once would need memory that no setting bounds."""
    model = tiny_model().double()
    expected = drawn(model, ENDS, rows=rows)
    monkeypatch.setattr("posttrain.models.decoder.step.PREFILL_TOKENS", 12)
    assert_same(drawn(model, ENDS, rows=rows), expected)


def test_a_row_that_does_not_fit_is_refused_with_the_key_to_raise() -> None:
    model = tiny_model()
    budget = (said(model, 4, 1, LONGEST, 1) - 1) / 1e9
    with pytest.raises(ParamsError, match=rf"prompt of {LONGEST} tokens .* allowed. Raise it") as error:
        drawn(model, kv_gb=budget)
    assert error.value.where == "sampling.kv_gb"


@pytest.mark.slow
def test_without_a_budget_a_row_is_decoded_where_half_of_the_memory_would_not_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model().double()
    expected, held, one = drawn(model), Held(monkeypatch), said(model, 8, 1, LONGEST, 1)
    monkeypatch.setattr("posttrain.sampling.scheduler.free_bytes", lambda _: float(one))
    assert_same(drawn(model), expected)
    assert held.bytes <= one
    monkeypatch.setattr("posttrain.sampling.scheduler.free_bytes", lambda _: one - 1.0)
    with pytest.raises(ParamsError, match="GB are free"):
        drawn(model)
