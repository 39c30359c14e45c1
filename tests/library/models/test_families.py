"""Families of transformers models: those that generate as the plain loop does, and those that are refused at load."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import ModelError
from posttrain.models.decoder.step import OwnCacheDecoder, RecomputeDecoder
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import new_model
from posttrain.models.forward.forward import has_own_cache, score_tokens
from posttrain.models.self_check import TOLERANCE, verify_forward
from posttrain.rollout import token_rows
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.packing import pack
from posttrain.text.stops import Stops
from posttrain.train.model_set import ModelSet
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.families import EVERY, FAMILIES, IN_ROWS, MARK, PAGE, SHAPE, SINGLE, row, table
from tests.library.models.tiny import greedy, plain_logps, random_rows, sample
from tests.library.sampling.naive import assert_same, naive

DEVICE = Runtime(DeviceParams(device="cpu", threads=1))
PROMPTS = [*random_rows(5, seed=1)[0], [7]]  # some of them are shared by neighbours
NAMES = [str(i) for i in range(len(PROMPTS))]
ENDS = Stops((2, 11, 50), str)
PAGE_ROWS = PAGE.read_text(encoding="utf-8").partition(MARK)[2].strip().splitlines()


def family(name: str, **over: Any) -> Any:
    """A small model of a family, with what starts at 0 or 1 moved from there."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[name](**{**SHAPE, **EVERY[name], **over})
    model = new_model(config, 0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(key))) * 0.1)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("own_code", [False, True], ids=["fast step", "own code"])
def test_long_completions_slide_their_window(own_code: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is shorter than some prompts and than the completions; memory doubles on the way to it."""
    monkeypatch.setattr("posttrain.models.decoder.kv_cache.FIRST_COLUMNS", 3)
    if own_code:
        monkeypatch.setattr("posttrain.models.decoder.step.supports_decoder_step", lambda _: False)
    model, params = family("mistral").double(), SamplingParams(max_tokens=30, rows=rows)
    found = sample(model, PROMPTS, NAMES, n=2, params=params, seed=1, stop=ENDS, device=DEVICE)
    assert max(len(ids) for ids in found.ids) == 30
    assert_same(found, naive(model, PROMPTS, NAMES, 2, params, 1, ENDS.tokens))
    no_window = family("mistral", sliding_window=None).double()
    other = sample(no_window, PROMPTS, NAMES, n=2, params=params, seed=1, stop=ENDS, device=DEVICE)
    assert other.ids != found.ids, "the window matters"


def test_training_sees_the_window_that_the_sampler_saw() -> None:
    model, params = family("mistral"), SamplingParams(max_tokens=30)
    found = sample(model, PROMPTS, NAMES, n=2, params=params, seed=1, stop=ENDS, device=DEVICE)
    with torch.no_grad():
        expected, _ = score_tokens(model, pack(token_rows([prompt for prompt in PROMPTS for _ in range(2)], found.ids)))
    recorded = torch.tensor([value for row in found.logps for value in row])
    torch.testing.assert_close(recorded, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAMILIES, *IN_ROWS])
def test_families_generate_what_the_plain_loop_does(name: str) -> None:
    model = family(name)
    verify_forward(model, name)
    model = model if name in SINGLE else model.double()
    tolerance = 1e-4 if name in SINGLE else 1e-5
    params = SamplingParams(max_tokens=11, rows=3, temperature=0.8)
    prompts, names = PROMPTS[-3:], NAMES[-3:]
    found = sample(model, prompts, names, n=2, params=params, seed=2, stop=ENDS, device=DEVICE)
    assert_same(found, naive(model, prompts, names, 2, params, 2, ENDS.tokens), tolerance)
    likeliest = greedy(model, prompts, params=params, stop=ENDS, device=DEVICE)
    assert_same(likeliest, naive(model, prompts, None, 1, params, 0, ENDS.tokens), tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", [line.split("`")[1] for line in PAGE_ROWS if "padded rows, own cache" in line])
def test_a_models_own_cache_gives_the_logits_of_whole_rows(name: str) -> None:
    """Prompts of several lengths, longer than chunks and windows; rows that share one, that leave and that join."""
    model = family(name).eval()
    verify_forward(model, name)
    drawn = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 90, (length,), generator=drawn).tolist() for length in (3, 70, 3, 131)]
    decoders = OwnCacheDecoder(model), RecomputeDecoder(model)
    assert has_own_cache(model)
    with torch.inference_mode():
        for decoder in decoders:
            decoder.admit([], prompts, [0, 1, 1, 2, 3, 0])
        for step in range(12):
            logits, expected = (decoder.next_logits() for decoder in decoders)
            assert_close(logits, expected, atol=TOLERANCE * float(expected.abs().max()), rtol=0)
            if step == 5:
                for decoder in decoders:
                    decoder.keep_rows(torch.tensor([0, 2, 4]))
                expected = expected[[0, 2, 4]]
            for decoder in decoders:
                decoder.append_tokens(expected.argmax(1), torch.zeros(len(expected), dtype=torch.long))
                if step == 5:  # of the prompts that are left
                    decoder.admit([0, 1, 3], [[9, 8, 7, 6]], [3, 2, 0])


@pytest.mark.parametrize("name", [*FAMILIES, *IN_ROWS])
def test_families_learn_what_plain_autograd_does(name: str) -> None:
    """One update of the fast path, the embedding's gradient by its leaf, beside the model's own code row by row."""
    prompts, completions = random_rows(6, seed=3)
    gradients = []
    for fast in (True, False):
        model = family(name)
        verify_forward(model, name)
        if fast:
            objective = LikelihoodObjective(LikelihoodConfig())
            batch = make_batch(token_rows(prompts, completions), {}, {})
            step = objective.prepare(batch.columns, objective.initial_state()).step
            StepClosure(objective, ModelSet(model, DEVICE), batch.with_prepared(step))()
        else:
            (-plain_logps(model, prompts, completions).mean()).backward()
        gradients.append({key: part.grad for key, part in model.named_parameters()})
    for key, plain in gradients[1].items():
        found = gradients[0][key]
        assert (found is None) == (plain is None), key
        if plain is not None:
            torch.testing.assert_close(found, plain, rtol=2e-3, atol=1e-5 * float(plain.abs().max() + 1), msg=key)


def test_a_head_that_does_more_is_refused() -> None:
    """A cap of this size hardly shows in small logits, and would in those of a trained model."""
    model = family("recurrent_gemma")
    model.config.final_logit_softcapping = 60.0  # not what its code does
    with pytest.raises(ModelError, match="does not compute its logits as states times a matrix"):
        verify_forward(model, "recurrent_gemma")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "granite", "jamba", "llama", "mixtral", "qwen3_moe"])
def test_the_page_says_what_becomes_of_a_family(name: str) -> None:
    assert row(name) in PAGE_ROWS, "run python -m tests.library.models.families"


def test_the_page_lists_every_family() -> None:
    assert [line.split("`")[1] for line in PAGE_ROWS[2:]] == sorted(EVERY)


@pytest.mark.slow
def test_the_whole_page_is_current() -> None:
    assert table().splitlines() == PAGE_ROWS, "run python -m tests.library.models.families"
