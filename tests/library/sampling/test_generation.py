"""Generation against the plain loop: slots and their refill, windows, ways to draw, ways to stop, families."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from posttrain.models.decoder.kv_cache import FIRST_COLUMNS, KVBuffer
from posttrain.models.decoder.step import CachedDecoder
from posttrain.models.device import DeviceParams, Runtime
from posttrain.sampling.builtin import sample_next, top_k_top_p_mask
from posttrain.sampling.sampler import Mixture, SamplingParams
from posttrain.text.stops import Stops, StopStrings
from tests.library.models.tiny import Samples, greedy, random_rows, sample, tiny_model
from tests.library.sampling.naive import assert_same, naive

DEVICE = Runtime(DeviceParams(device="cpu", threads=1))
PROMPTS = [*random_rows(5, seed=1)[0], [7]]  # some of them are shared by neighbours
NAMES = [str(i) for i in range(len(PROMPTS))]
ENDS = Stops((2, 11, 50), lambda ids: "".join(f"<{token}>" for token in ids))


def drawn(model: Any, params: SamplingParams, n: int = 3, stop: Stops = ENDS) -> Samples:
    return sample(model, PROMPTS, NAMES, n=n, params=params, seed=4, stop=stop, device=DEVICE)


@pytest.fixture(scope="module")
def by_itself() -> Samples:
    """Each row of the plain model by the plain loop."""
    return naive(tiny_model().double(), PROMPTS, NAMES, 3, SamplingParams(max_tokens=17), 4, ENDS.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_the_number_of_slots_decides_nothing(rows: int, by_itself: Samples) -> None:
    """Rows of mixed lengths come and go between those that stay; one slot is one row after the other."""
    assert len({len(ids) for ids in by_itself.ids}) > 4, "the lengths are mixed"
    assert any(by_itself.truncated)
    assert_same(drawn(tiny_model().double(), SamplingParams(max_tokens=17, rows=rows)), by_itself)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 5])
def test_the_number_of_slots_decides_nothing_for_the_models_own_code(
    rows: int, by_itself: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posttrain.models.decoder.step.supports_decoder_step", lambda _: False)
    assert_same(drawn(tiny_model().double(), SamplingParams(max_tokens=17, rows=rows)), by_itself)


@pytest.mark.parametrize("rows", [3, 100])
def test_how_many_numbers_are_made_ahead_decides_nothing(
    rows: int, by_itself: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posttrain.sampling.builtin.RANDOM_BLOCK", 3)
    assert_same(drawn(tiny_model().double(), SamplingParams(max_tokens=17, rows=rows)), by_itself)


@pytest.mark.slow
@pytest.mark.parametrize("strings", [[], ["7><", "<3"]], ids=["tokens", "strings"])
def test_how_often_ended_rows_are_looked_for_decides_nothing(
    strings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an accelerator, where several steps may have gone by since a row ended."""
    params = SamplingParams(max_tokens=17, rows=4, stop=strings)
    expected = drawn(tiny_model().double(), params)
    monkeypatch.setattr("posttrain.sampling.builtin.steps_between_checks", lambda _: 4)
    assert_same(drawn(tiny_model().double(), params), expected)


@pytest.mark.slow
def test_the_number_of_slots_decides_nothing_in_float32(by_itself: Samples) -> None:
    for rows in (3, 100):
        assert_same(drawn(tiny_model(), SamplingParams(max_tokens=17, rows=rows)), by_itself, 1e-4)


@pytest.mark.slow
def test_both_models_of_a_mixture_let_rows_in() -> None:
    found = [
        sample(
            tiny_model().double(), PROMPTS, NAMES, n=3, params=SamplingParams(max_tokens=17, rows=rows), seed=4,
            stop=ENDS, device=DEVICE, mixture=Mixture(tiny_model(seed=5).double(), 0.4),
        )
        for rows in (3, 100)
    ]  # fmt: skip
    assert_same(*found)


@pytest.mark.slow
def test_greedy_rows_are_refilled_as_well() -> None:
    model, params = tiny_model().double(), SamplingParams(max_tokens=17, rows=2)
    found = greedy(model, PROMPTS, params=params, stop=ENDS, device=DEVICE)
    assert_same(found, naive(model, PROMPTS, None, 1, params, 0, ENDS.tokens))


@pytest.mark.slow
def test_a_free_slot_is_taken_while_a_long_row_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of the whole are those of the slots kept busy, not those of one chunk after the other."""
    steps: list[int] = []
    append = CachedDecoder.append_tokens

    def counted(self: CachedDecoder, token_R: torch.Tensor, position_R: torch.Tensor) -> None:
        steps.append(len(token_R))
        append(self, token_R, position_R)

    monkeypatch.setattr(
        CachedDecoder, "append_tokens", lambda self, *given: (steps.append(len(given[0])), append(self, *given))[1]
    )
    found = drawn(tiny_model(), SamplingParams(max_tokens=60, rows=6))
    lengths = [len(ids) for ids in found.ids]
    chunks = sum(max(lengths[at : at + 6]) for at in range(0, len(lengths), 6))
    assert max(steps) == 6
    assert len(steps) < 0.8 * chunks
    assert sum(steps) < 1.4 * sum(lengths), "few slots decode what nobody waits for"


@pytest.mark.slow
def test_a_prompt_is_prefilled_once_however_few_slots_its_group_has(monkeypatch: pytest.MonkeyPatch) -> None:
    prefilled: list[tuple[int, ...]] = []
    admit = CachedDecoder.admit

    def noted(self: CachedDecoder, kept: Any, fresh: Any, joining: Any) -> None:
        prefilled.extend(fresh)
        admit(self, kept, fresh, joining)

    monkeypatch.setattr(CachedDecoder, "admit", noted)
    drawn(tiny_model(), SamplingParams(max_tokens=9, rows=2), n=5)
    assert len(prefilled) == len({tuple(prompt) for prompt in PROMPTS})


def test_progress_is_told_for_each_completion() -> None:
    told: list[int] = []
    sample(
        tiny_model(), PROMPTS, NAMES, n=3, params=SamplingParams(max_tokens=9, rows=4), seed=1, stop=ENDS,
        device=DEVICE, advance=told.append,
    )  # fmt: skip
    assert sum(told) == 3 * len(PROMPTS)


def test_memory_follows_the_longest_row_not_the_limit() -> None:
    columns = KVBuffer(limit=4096)
    step = torch.zeros(3, 2, 1, 8)
    for t in range(FIRST_COLUMNS + 1):
        keys, _ = columns.write(t, step + t, step)
        assert keys.shape == (6, t + 1, 8)
        assert keys[0, :, 0].tolist() == list(range(t + 1))
    assert columns.size == 2 * FIRST_COLUMNS


@pytest.mark.slow
@pytest.mark.parametrize(("top_p", "top_k"), [(0.7, None), (1.0, 3), (0.6, 5), (0.05, None), (1.0, 500)])
def test_draws_from_the_likeliest_tokens_are_those_of_the_plain_loop(top_p: float, top_k: int | None) -> None:
    model, params = tiny_model().double(), SamplingParams(max_tokens=9, top_p=top_p, top_k=top_k, rows=4)
    assert_same(drawn(model, params), naive(model, PROMPTS, NAMES, 3, params, 4, ENDS.tokens))


def test_one_likeliest_token_is_greedy_with_the_models_log_prob() -> None:
    model, params = tiny_model(), SamplingParams(max_tokens=9, top_k=1)
    found = drawn(model, params, n=1)
    assert_same(found, greedy(model, PROMPTS, params=params, stop=ENDS, device=DEVICE))
    assert all(value < -0.01 for row in found.logps for value in row), "not the log-prob among those kept, which is 0"


def test_the_fewest_tokens_that_hold_the_mass_are_kept_and_ties_with_them() -> None:
    p = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]])
    assert (top_k_top_p_mask(p, 0.7, None) > 0).tolist() == [
        [False, True, False, True],
        [True] * 4,
        [False, True, False, False],
    ]
    assert (top_k_top_p_mask(p, 0.71, None) > 0).tolist()[0] == [False, True, True, True]
    assert (top_k_top_p_mask(p, 1.0, 2) > 0).tolist()[0] == [False, True, False, True]
    assert (top_k_top_p_mask(p, 0.5, 2) > 0).tolist()[0] == [False, True, False, False], "top_p is of what top_k leaves"
    assert (top_k_top_p_mask(p, 1e-9, None) > 0).any(1).all(), "never nothing"


@pytest.mark.parametrize("draw", [0.0, 1 - 2.0**-53])
def test_the_first_and_the_last_number_draw_a_token_that_is_kept(draw: float) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, -1.0]])
    token_R, _ = sample_next(logits, torch.tensor([draw], dtype=torch.float64), 1.0, 1)
    assert token_R.tolist() == [1]


def test_each_of_several_tokens_ends_a_row() -> None:
    found = drawn(tiny_model(), SamplingParams(max_tokens=30), n=20)
    last = {ids[-1] for ids, cut in zip(found.ids, found.truncated, strict=True) if not cut}
    assert last == set(ENDS.tokens)
    assert not any(token in ENDS.tokens for ids in found.ids for token in ids[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 100])
def test_a_string_ends_a_row_where_its_text_first_holds_it(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens as without strings, cut; the string stays, and the row has stopped by itself."""
    steps: list[int] = []
    append = CachedDecoder.append_tokens

    def counted(self: CachedDecoder, token_R: torch.Tensor, position_R: torch.Tensor) -> None:
        steps.append(len(token_R))
        append(self, token_R, position_R)

    whole = drawn(tiny_model().double(), SamplingParams(max_tokens=25, rows=rows))
    strings = ["7><", "<3", "13>"]
    monkeypatch.setattr(
        CachedDecoder, "append_tokens", lambda self, *given: (steps.append(len(given[0])), append(self, *given))[1]
    )
    found = drawn(tiny_model().double(), SamplingParams(max_tokens=25, rows=rows, stop=strings))
    cut = 0
    for ids, before, logps, truncated in zip(found.ids, whole.ids, found.logps, found.truncated, strict=True):
        ends = (end for end in range(1, len(before) + 1) if any(one in ENDS.decode(before[:end]) for one in strings))
        end = next(ends, None)
        assert ids == before[:end]
        assert len(logps) == len(ids)
        assert truncated == (end is None and before[-1] not in ENDS.tokens)
        cut += len(ids) < len(before)
    assert cut > 5, "strings ended some rows"
    if rows == 2:
        assert sum(steps) < sum(len(ids) for ids in found.ids) + 2 * len(found.ids), "what follows is not sampled"


def test_strings_are_looked_for_in_a_bounded_tail() -> None:
    seen: list[int] = []

    def decode(ids: Any) -> str:
        seen.append(len(ids))
        return bytes(ids).decode(errors="replace")

    text = "räksmörgås, 水 and then: STOP it"
    ids = list(text.encode())
    strings = StopStrings(["STOP", "水x"], decode)
    ends = [strings.end(ids[:count], 1) for count in range(1, len(ids) + 1)]
    where = text.encode().index(b"STOP") + 4
    assert ends.index(where) == where - 1
    assert all(end is None for end in ends[: where - 1])
    assert max(seen) < 16
    assert strings.end(ids, len(ids)) == where, "also when many tokens come at a time"
    assert StopStrings([], decode).end(ids, 3) is None


def test_the_empty_string_cannot_end_anything() -> None:
    with pytest.raises(ValidationError, match="every text contains the empty string"):
        SamplingParams(stop=["a", ""])
