"""Families of transformers models: those that generate as the plain loop does, and those that are refused at load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.algorithms.supervised import LikelihoodKnobs, LikelihoodObjective
from posttrain.errors import ModelError
from posttrain.models.device import Device, DeviceParams
from posttrain.models.forward import score_tokens
from posttrain.models.probe import check_runs
from posttrain.models.store import new_model
from posttrain.rollout.engine import SamplingParams, greedy, sample
from posttrain.text.layout import pack
from posttrain.text.stops import Stops
from posttrain.train.batch import make_batch
from posttrain.train.loop import GradientProblem
from posttrain.train.modules import Modules
from tests.library.models import plain_logps, random_rows
from tests.library.naive import assert_same, naive

DEVICE = Device(DeviceParams(device="cpu", threads=1))
PROMPTS = [*random_rows(5, seed=1)[0], [7]]  # some of them are shared by neighbours
NAMES = [str(i) for i in range(len(PROMPTS))]
ENDS = Stops((2, 11, 50), str)

SHAPE = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {"sliding_window": 6}, "qwen2": {}, "qwen3": {"head_dim": 8}, "gpt2": {}, "phi3": {},
    "gemma": {"head_dim": 8}, "gemma3_text": {"head_dim": 8, "sliding_window": 6},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_neox": {}, "gpt_bigcode": {}, "starcoder2": {}, "olmo2": {}, "olmo3": {"sliding_window": 6}, "smollm3": {},
    "gemma2": {
        "head_dim": 8, "sliding_window": 6, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0,
        "query_pre_attn_scalar": 8,
    },
    "phi": {}, "granite": {"logits_scaling": 3.0},
    "granitemoe": {"logits_scaling": 3.0, "num_local_experts": 4},
    "cohere": {"logit_scale": 0.3}, "cohere2": {"logit_scale": 0.3, "sliding_window": 6}, "nanochat": {},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8, "sliding_window": 6},
    "glm4": {}, "exaone4": {}, "mixtral": {"num_local_experts": 4},
    "deepseek_v3": {
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "q_lora_rank": None,
        "kv_lora_rank": 8, "qk_rope_head_dim": 4, "head_dim": 4, "v_head_dim": 6, "qk_nope_head_dim": 4,
        "moe_intermediate_size": 16,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    },
}  # fmt: skip
IN_ROWS: dict[str, dict[str, Any]] = {
    "bloom": {}, "falcon": {"alibi": True}, "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4}, "codegen": {"rotary_dim": 4}, "mpt": {}, "stablelm": {}, "nemotron": {}, "xglm": {},
    "mamba": {}, "llama4_text": {}, "recurrent_gemma": {},
    "qwen3_next": {
        "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}  # fmt: skip
"""What gives other values packed, or cannot be: attention of their own, states in place of keys, chunks."""
SINGLE = {"mixtral", "deepseek_v3", "granitemoe", "gpt_oss", "qwen3_next", "xglm"}
"""What transformers can compute in float32 alone."""


def family(name: str, **over: Any) -> Any:
    """A small model of a family, with what starts at 0 or 1 moved from there."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[name](**{**SHAPE, **(FAMILIES | IN_ROWS)[name], **over})
    model = new_model(config, 0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(key))) * 0.1)
    return model


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("own_code", [False, True], ids=["fast step", "own code"])
def test_long_completions_slide_their_window(own_code: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is shorter than some prompts and than the completions; memory doubles on the way to it."""
    monkeypatch.setattr("posttrain.models.columns.FIRST", 3)
    if own_code:
        monkeypatch.setattr("posttrain.rollout.voice.fits", lambda _: False)
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
        expected, _ = score_tokens(model, pack([prompt for prompt in PROMPTS for _ in range(2)], found.ids))
    recorded = torch.tensor([value for row in found.logps for value in row])
    torch.testing.assert_close(recorded, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [*FAMILIES, *IN_ROWS])
def test_families_generate_what_the_plain_loop_does(name: str) -> None:
    model = family(name)
    check_runs(model, name)
    model = model if name in SINGLE else model.double()
    tolerance = 1e-4 if name in SINGLE else 1e-5
    params = SamplingParams(max_tokens=11, rows=3, temperature=0.8)
    prompts, names = PROMPTS[-3:], NAMES[-3:]
    found = sample(model, prompts, names, n=2, params=params, seed=2, stop=ENDS, device=DEVICE)
    assert_same(found, naive(model, prompts, names, 2, params, 2, ENDS.tokens), tolerance)
    likeliest = greedy(model, prompts, params=params, stop=ENDS, device=DEVICE)
    assert_same(likeliest, naive(model, prompts, None, 1, params, 0, ENDS.tokens), tolerance)


@pytest.mark.parametrize("name", [*FAMILIES, *IN_ROWS])
def test_families_learn_what_plain_autograd_does(name: str) -> None:
    """One update of the fast path, the embedding's gradient by its leaf, beside the model's own code row by row."""
    prompts, completions = random_rows(6, seed=3)
    gradients = []
    for fast in (True, False):
        model = family(name)
        check_runs(model, name)
        if fast:
            objective = LikelihoodObjective(LikelihoodKnobs())
            batch = make_batch(prompts, completions, {}, {})
            step = objective.prepare(batch.columns, objective.initial_state()).step
            GradientProblem(objective, Modules(model, DEVICE), batch.with_columns(step)).backward()
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
    with pytest.raises(ModelError, match="more than its states times a matrix"):
        check_runs(model, "recurrent_gemma")


def test_the_docs_list_the_families() -> None:
    page = (Path(__file__).parents[2] / "docs" / "generation.md").read_text(encoding="utf-8")
    missing = [name for name in (*FAMILIES, *IN_ROWS) if f"`{name}`" not in page]
    assert not missing
