"""A model as a GGUF file: what transformers reads again is the model, and what cannot be is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from posttrain.errors import ModelError, ParamsError, PipelineError
from posttrain.plugins.gguf import gguf_file
from posttrain.plugins.gguf.gguf_file import write_gguf
from posttrain.text.bpe import BpeParams, train_tokenizer
from tests.workspace import ROOT, environment

pytest.importorskip("gguf", reason="needs the extra `real`")
pytest.importorskip("accelerate", reason="needs the extra `real`")

TEXTS = ["What is 12 and 30? It is 42.", "the cat sat on the mat, and the dog sat on the log"] * 20
TALK = [[{"role": "user", "content": "What is 12 and 30?"}], [{"role": "user", "content": "the cat's  mat\n\n7"}]]
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}


def model_folder(folder: Path, kind: str, **changed: Any) -> Path:
    """Write a random model whose vocabulary has rows that no token uses."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        PhiConfig,
        PhiForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    classes: dict[str, tuple[Any, Any]] = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "mistral": (MistralConfig, MistralForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "phi": (PhiConfig, PhiForCausalLM),
    }
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), folder)
    config, cls = classes[kind]
    extra = {"head_dim": 16} if kind == "qwen3" else {"sliding_window": None} if kind == "mistral" else {}
    torch.manual_seed(1)
    model = cls(config(vocab_size=310, eos_token_id=1, pad_token_id=0, **{**SHAPE, **extra, **changed}))
    for tensor in model.parameters():  # biases and norms of a new model are 0 and 1
        tensor.data += 0.1 * torch.randn_like(tensor)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_each_family_comes_back(tmp_path: Path, kind: str, dtype: Any) -> None:
    folder = model_folder(tmp_path / "model", kind, tie_word_embeddings=kind == "qwen3", rope_theta=5e5)
    said = write_gguf(folder, "online/grpo", TALK, tmp_path / "out.gguf", dtype)
    assert "greedy completions on 2 prompts" in said
    assert ("head_dim=16" in said) == (kind == "qwen3")
    import gguf

    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    types = {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1}
    assert types == {{"float16": "F16", "float32": "F32"}[dtype]}
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["tokenizer.ggml.pre"] == "smollm" and len(fields["tokenizer.ggml.tokens"]) == 310
    assert fields["tokenizer.ggml.token_type"][:2] == [3, 3] and fields["tokenizer.ggml.token_type"][-1] == 5
    assert fields["tokenizer.chat_template"].startswith("{% for message")
    arch = fields["general.architecture"]
    assert arch == {"mistral": "llama"}.get(kind, kind) and fields[f"{arch}.attention.key_length"] in (8, 16)


def test_a_sentencepiece_vocabulary_has_scores_that_give_its_merges(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", "llama")
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    names = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=309, special_tokens=[*names, *(f"<0x{n:02X}>" for n in range(256))])
    tokenizer.train_from_iterator(TEXTS, trainer)
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = saved["added_tokens"][:3]
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "pad_token": "<unk>"}
    config["chat_template"] = "{% for message in messages %}{{ message['content'] }}</s>{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert "the same weights" in write_gguf(folder, "a/b", TALK, tmp_path / "out.gguf", "float32")
    import gguf

    fields = gguf.GGUFReader(tmp_path / "out.gguf").fields
    assert "tokenizer.ggml.merges" not in fields and fields["tokenizer.ggml.model"].contents() == "llama"


@pytest.mark.parametrize(
    ("kind", "changed", "why"),
    [
        (
            "phi",
            {},
            "its model_type is phi, which is not written as GGUF. Supported: llama, mistral, qwen2, qwen3",
        ),
        ("mistral", {"sliding_window": 64}, "its attention has a sliding window of 64"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            r"its positions are scaled \(rope_type linear\)",
        ),
        ("llama", {"hidden_act": "gelu"}, "the GGUF file is not the model: hidden_act is silu instead of gelu"),
    ],
)
def test_what_gguf_cannot_say_is_refused(tmp_path: Path, kind: str, changed: dict[str, Any], why: str) -> None:
    folder = model_folder(tmp_path / "model", kind, **changed)
    with pytest.raises(ModelError, match=why):
        write_gguf(folder, "a/b", TALK, tmp_path / "out.gguf", "float16")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_number_that_float16_lacks_and_a_tokenizer_without_a_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder, out = model_folder(tmp_path / "model", "llama"), tmp_path / "out.gguf"
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e5
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"too large for float16. Use --dtype float32"):
        write_gguf(folder, "a/b", TALK, out, "float16")
    write_gguf(folder, "a/b", TALK, out, "float32")
    with pytest.raises(ParamsError, match="it already exists"):
        write_gguf(folder, "a/b", TALK, out, "float32")
    saved = json.loads((folder / "tokenizer.json").read_text())
    saved["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = False
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    with pytest.raises(ModelError, match="GGUF does not support how its tokenizer splits text"):
        write_gguf(folder, "a/b", TALK, tmp_path / "other.gguf", "float32")
    assert not (tmp_path / "other.gguf").exists()


def test_the_template_has_the_limits_of_templates(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", "llama")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ messages[0]['content'] + 'x' * 200000 }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ModelError, match=r"the chat template fails: it writes 200,018 characters"):
        write_gguf(folder, "a/b", TALK, tmp_path / "out.gguf", "float32")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("key", ["eos", "rope", "tensor"])
def test_a_wrong_file_is_found_by_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Faults in what is written: each must be found by what is read."""
    import gguf

    folder = model_folder(tmp_path / "model", "llama")
    real = {name: getattr(gguf.GGUFWriter, name) for name in ("add_eos_token_id", "add_rope_freq_base", "add_tensor")}
    if key == "eos":
        monkeypatch.setattr(gguf.GGUFWriter, "add_eos_token_id", lambda self, _: real["add_eos_token_id"](self, 2))
    elif key == "rope":
        monkeypatch.setattr(
            gguf.GGUFWriter, "add_rope_freq_base", lambda self, _: real["add_rope_freq_base"](self, 7.0)
        )
    else:  # without the order of rotations
        monkeypatch.setitem(gguf_file.ARCHITECTURES, "llama", "qwen2")
    with pytest.raises(ModelError, match="the GGUF file is not the model"):
        write_gguf(folder, "a/b", TALK, tmp_path / "out.gguf", "float32")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_without_the_package_the_line_for_pip_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "find_spec", lambda name: None)
    with pytest.raises(PipelineError, match=r"pip install -c constraints\.txt gguf accelerate"):
        write_gguf(tmp_path, "a/b", TALK, tmp_path / "out.gguf", "float32")


@pytest.mark.slow
def test_a_policy_of_the_pipeline_is_written_by_the_command(own_workspace: Path) -> None:
    def push(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "posttrain", "push", *words]
        settings = {**environment(), "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=own_workspace, env=settings, capture_output=True, text=True, check=False)

    done = push("grpo", "--gguf", "grpo.gguf")
    assert done.returncode == 0, done.stderr
    assert "greedy completions on 4 prompts" in done.stdout and "it/s" not in done.stderr
    assert (own_workspace / "grpo.gguf").read_bytes()[:4] == b"GGUF"
    for words, said in ((("--public",), "it works only with --to"), ((), "it already exists")):
        refused = push("grpo", "--gguf", "grpo.gguf", *words)
        assert refused.returncode == 1 and said in refused.stderr and "Traceback" not in refused.stderr
    shutil.rmtree(own_workspace / "data")
    lost = push("grpo", "--gguf", "other.gguf")
    assert lost.returncode == 1 and not (own_workspace / "other.gguf").exists()
