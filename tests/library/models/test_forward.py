"""The packed forward pass against transformers' own, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.errors import ModelError
from posttrain.models.files.store import scorer_of
from posttrain.models.forward.forward import (
    PackedAttention,
    Scoring,
    _band,
    _scalars,
    add_embedding_gradient,
    backbone,
    embedded_leaf,
    has_own_cache,
    own_states,
    packed_states,
    register,
    row_states,
    run_in_rows,
    runs_in_rows,
    score_rows,
    score_tokens,
    value_tokens,
)
from posttrain.models.forward.logp import Head, exact_kl, plain_token_logp, token_logp
from posttrain.rollout import TokenRow, token_rows
from posttrain.text.packing import micro_batches, pack
from tests.library.models.tiny import HEADS, plain_logps, random_head, random_rows, tiny_model


@pytest.mark.slow
@pytest.mark.parametrize("kv_heads", [2, 4], ids=["grouped", "full"])
def test_packed_log_probs_and_gradients_equal_the_plain_path(kv_heads: int) -> None:
    model = tiny_model(kv_heads=kv_heads)
    prompts, completions = random_rows(23)
    expected = plain_logps(model, prompts, completions)
    weights = torch.linspace(-1, 1, expected.numel())
    (expected * weights).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    found, _ = score_tokens(model, pack(token_rows(prompts, completions)))
    (found * weights).sum().backward()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=2e-5, msg=name)


def test_a_row_does_not_feel_its_neighbours() -> None:
    model = tiny_model()
    prompts, completions = random_rows(9, seed=3)
    with torch.no_grad():
        before, _ = score_tokens(model, pack(token_rows(prompts, completions)))
        changed = [[(token + 1) % 97 for token in ids] if i == 4 else ids for i, ids in enumerate(completions)]
        after, _ = score_tokens(model, pack(token_rows(prompts, changed)))
    start = sum(len(ids) for ids in completions[:4])
    end = start + len(completions[4])
    assert torch.equal(before[:start], after[:start])
    assert torch.equal(before[end:], after[end:])
    assert not torch.equal(before[start:end], after[start:end])


def test_a_shared_prompt_is_stored_once() -> None:
    prompt, completions = [5, 6, 7, 8], [[1, 2], [3], [4, 5, 6]]
    packed = pack(token_rows([prompt] * 3, completions))
    assert packed.ids_N.numel() == len(prompt) + 6
    assert packed.lengths_B.tolist() == [2, 1, 3]
    assert packed.target_M.tolist() == [1, 2, 3, 4, 5, 6]
    assert packed.ids_N[packed.last_B].tolist() == [2, 3, 6]


def test_a_row_without_a_prompt_is_scored_from_its_second_token() -> None:
    packed = pack(token_rows([[], []], [[9, 8, 7], [6]]))
    assert packed.target_M.tolist() == [8, 7]
    assert packed.lengths_B.tolist() == [2, 0]
    assert packed.source_M.tolist() == [0, 1]


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tiled_log_probs_and_entropy_equal_plain_autograd(
    temperature: float, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_BYTES", 4 * 53 * 5)
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_TOKENS", 1)
    torch.manual_seed(0)
    hidden = torch.randn(17, 8, dtype=torch.float64, requires_grad=True)
    head, parts = random_head(kind)
    target, slope = torch.randint(0, 53, (17,)), torch.randn(2, 17, dtype=torch.float64)

    def gradients(function: object) -> list[torch.Tensor]:
        logp, entropy = function(hidden, head, target, temperature)  # type: ignore[operator]
        loss = (slope[0] * logp).sum() + (slope[1] * entropy).sum()
        return [logp, entropy, *torch.autograd.grad(loss, (hidden, *parts))]

    for tiled, plain in zip(gradients(token_logp), gradients(plain_token_logp), strict=True):
        torch.testing.assert_close(tiled, plain, rtol=1e-9, atol=1e-10)


def test_exact_kl_is_zero_at_home_and_equals_the_sum_over_the_vocabulary() -> None:
    torch.manual_seed(1)
    old, new, weight = torch.randn(6, 4), torch.randn(6, 4), torch.randn(11, 4)
    head = Head(weight)
    assert exact_kl(old, head, old, head).abs().max() < 1e-6
    p, q = (old @ weight.T).softmax(1), (new @ weight.T).softmax(1)
    torch.testing.assert_close(exact_kl(old, head, new, head), (p * (p / q).log()).sum(1))


def test_micro_batches_keep_items_whole_and_order() -> None:
    cut = micro_batches([5, 5, 5, 5, 9, 30], [0, 0, 1, 1, 2, 3], budget=20)
    assert cut == [[0, 1, 2, 3], [4], [5]]


def test_a_masked_turn_is_context_and_nothing_else() -> None:
    """A row whose rest holds an answer, a user's turn and an answer: the answers are scored as if each stood alone."""
    model = tiny_model()
    prompt, first, user, second = [5, 6, 7], [1, 2], [8, 9, 10], [3, 4, 11]
    mask = [True] * 2 + [False] * 3 + [True] * 3
    one = TokenRow(prompt, [*first, *user, *second], mask)
    apart = [TokenRow(prompt, first), TokenRow([*prompt, *first, *user], second)]
    with torch.no_grad():
        together, entropy = score_tokens(model, pack([one]))
        expected, expected_entropy = score_tokens(model, pack(apart))
    assert one.trained == [0, 1, 5, 6, 7] and pack([one]).lengths_B.tolist() == [5]
    torch.testing.assert_close(together, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-5, atol=1e-6)


def test_a_mask_of_all_tokens_is_no_mask() -> None:
    prompts, completions = random_rows(5)
    rows = token_rows([*prompts, []], [*completions, [9, 8, 7]])
    masked = [replace(row, mask=[True] * len(row.rest)) for row in rows]
    plain, full = pack(rows), pack(masked)
    for name in ("ids_N", "source_M", "target_M", "lengths_B", "last_B"):
        assert torch.equal(getattr(plain, name), getattr(full, name)), name


def test_positions_and_attention_survive_any_order_of_rows() -> None:
    model = tiny_model()
    prompts, completions = random_rows(7, seed=5)
    order = [3, 0, 6, 1, 5, 2, 4]
    with torch.no_grad():
        straight = score_tokens(model, pack(token_rows(prompts, completions)))[0].split([len(c) for c in completions])
        rows = token_rows([prompts[i] for i in order], [completions[i] for i in order])
        shuffled = score_tokens(model, pack(rows))[0]
    parts = shuffled.split([len(completions[i]) for i in order])
    for place, i in enumerate(order):
        torch.testing.assert_close(parts[place], straight[i], rtol=1e-4, atol=1e-5)


def test_hidden_states_of_a_packed_layout_have_one_row_per_token() -> None:
    model = tiny_model()
    packed = pack(token_rows(*random_rows(5)))
    with torch.no_grad():
        assert packed_states(model, packed).shape == (packed.ids_N.numel(), 32)


def test_bf16_forward_and_gradient_stay_near_float32() -> None:
    from posttrain.models.master_weights import compute_in_bf16

    prompts, completions = random_rows(12, seed=2)
    found = []
    for precision in ("fp32", "bf16"):
        model = tiny_model()
        if precision == "bf16":
            compute_in_bf16(model)
        logp, entropy = score_tokens(model, pack(token_rows(prompts, completions)))
        assert logp.dtype == entropy.dtype == torch.float32, "log-probs are float32 whatever the matrices are"
        logp.mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert gradient.dtype == torch.float32
        found.append((logp.detach(), gradient))
    (exact, slope), (near, near_slope) = found
    assert (near - exact).abs().mean() < 0.05
    assert torch.nn.functional.cosine_similarity(slope, near_slope, dim=0) > 0.99
    assert not torch.equal(exact, near), "bf16 was never used"


def attended(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
    """Causal attention [1, H, T, D] by its definition."""
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], 1) for part in (key, value))
    scores = query @ key.transpose(2, 3) * scoring.scale
    scores = scores if scoring.cap is None else scoring.cap * (scores / scoring.cap).tanh()
    at = torch.arange(query.shape[2])
    seen = at[None] <= at[:, None]
    seen = seen if scoring.window is None else seen & (at[None] > at[:, None] - scoring.window)
    scores = scores.masked_fill(~seen, -torch.inf)
    if scoring.sink_H is not None:
        sink = scoring.sink_H[None, :, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ value
    return scores.softmax(-1) @ value


SCORINGS = {
    "plain": Scoring(0.5),
    "window": Scoring(0.5, window=3),
    "cap": Scoring(0.5, cap=1.5),
    "sink": Scoring(0.5, sink_H=torch.tensor([0.5, -1.0, 2.0, 0.0])),
    "all": Scoring(0.5, 4, 2.0, torch.tensor([0.5, -1.0, 2.0, 0.0])),
}


@pytest.mark.parametrize("name", SCORINGS)
def test_attention_of_packed_rows_is_that_of_each_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.models.forward.forward.QUERY_BLOCK", 2)
    scoring = SCORINGS[name]
    assert scoring.plain == (name in ("plain", "window"))
    packed = pack(token_rows([[1] * 5, [2] * 7], [[], []]))
    query, key, value = torch.randn(1, 4, 12, 8), torch.randn(1, 2, 12, 8), torch.randn(1, 2, 12, 8)
    found = PackedAttention(packed).attend(0, query, key, value, scoring)
    for part in (slice(0, 5), slice(5, 12)):
        wanted = attended(query[:, :, part], key[:, :, part], value[:, :, part], scoring)
        torch.testing.assert_close(found[:, part], wanted.transpose(1, 2))


def test_what_a_query_sees_and_how_scores_are_capped() -> None:
    assert _band(2, 4, 1, 2, torch.device("cpu")).tolist() == [[True, True, False], [False, True, True]]
    scores = torch.tensor([[0.0, 3.0]])
    assert Scoring(1.0).capped(scores) is scores
    torch.testing.assert_close(Scoring(1.0, cap=3.0).capped(scores), 3 * (scores / 3).tanh())
    torch.testing.assert_close(Scoring(1.0).weights(scores.bfloat16()), scores.softmax(-1))
    with_sink = Scoring(1.0, sink_H=torch.tensor([1.0])).weights(scores[None, None])
    torch.testing.assert_close(with_sink[0, 0], torch.tensor([[0.0, 3.0, 1.0]]).softmax(-1)[:, :2])


def test_a_layer_that_is_called_by_itself_is_refused() -> None:
    model = tiny_model()
    assert register() == model.config._attn_implementation and backbone(model) is model.model
    with pytest.raises(ModelError, match="called without `posttrain_attention`"):
        model(torch.tensor([[1, 2]]))
    model.set_attn_implementation("eager")
    with pytest.raises(ModelError, match="its attention is 'eager', not 'posttrain'"):
        packed_states(model, pack(token_rows([[1, 2]], [[3]])))


@torch.no_grad()
def test_states_in_rows_from_the_own_cache_and_packed_are_the_same() -> None:
    model, rows = tiny_model(), [[1, 2, 3, 4], [5, 6]]
    packed = pack(token_rows(rows, [[], []]))
    wanted = packed_states(model, packed)
    assert runs_in_rows(model) is False and has_own_cache(model) is False
    run_in_rows(model)
    model.has_own_cache = True
    assert runs_in_rows(model) is True and has_own_cache(model) is True
    torch.testing.assert_close(packed_states(model, packed), wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(row_states(model, torch.tensor(rows[:1]))[0], wanted[:4], atol=1e-5, rtol=1e-4)
    first, cache = own_states(model, torch.tensor([[1, 2, 3]]), None)
    last, cache = own_states(model, torch.tensor([[4]]), cache)
    torch.testing.assert_close(torch.cat([first, last], 1)[0], wanted[:4], atol=1e-5, rtol=1e-4)
    assert cache.get_seq_length() == 4


def test_embeddings_as_a_leaf_get_their_gradient() -> None:
    model, packed = tiny_model(), pack(token_rows([[1, 2], [1]], [[3], [2]]))
    weight = model.model.embed_tokens.weight
    states = packed_states(model, packed)
    states.square().sum().backward()
    wanted = weight.grad.clone()
    model.zero_grad()
    leaf = embedded_leaf(model, packed)
    assert leaf is not None and torch.equal(leaf, weight.detach()[packed.ids_N])
    packed_states(model, packed, leaf).square().sum().backward()
    add_embedding_gradient(model, packed, leaf)
    torch.testing.assert_close(weight.grad, wanted, atol=1e-4, rtol=1e-4)
    weight.requires_grad_(requires_grad=False)
    assert embedded_leaf(model, packed) is None


@torch.no_grad()
def test_scores_and_values_of_a_scalar_head() -> None:
    scorer = scorer_of(tiny_model(), "test")
    scorer.score.weight.normal_(generator=torch.Generator().manual_seed(0))
    packed = pack(token_rows([[1, 2], [3]], [[4], [5, 6]]))
    scores = [scorer.score(row_states_of(scorer, row))[:, 0] for row in ([1, 2, 4], [3, 5, 6])]
    torch.testing.assert_close(
        score_rows(scorer, packed), torch.stack([row[-1] for row in scores]), atol=1e-5, rtol=1e-4
    )
    before = torch.cat([scores[0][1:2], scores[1][:2]])
    torch.testing.assert_close(value_tokens(scorer, packed), before, atol=1e-5, rtol=1e-4)
    scorer.config.reward_shift = 0.5
    torch.testing.assert_close(value_tokens(scorer, packed), before - 0.5, atol=1e-5, rtol=1e-4)
    half = _scalars(torch.ones(2, 1, dtype=torch.bfloat16))
    assert half.dtype == torch.float32 and half.tolist() == [1.0, 1.0]


def row_states_of(model: Any, row: list[int]) -> Tensor:
    """The states of a row alone, by packed attention."""
    return packed_states(model, pack(token_rows([row], [[]])))
