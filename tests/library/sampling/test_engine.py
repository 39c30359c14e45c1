"""Decoding: against transformers' generate, against the training forward, and its independence of neighbours."""

from __future__ import annotations

import pytest
import torch

from posttrain.formulas.ragged import row_keys, uniform
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.forward.forward import packed_states, score_tokens
from posttrain.models.forward.logp import head_of
from posttrain.rollout import token_rows
from posttrain.sampling.sampler import Mixture, SamplingParams
from posttrain.text.packing import pack
from posttrain.text.stops import Stops
from tests.library.models.tiny import Samples, greedy, random_rows, sample, tiny_model

STOP = 2
ENDS = Stops((STOP,), str)
DEVICE = Runtime(DeviceParams(threads=1))
PARAMS = SamplingParams(max_tokens=12)
PROMPTS = [[*ids, i] for i, ids in enumerate(random_rows(7, seed=1)[0])]
NAMES = [f"prompt-{i}" for i in range(len(PROMPTS))]


def drawn(n: int = 4, seed: int = 1, at: slice = slice(None), params: SamplingParams = PARAMS) -> Samples:
    return sample(tiny_model(), PROMPTS[at], NAMES[at], n=n, params=params, seed=seed, stop=ENDS, device=DEVICE)


@pytest.mark.slow
def test_greedy_equals_transformers_generate() -> None:
    model = tiny_model()
    found = greedy(model, PROMPTS, params=PARAMS, stop=ENDS, device=DEVICE)
    model.set_attn_implementation("sdpa")
    for prompt, ids in zip(PROMPTS, found.ids, strict=True):
        given = torch.tensor([prompt])
        expected = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=STOP,
            pad_token_id=0,
        )
        assert ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_recorded_log_probs_are_those_of_the_training_forward(temperature: float) -> None:
    params = SamplingParams(max_tokens=12, temperature=temperature)
    samples = drawn(params=params)
    prompts = [prompt for prompt in PROMPTS for _ in range(4)]
    with torch.no_grad():
        expected, _ = score_tokens(tiny_model(), pack(token_rows(prompts, samples.ids)), temperature)
    found = torch.tensor([value for row in samples.logps for value in row])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_sample_does_not_depend_on_its_neighbours_or_the_batch() -> None:
    whole = drawn()
    part = drawn(at=slice(2, 5))
    assert part.ids == whole.ids[2 * 4 : 5 * 4]
    few_rows = drawn(params=SamplingParams(max_tokens=12, rows=8))
    assert few_rows.ids == whole.ids


@pytest.mark.slow
def test_seeds_and_names_decide_the_sample() -> None:
    assert drawn().ids == drawn().ids
    assert drawn(seed=2).ids != drawn().ids
    assert len({tuple(ids) for ids in drawn(n=8).ids[:8]}) > 1, "the samples of one prompt are not copies"


def test_rows_end_at_the_stop_token_or_are_marked_truncated() -> None:
    samples = drawn(n=30)
    assert any(samples.truncated) and not all(samples.truncated)
    for ids, logps, cut in zip(samples.ids, samples.logps, samples.truncated, strict=True):
        assert len(ids) == len(logps)
        assert STOP not in ids[:-1]
        assert (ids[-1] != STOP and len(ids) == 12) if cut else ids[-1] == STOP


@pytest.mark.slow
def test_sampled_frequencies_are_the_models_probabilities() -> None:
    model, prompt, n = tiny_model(), PROMPTS[0], 20_000
    one = SamplingParams(max_tokens=1, rows=n)
    ids = [row[0] for row in sample(model, [prompt], ["x"], n=n, params=one, seed=3, stop=ENDS, device=DEVICE).ids]
    with torch.no_grad():
        every = pack(token_rows([prompt] * 97, [[token] for token in range(97)]))
        p = score_tokens(model, every)[0].exp()
    seen = torch.bincount(torch.tensor(ids), minlength=97) / n
    error = (seen - p).abs()
    assert bool((error <= 5 * (p * (1 - p) / n).sqrt() + 1e-4).all()), error.max()


def test_uniform_numbers_are_uniform_and_apart() -> None:
    keys = row_keys(0, [str(i) for i in range(4000)])
    values = uniform(keys, 40).T
    assert float(values.min()) >= 0 and float(values.max()) < 1
    counts = torch.histc(values.float(), bins=20, min=0, max=1) / values.numel()
    assert float((counts - 0.05).abs().max()) < 0.002
    correlation = torch.corrcoef(values[:6]) - torch.eye(6)
    assert float(correlation.abs().max()) < 0.08
    assert row_keys(0, ["a"]).tolist() != row_keys(1, ["a"]).tolist()


def test_a_mixture_is_the_geometric_mean_of_two_models_made_to_sum_to_one() -> None:
    """The log-probs that are recorded are those of the mixture, by the training forward of both models."""
    model, other = tiny_model(), tiny_model(seed=5)
    found = sample(
        model, PROMPTS, NAMES, n=2, params=PARAMS, seed=1, stop=ENDS, device=DEVICE, mixture=Mixture(other, 0.3)
    )
    assert found.ids != drawn(n=2).ids
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    packed = pack(token_rows(prompts, found.ids))
    with torch.no_grad():
        ours, theirs = (head_of(one).logits(packed_states(one, packed)[packed.source_M]) for one in (model, other))
    mixed = (0.7 * ours.log_softmax(-1) + 0.3 * theirs.log_softmax(-1)).log_softmax(-1)
    expected = mixed.gather(1, packed.target_M[:, None]).squeeze(1)
    recorded = torch.tensor([value for row in found.logps for value in row])
    torch.testing.assert_close(recorded, expected, rtol=1e-4, atol=1e-4)


def test_a_mixture_without_the_other_is_the_model() -> None:
    alone = sample(
        tiny_model(),
        PROMPTS,
        NAMES,
        n=4,
        params=PARAMS,
        seed=1,
        stop=ENDS,
        device=DEVICE,
        mixture=Mixture(tiny_model(seed=5), 0.0),
    )
    assert alone.ids == drawn().ids
