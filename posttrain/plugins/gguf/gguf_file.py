"""Write a policy's model as one GGUF file. The file is stored only if transformers reads it back as the same model."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from posttrain.errors import ModelError, ParamsError, PipelineError, shortened
from posttrain.files import atomic_path
from posttrain.models.files.store import load_policy, load_stop_tokens, load_tokenizer
from posttrain.pipeline.commands.push.exporters import Dtype, Exporter
from posttrain.text.chat import DATE
from posttrain.text.chat_template import Message
from posttrain.text.templates import RenderError, RenderRequest, Template

ARCHITECTURES: Final = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""model_type -> architecture name in GGUF. Mistral is written as Llama."""
SPLITS: Final = ("llama-bpe", "qwen2", "tekken", "gpt-4o")
"""GGUF's names of pre-tokenizers. The regular expressions are copied from transformers."""
COMPARED: Final = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "max_position_embeddings", "hidden_act", "rope_parameters", "rms_norm_eps",
    "tie_word_embeddings",
)  # fmt: skip
"""Model settings that must be the same after reading the file."""
NEW_TOKENS: Final = 32
"""The number of tokens of each greedy completion that is compared."""


def write_gguf(folder: Path, name: str, conversations: list[list[Message]], file: Path, dtype: Dtype) -> str:
    """Write a model as a GGUF file and check it on conversations. The file appears only after the check."""
    if missing := [package for package in ("gguf", "accelerate") if find_spec(package) is None]:
        fix = f"Install the extra `real`: python -m pip install -c constraints.txt {' '.join(missing)}"
        raise PipelineError(what=f"GGUF needs {' and '.join(missing)}", where="push --gguf", fix=fix)
    if file.exists():
        raise ParamsError(what="it already exists", where=str(file), fix="Remove it, or choose another file")
    model, tokenizer = load_policy(folder).eval(), load_tokenizer(folder)
    model.set_attn_implementation("sdpa")
    _require_known(model.config, folder)
    tensors = _rounded(model, dtype, folder)
    with atomic_path(file) as temporary:
        _write(temporary, name, model.config, tokenizer, load_stop_tokens(folder), tensors)
        extra = _unread_settings(model.config)
        _check(temporary, model, tokenizer, tensors, conversations, extra, folder)
        size = temporary.stat().st_size
    given = "".join(f", {key}={value}" for key, value in extra.items())
    return (
        f"{file}: {size:,} bytes, {dtype}. Read again by transformers: the same weights, tokens, logits and greedy "
        f"completions on {len(conversations)} prompts\n"
        f"from_pretrained({str(file.parent)!r}, gguf_file={file.name!r}{given})"
    )


def _require_known(config: Any, folder: Path) -> None:
    """Reject a model that a GGUF file, or transformers' reader of it, cannot represent."""
    reasons = []
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) and window and window < config.max_position_embeddings:
        reasons.append(f"its attention has a sliding window of {window}")
    if (kind := config.rope_parameters.get("rope_type", "default")) != "default":
        reasons.append(f"its positions are scaled (rope_type {kind})")
    if config.model_type not in ARCHITECTURES:
        reasons = [f"its model_type is {config.model_type}"]
    if reasons:
        fix = f"Supported: {', '.join(ARCHITECTURES)}, with full attention and unscaled positions"
        raise ModelError(what=f"{' and '.join(reasons)}, which is not written as GGUF", where=str(folder), fix=fix)


def _rounded(model: Any, dtype: Dtype, folder: Path) -> dict[str, torch.Tensor]:
    """Round the matrices of a model and return its tensors by their names in transformers."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        if tensor.ndim > 1:
            stored = tensor.to(getattr(torch, dtype))
            if not stored.isfinite().all():
                what, fix = f"{name} has values that are too large for {dtype}", "Use --dtype float32"
                raise ModelError(what=what, where=str(folder), fix=fix)
            tensor.copy_(stored)
            tensors[name] = stored
        elif tensor.is_floating_point():
            tensors[name] = tensor.float()
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return tensors


def _write(
    file: Path, name: str, config: Any, tokenizer: Any, stops: tuple[int, ...], tensors: dict[str, torch.Tensor]
) -> None:
    import gguf

    architecture = ARCHITECTURES[config.model_type]
    key = next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == architecture)
    names = gguf.get_tensor_name_map(key, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name(name)
    half = any(tensor.dtype == torch.float16 for tensor in tensors.values())
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _add_tokenizer(writer, config.vocab_size, tokenizer, stops)
    for source, tensor in tensors.items():
        stem, _, ending = source.rpartition(".")
        target = names.get_name(stem)
        if target is None:
            fix = f"Supported: plain models of {', '.join(ARCHITECTURES)}"
            raise ModelError(what=f"GGUF does not define {source}", where=name, fix=fix)
        projection = stem.rpartition(".")[2]
        if architecture == "llama" and projection in heads:  # pairs of a rotation lie next to each other there
            parts = tensor.reshape(heads[projection], 2, -1, *tensor.shape[1:])
            tensor = parts.swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(f"{target}.{ending}", tensor.contiguous().numpy())
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_tokenizer(writer: Any, rows: int, tokenizer: Any, stops: tuple[int, ...]) -> None:
    """Add the vocabulary, the merges or scores, the special tokens and the chat template."""
    import gguf

    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    scheme = backend["model"]
    sentencepiece = scheme.get("byte_fallback", False)
    split = "default" if sentencepiece else _split_name(backend)
    if scheme["type"] != "BPE" or split is None:
        what = "GGUF does not support how its tokenizer splits text"
        fix = f"Supported: BPE with byte fallback, or byte-level BPE as in GPT-2, SmolLM, {', '.join(SPLITS)}"
        raise ModelError(what=what, where=tokenizer.name_or_path, fix=fix)
    types = gguf.TokenType
    texts = [f"[PAD{token}]" for token in range(rows)]
    kinds = [types.UNUSED] * rows
    for text, token in tokenizer.get_vocab().items():
        is_byte = sentencepiece and len(text) == 6 and text.startswith("<0x")
        texts[token], kinds[token] = text, types.BYTE if is_byte else types.NORMAL
    for token, added in tokenizer.added_tokens_decoder.items():
        kinds[token] = types.CONTROL if added.special else types.USER_DEFINED
    if sentencepiece and tokenizer.unk_token_id is not None:
        kinds[tokenizer.unk_token_id] = types.UNKNOWN
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in scheme["merges"]]
    writer.add_tokenizer_model("llama" if sentencepiece else "gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    if sentencepiece:
        ranks: dict[str, int] = {}
        for rank, merge in enumerate(merges):
            ranks.setdefault("".join(merge), rank)
        writer.add_token_scores([-float(ranks.get(text, 0)) for text in texts])
        scheme_of_space = backend.get("pre_tokenizer") or {}
        writer.add_add_space_prefix(scheme_of_space.get("prepend_scheme", "first") != "never")
    else:
        writer.add_token_merges([" ".join(merge) for merge in merges])
    ids = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(bool(ids) and ids[0] == tokenizer.bos_token_id)
    writer.add_add_eos_token(bool(ids) and ids[-1] == tokenizer.eos_token_id)
    named = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    named |= {"unk": tokenizer.unk_token_id, "eot": next((stop for stop in stops if stop != named["eos"]), None)}
    for kind, token in named.items():
        if token is not None:
            getattr(writer, f"add_{kind}_token_id")(token)
    writer.add_chat_template(tokenizer.chat_template)


def _split_name(backend: dict[str, Any]) -> str | None:
    """Return GGUF's name for the way a byte-level tokenizer splits text before merges; None if there is none."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    step = backend["pre_tokenizer"] or {}
    steps = step.get("pretokenizers", [step])
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    before, use_regex = steps[:-1], steps[-1]["use_regex"]
    if not before:
        return "gpt-2" if use_regex else None
    if len(before) > 1:
        return None
    if before[0]["type"] == "Digits":
        return "smollm" if use_regex and before[0]["individual_digits"] else None
    expression = before[0].get("pattern", {}).get("Regex")
    return next((name for name in SPLITS if not use_regex and GGUF_PRE_TOKENIZER_SPLITS[name] == expression), None)


def _unread_settings(config: Any) -> dict[str, int]:
    """Return values that transformers takes from the class instead of the file: the width of Qwen3's heads."""
    if config.model_type != "qwen3" or config.head_dim == type(config)().head_dim:
        return {}
    return {"head_dim": config.head_dim}


def _check(
    file: Path,
    model: Any,
    tokenizer: Any,
    tensors: dict[str, torch.Tensor],
    conversations: list[list[Message]],
    extra: dict[str, int],
    folder: Path,
) -> None:
    """Read the file with transformers. Reject it unless everything equals the model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    quiet: Any = logging  # without types
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    where = {"gguf_file": file.name, "local_files_only": True}
    try:
        with redirect_stderr(io.StringIO()):  # a bar of its progress
            again: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **where, **extra)
            reader: Any = AutoTokenizer.from_pretrained(str(file.parent), **where)
    except Exception as error:  # the loader of GGUF has no errors of its own
        raise _refused(f"transformers cannot read it ({shortened(str(error), 300)})", folder) from error
    again.eval()
    for key in COMPARED:
        old, new = getattr(model.config, key, None), getattr(again.config, key, None)
        if old is not None and not _same(old, new):
            raise _refused(f"{key} is {new} instead of {old}", folder)
    read = again.state_dict()
    for name, tensor in tensors.items():
        if name not in read or not torch.equal(read[name], tensor.float()):
            raise _refused(f"{name} differs", folder)
    for name in ("eos_token_id", "chat_template"):
        if getattr(reader, name) != getattr(tokenizer, name):
            raise _refused(f"{name} differs", folder)
    texts, texts_again = (_rendered(one, conversations, folder) for one in (tokenizer, reader))
    for text, rendered in zip(texts, texts_again, strict=True):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        for sample, expected in ((text, ids), (text + " 1234  x", None)):
            expected = expected or tokenizer(sample, add_special_tokens=False)["input_ids"]
            if rendered != text or reader(sample, add_special_tokens=False)["input_ids"] != expected:
                raise _refused(f"the tokens of {sample[:60]!r} differ", folder)
        _compare(model, again, torch.tensor([ids]), folder)


def _rendered(tokenizer: Any, conversations: list[list[Message]], folder: Path) -> list[str]:
    """Return the conversations up to the start of an answer, formatted by the tokenizer's chat template."""
    template = Template(tokenizer.get_chat_template(), tokenizer.special_tokens_map, DATE)
    try:
        return [result.text for result in template.render([RenderRequest(talk, opened=True) for talk in conversations])]
    except RenderError as error:
        fix = "Change the template"
        raise ModelError(what=f"the chat template fails: {error}", where=str(folder), fix=fix) from error


@torch.no_grad()
def _compare(model: Any, again: Any, ids_BT: torch.Tensor, folder: Path) -> None:
    """Reject a file whose model has other logits or writes another greedy completion."""
    for _ in range(NEW_TOKENS):
        old, new = model(ids_BT).logits, again(ids_BT).logits
        most = (old - new).abs().max().item()
        if not most <= 1e-4 * max(1.0, old.abs().max().item()):
            raise _refused(f"logits differ by up to {most:.3g}", folder)
        following = old[:, -1].argmax(-1, keepdim=True)
        if not torch.equal(following, new[:, -1].argmax(-1, keepdim=True)):
            raise _refused("a greedy completion differs", folder)
        ids_BT = torch.cat([ids_BT, following], dim=1)
        if ids_BT.shape[1] >= model.config.max_position_embeddings:
            return


def _same(old: Any, new: Any) -> bool:
    """Tell whether two settings are equal, or equal numbers in float32."""
    if isinstance(old, float) and isinstance(new, float):
        return abs(old - new) <= 1e-6 * abs(old)
    if isinstance(old, dict) and isinstance(new, dict):
        return all(_same(value, new.get(key)) for key, value in old.items())
    return bool(old == new)


def _refused(what: str, folder: Path) -> ModelError:
    fix = "Nothing was written. Please report it with the model's config.json and tokenizer.json"
    return ModelError(what=f"the GGUF file is not the model: {what}", where=str(folder), fix=fix)


GGUF: Final = Exporter(write_gguf, ".gguf")
