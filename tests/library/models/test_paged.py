"""Pages of keys and values: which page each token of a row lies on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from posttrain.models.decoder import paged
from posttrain.models.decoder.kv_cache import PromptAttention
from posttrain.models.decoder.paged import PAGE, SMALLEST, PagedAttention, batch_rows, own_pages
from posttrain.models.forward.forward import Scoring
from posttrain.rollout import token_rows
from posttrain.text.packing import pack

CPU = torch.device("cpu")


@pytest.mark.parametrize(("rows", "computed"), [(1, SMALLEST), (8, 8), (9, 16), (16, 16), (17, 32)])
def test_a_step_computes_a_power_of_two(rows: int, computed: int) -> None:
    assert batch_rows(rows) == computed


@pytest.mark.parametrize(("tokens", "pages"), [(1, 1), (2, 2), (257, 2), (258, 3)])
def test_own_pages_hold_the_rest_of_a_prompt_and_a_completion(tokens: int, pages: int) -> None:
    assert own_pages(tokens) == pages


def prefilled(*lengths: int) -> tuple[PromptAttention, Tensor]:
    """Prompts of these lengths, and their keys [N, K, D]."""
    fresh = PromptAttention(pack(token_rows([[nth] * size for nth, size in enumerate(lengths)], [[]] * len(lengths))))
    key = torch.randn(1, 2, sum(lengths), 8)
    fresh.attend(0, torch.randn(1, 2, sum(lengths), 8), key, -key, Scoring(1.0))
    return fresh, key[0].transpose(0, 1)


def located(attention: PagedAttention, row: int, position: int, rows: int) -> Tensor:
    """The stored key at a position of a row."""
    attention.locate(torch.full((rows,), position))
    return attention._pools[0][0].flatten(0, 1)[attention._place_R[row]]


def test_prompts_are_stored_once_and_their_ends_copied() -> None:
    fresh, keys = prefilled(PAGE + 2, 3)
    attention = PagedAttention(PAGE + 2, 4, CPU)
    attention.admit(torch.zeros(0, dtype=torch.long), fresh, torch.tensor([0, 0, 1]))
    for position in (0, PAGE - 1, PAGE, PAGE + 1):
        for row in (0, 1):
            assert torch.equal(located(attention, row, position, 3), keys[position])
    assert torch.equal(located(attention, 2, 2, 3), keys[PAGE + 4])
    table = attention._table_RP[:3].tolist()
    assert table[0][0] == table[1][0] and table[0][1] != table[1][1]
    used = [page for row in table for page in row if page]
    assert 0 not in used and len({*used}) == len(used) - 1, "each page has one owner but the prompt's full one"
    assert not attention._table_RP[3:].any()
    keep, values = attention._pools[0]
    assert torch.equal(values, -keep)


def test_pages_are_free_again_when_their_rows_leave() -> None:
    fresh, _ = prefilled(3, 3)
    attention = PagedAttention(3, 1, CPU)
    attention.admit(torch.zeros(0, dtype=torch.long), fresh, torch.tensor([0, 1]))
    size = attention._size
    (left,) = attention._rows[0][1]
    attention.keep_rows(torch.tensor([1]))
    assert left in attention._free
    attention.admit(torch.tensor([1]), None, torch.tensor([0]))
    assert attention._size == size and len(attention._rows) == 2


def test_where_a_token_is_written_and_what_it_sees() -> None:
    attention = PagedAttention(3, 1, CPU)
    attention.admit(torch.zeros(0, dtype=torch.long), prefilled(3)[0], torch.tensor([0]))
    attention.step()
    attention.locate(torch.tensor([3]))
    (page,) = attention._rows[0][1]
    assert attention._place_R.tolist() == [page * PAGE + 3] and attention._seen_R.tolist() == [4]


def test_a_token_is_written_before_the_kernel_reads_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel needs a GPU (tests/second_device): here one that gives its queries back stands for it."""
    seen: dict[str, object] = {}

    def kernel(query: Tensor, keys: Tensor, values: Tensor, *places: object, **given: object) -> Tensor:
        seen.update(given, keys=keys.clone())
        return query

    monkeypatch.setattr(paged, "kernel", lambda: kernel)
    attention = PagedAttention(3, 1, CPU)
    attention.admit(torch.zeros(0, dtype=torch.long), prefilled(3)[0], torch.tensor([0]))
    attention.locate(torch.tensor([3]))
    query, key = torch.randn(2, 1, 2, 1, 8)
    out = attention.attend(0, query, key, -key, Scoring(0.5, window=7))
    assert out.shape == (1, 1, 2, 8) and torch.equal(out[:, 0], query[:, :, 0])
    assert seen["scale"] == 0.5 and seen["window_size"] == (6, 0)
    keys = seen["keys"]
    assert isinstance(keys, Tensor) and torch.equal(keys.flatten(0, 1)[attention._place_R[0]], key[0, :, 0])
