"""Families of transformers models: small ones as the Hub has them, taken through everything that training does to them.

python -m tests.library.models.families        # writes the table of docs/reports/families.md
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.errors import ModelError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.import_model import fetch_model
from posttrain.models.files.loading import scorer_name
from posttrain.models.files.store import (
    load_model,
    load_policy,
    load_scorer,
    load_stop_tokens,
    load_tokenizer,
    save_model,
)
from posttrain.models.forward.forward import has_own_cache, runs_in_rows, score_rows
from posttrain.rollout import token_rows
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.chat import ChatText
from posttrain.text.packing import pack
from posttrain.train.model_set import ModelSet
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.tiny import sample

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
    "mamba": {}, "llama4_text": {}, "recurrent_gemma": {"num_hidden_layers": 3},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"], "head_dim": 8,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}  # fmt: skip
"""What gives other values packed, or cannot be: attention of their own, states in place of keys, chunks."""
SINGLE = {"mixtral", "deepseek_v3", "granitemoe", "gpt_oss", "qwen3_next", "xglm"}
"""What transformers can compute in float32 alone."""

MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "qk_nope_head_dim": 4,
    "head_dim": 4,
}
OTHERS: dict[str, dict[str, Any]] = {
    "apertus": {}, "arcee": {}, "biogpt": {}, "bitnet": {}, "cohere2_moe": MOE, "ernie4_5": {}, "ernie4_5_moe": MOE,
    "flex_olmo": MOE, "glm": {"head_dim": 8}, "glm4_moe": {"n_routed_experts": 4, "head_dim": 8, **MOE},
    "granitemoeshared": {**MOE, "shared_intermediate_size": 16}, "granitemoehybrid": {
        **MOE, "layer_types": ["linear_attention", "full_attention"], "shared_intermediate_size": 16,
        "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8},
    "granite_swa": {"sliding_window": 6}, "granitemoe_swa": {**MOE, "sliding_window": 6},
    "kimi_linear": {**MOE, "num_key_value_heads": 4, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
        "qk_nope_head_dim": 4, "num_experts_per_token": 2, "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"], "linear_attn_config": {"head_dim": 8, "num_heads": 4}},
    "xlstm": {"num_heads": 4, "num_blocks": 2, "ffn_round_up_to_multiple_of": 8, "chunk_size": 4},
    "hunyuan_v1_dense": {"head_dim": 8}, "jais2": {}, "lfm2": {"layer_types": ["full_attention", "full_attention"]},
    "minimax_m2": {**MOE, "head_dim": 8, "rotary_dim": 8}, "ministral3": {"head_dim": 8}, "olmo": {}, "olmoe": MOE,
    "persimmon": {"num_key_value_heads": 4}, "phimoe": MOE, "qwen2_moe": {**MOE, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {**MOE, "head_dim": 8, "decoder_sparse_step": 1}, "seed_oss": {"head_dim": 8}, "vaultgemma": {
        "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8},
    "diffllama": {}, "doge": {}, "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8,
        "mamba_d_state": 8, "mamba_expand": 1}, "falcon_mamba": {"state_size": 8},
    "gpt_neox_japanese": {"intermediate_multiple_size": 2},
    "jamba": {**MOE, "mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False, "attn_layer_period": 2,
        "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "nemotron_h": {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 8,
        "ssm_state_size": 8, "n_groups": 1, "head_dim": 8},
    "qwen3_5_text": LINEAR, "qwen3_5_moe_text": {**LINEAR, **MOE, "shared_expert_intermediate_size": 16},
    "rwkv": {"attention_hidden_size": 32}, "deepseek_v2": {**LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    "minimax": {**MOE, "head_dim": 8}, "mimo_v2_flash": MOE,
}  # fmt: skip
"""Families that are not held against a plain loop, but taken through all that training does."""
HUB_SHAPE = {**SHAPE, "vocab_size": 320}
DEVICE = Runtime(DeviceParams(device="cpu", threads=1))
TEXTS = ["Ann has 2 coins and finds 3 more.", "She has 2+3=5 coins. #### 5", "Bob counts 12 apples."] * 20
MARK = "<!-- the table: python -m tests.library.models.families -->"
PAGE = Path(__file__).parents[3] / "docs" / "reports" / "families.md"


@dataclass(frozen=True)
class Found:
    """What became of one family: how it runs, its reward head, its layout; or why it is refused."""

    runs: str = ""
    head: str = ""
    layout: str = ""
    refused: str = ""


def hub_folder(name: str, folder: Path, dtype: torch.dtype = torch.bfloat16, **over: Any) -> Path:
    """A small random model as transformers' `save_pretrained` writes it, with a base model's bare tokenizer."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    config = CONFIG_MAPPING[name](**{**HUB_SHAPE, **EVERY[name], **over})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.to(dtype).save_pretrained(folder)
    bare_tokenizer(folder)
    return folder


def bare_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer as GPT-2 has it: no pad token, no chat template, the end token in config.json alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 256}))


def examine(name: str, place: Path) -> Found:
    """Load the Hub's layout, train a step, sample, save, load again, give it a reward head; all values compared."""
    given, base, trained, reward = (place / part for part in ("given", "base", "trained", "reward"))
    hub_folder(name, given)
    try:
        fetch_model(str(given), None, base)
        model = load_policy(base)
    except ModelError as error:
        return Found(refused=error.what)
    assert tensors(base).keys() == tensors(given).keys(), "the layout is the Hub's"
    assert all(torch.equal(part, tensors(given)[key]) for key, part in tensors(base).items()), "taken as it is"
    text = ChatText(load_tokenizer(base), str(base), load_stop_tokens(base))
    turns = [{"role": role, "content": said} for role, said in zip(("user", "assistant"), TEXTS[:2], strict=True)]
    asked = text.prompt(turns[:1])
    (answer,) = text.exchanges([(turns[:1], turns[1:])])
    before = [part.detach().clone() for part in model.parameters()]
    descend(model, asked, answer.rest)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    drawn = sample(
        model, [asked], ["a"], n=2, params=SamplingParams(max_tokens=5), seed=0, stop=text.stops, device=DEVICE
    )
    assert len(drawn.ids) == 2
    save_model(model, trained, base)
    same(model, load_model(trained))
    return Found(
        runs=how_it_runs(model),
        head=rewarded(name, trained, reward, asked, answer.rest),
        layout=described(given),
    )


def how_it_runs(model: Any) -> str:
    """Packed with our cache, or in padded rows with its own cache or with none."""
    if not runs_in_rows(model):
        return "packed"
    return "padded rows, own cache" if has_own_cache(model) else "padded rows, no cache"


def descend(model: Any, prompt: list[int], completion: list[int]) -> None:
    """One step of gradient descent on an answer, large enough to show in bfloat16."""
    objective, batch = LikelihoodObjective(LikelihoodConfig()), make_batch(token_rows([prompt], [completion]), {}, {})
    step = objective.prepare(batch.columns, objective.initial_state()).step
    StepClosure(objective, ModelSet(model, DEVICE), batch.with_prepared(step))()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad)


def rewarded(name: str, folder: Path, target: Path, prompt: list[int], completion: list[int]) -> str:
    """A reward model made of the folder, trained, saved and loaded again; whose class it is."""
    import transformers

    try:
        scorer = load_scorer(folder)
    except ModelError as error:
        return f"refused: {error.what}"
    layout = pack(token_rows([prompt], [completion]))
    assert float(score_rows(scorer, layout).detach()) == 0.0, "it starts at 0"
    score_rows(scorer, layout).sum().backward()
    with torch.no_grad():
        scorer.score.weight.sub_(scorer.score.weight.grad)
    save_model(scorer, target, folder)
    again = load_scorer(target)
    same(scorer, again)
    with torch.no_grad():
        assert torch.equal(score_rows(scorer, layout), score_rows(again, layout)) and score_rows(again, layout) != 0
    architecture = scorer_name(name)
    if not hasattr(transformers, architecture):
        return "ours"
    _, found = getattr(transformers, architecture).from_pretrained(target, output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"], found
    return "transformers"


def same(one: Any, other: Any) -> None:
    """Two models have the same weights, bit for bit."""
    left, right = one.state_dict(), other.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """What the folder's weight files hold."""
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            found |= {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    return found


def described(folder: Path) -> str:
    """How the files lay out experts."""
    found = tensors(folder)
    if any(".experts.0." in name for name in found):
        return "one by one"
    return "joined" if any(part.dim() == 3 and len(part) == MOE["num_experts"] for part in found.values()) else ""


def main() -> None:
    """Write the table into docs/reports/families.md."""
    page = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(f"{page}{MARK}\n\n{table()}", encoding="utf-8")


def table(names: list[str] | None = None) -> str:
    """A row for each family."""
    rows = [row(name) for name in sorted(names or EVERY)]
    head = "| `model_type` | runs | reward head | experts on disk | plain loop |\n|---|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def row(name: str) -> str:
    """A family's row of the table."""
    place = Path(tempfile.mkdtemp(prefix="family-"))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = examine(name, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if found.refused:
        return f"| `{name}` | refused: {found.refused} | | | |"
    looped = "equal" if name in {**FAMILIES, **IN_ROWS} else ""
    return f"| `{name}` | {found.runs} | {found.head} | {found.layout} | {looped} |"


EVERY = {**FAMILIES, **IN_ROWS, **OTHERS}

if __name__ == "__main__":
    main()
