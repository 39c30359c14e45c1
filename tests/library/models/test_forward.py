"""The packed forward pass against transformers' own, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from posttrain.models.forward.forward import packed_states, score_tokens
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
