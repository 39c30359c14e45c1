"""Model folders: whole or absent, and refused with the reason when anything in them is not as it should be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from posttrain.errors import ModelError
from posttrain.models.files.import_model import fetch_model
from posttrain.models.files.store import (
    load_model,
    load_scorer,
    load_stop_tokens,
    load_tokenizer,
    new_model,
    save_model,
)
from posttrain.models.files.text import context_of
from posttrain.models.forward.forward import runs_in_rows
from tests.library.models.tiny import tiny_folder, tiny_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("store"))


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "model"))


def weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    """Change the tensors and forget the manifest, as one who edits weights by hand."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, str(folder / "model.safetensors"))
        (folder / "manifest.json").unlink()

    return apply


def cut(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return apply


def huge_header(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + data[8:])


def config(**over: object) -> Callable[[Path], None]:
    """Change the config and forget the manifest, which would be the one to refuse."""

    def apply(folder: Path) -> None:
        data = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**data, **over}))
        (folder / "manifest.json").unlink()

    return apply


def changed_by_one_bit(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] += 1e-3
    save_file(tensors, str(folder / "model.safetensors"))


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (weights(lambda t: t.pop(NORM)), f"missing {NORM}"),
        (weights(lambda t: t.update(extra=torch.zeros(2))), "unexpected extra"),
        (weights(lambda t: t.update({NORM: torch.zeros(7)})), f"{NORM} has shape [7], expected [32]"),
        (weights(lambda t: t[NORM].fill_(float("nan"))), f"{NORM} is not finite"),
        (weights(lambda t: t.update({NORM: torch.ones(32, dtype=torch.int32)})), "is int32, expected floating point"),
        (changed_by_one_bit, "the weights do not match manifest.json"),
        (cut("model.safetensors"), "the weights cannot be read"),
        (huge_header, "the weights cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "the weights cannot be read"),
        (cut("config.json"), "files differ from manifest.json: config.json"),
        (config(model_type="nonesuch"), "cannot be read"),
        (config(architectures=["EvilForCausalLM"]), "architectures = ['EvilForCausalLM'] is not an architecture of"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_reason(folder: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(folder)
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert words in str(caught.value)
    assert str(folder) in str(caught.value) or "config.json" in str(caught.value)


def test_a_tokenizer_that_does_not_fit_is_refused(folder: Path) -> None:
    config(vocab_size=40)(folder)
    with pytest.raises(ModelError, match=r"the tokenizer has .* tokens, but the model embeds 40"):
        load_tokenizer(folder)


def test_weights_that_are_not_finite_are_never_written(folder: Path, tmp_path: Path) -> None:
    model = load_model(folder)
    with torch.no_grad():
        model.model.norm.weight[3] = float("inf")
    with pytest.raises(ModelError, match="not finite"):
        save_model(model, tmp_path / "new", folder)
    assert not (tmp_path / "new").exists()


def test_saving_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_model(load_model(folder), tmp_path / name, folder)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert "model.safetensors" in files and "manifest.json" in files
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_a_scorer_starts_at_zero_and_loads_as_what_it_is(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    scorer = load_scorer(folder)
    assert not scorer.score.weight.any()
    save_model(scorer, tmp_path / "scorer", folder)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "scorer")
    assert again.config.num_labels == 1
    assert torch.equal(again.model.norm.weight, scorer.model.norm.weight)


@pytest.mark.slow
def test_a_given_folder_is_taken_as_it_is(folder: Path, tmp_path: Path) -> None:
    fetch_model(str(folder), None, tmp_path / "base")
    left, right = load_model(folder), load_model(tmp_path / "base")
    assert all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def with_ends(folder: Path, content: str) -> Path:
    (folder / "generation_config.json").write_text(content)
    return folder


@pytest.mark.parametrize(
    ("content", "ends"),
    [
        ('{"eos_token_id": [7, 3, 7]}', (7, 3)),
        ('{"eos_token_id": 5}', (5,)),
        ('{"eos_token_id": null}', ()),
        ("{}", ()),
    ],
)
def test_the_ends_of_a_model_are_those_of_its_generation_config(
    folder: Path, tmp_path: Path, content: str, ends: tuple[int, ...]
) -> None:
    assert load_stop_tokens(folder) == ()
    fetch_model(str(with_ends(folder, content)), None, tmp_path / "base")
    assert load_stop_tokens(tmp_path / "base") == ends
    save_model(load_model(tmp_path / "base"), tmp_path / "trained", tmp_path / "base")
    assert load_stop_tokens(tmp_path / "trained") == ends, "each model keeps those of its start model"


@pytest.mark.parametrize(
    "content", ['{"eos_token_id": ["x"]}', '{"eos_token_id": -1}', '{"eos_token_id": 300000}', "[", "[]"]
)
def test_ends_that_cannot_be_are_refused(folder: Path, content: str) -> None:
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        load_stop_tokens(with_ends(folder, content))


@pytest.mark.slow
def test_a_model_that_cannot_be_packed_says_at_load_how_it_runs(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers.models.bloom.configuration_bloom import BloomConfig

    shape = BloomConfig(vocab_size=300, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.2)
    save_model(new_model(shape, 0), tmp_path / "bloom", folder)
    assert runs_in_rows(load_model(tmp_path / "bloom"))
    said = f"{tmp_path / 'bloom'}: BloomForCausalLM cannot be run packed (its attention is 'eager', not 'posttrain'): "
    assert capsys.readouterr().out == f"{said}it runs in padded rows and samples with its own cache\n"
    assert runs_in_rows(load_scorer(tmp_path / "bloom"))
    assert not runs_in_rows(load_model(folder))


def test_a_hub_name_without_its_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"belongs in base\.hub, with its commit"):
        fetch_model("somebody/something", None, tmp_path / "base")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma", "phi3", "olmo2"])
def test_common_families_give_the_log_probs_of_their_own_forward(family: str) -> None:
    from transformers import AutoConfig

    from posttrain.models.files.store import new_model
    from posttrain.models.forward.forward import score_tokens
    from posttrain.rollout import token_rows
    from posttrain.text.packing import pack
    from tests.library.models.tiny import plain_logps, random_rows

    shape = AutoConfig.for_model(
        family, vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=48, pad_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    model = new_model(shape, 0)
    prompts, completions = random_rows(9)
    with torch.no_grad():
        expected = plain_logps(model, prompts, completions)
        found, _ = score_tokens(model, pack(token_rows(prompts, completions)))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_seed_decides_the_start() -> None:
    one, same, other = tiny_model(1), tiny_model(1), tiny_model(2)
    assert torch.equal(one.model.norm.weight, same.model.norm.weight)
    first = [next(iter(model.parameters())) for model in (one, same, other)]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])


def test_rows_of_longrope_end_where_its_frequencies_would_change() -> None:
    """transformers takes those of the longest row of a call for all its rows."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.phi3.configuration_phi3 import Phi3Config

    rope = {"rope_theta": 1e4, "original_max_position_embeddings": 64}
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    shape: dict[str, Any] = {
        "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1,
        "max_position_embeddings": 256, "pad_token_id": 0,
    }  # fmt: skip
    long = {"rope_type": "longrope", **rope, **factors}
    assert context_of(Phi3Config(**shape, original_max_position_embeddings=64, rope_parameters=long)) == 64
    yarn = {"rope_type": "yarn", **rope, "factor": 4.0}
    assert context_of(LlamaConfig(**shape, rope_parameters=yarn)) == 256
