"""The public names: cheap to import, documented, and equal to plain loops of transformers."""

from __future__ import annotations

import copy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import posttrain
from docs.make.api import PAGE, page
from posttrain.errors import DataError, ModelError, ParamsError
from posttrain.losses import preference_loss, token_logprobs
from tests.library.models.tiny import tiny_folder
from tests.workspace import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_folder(tmp_path_factory.mktemp("api"))


@pytest.fixture
def loaded(folder: Path) -> tuple[Any, Any]:
    return posttrain.load_model(folder)


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, posttrain; assert posttrain.__version__; assert not {'torch', 'polars'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_every_public_name_is_there() -> None:
    assert set(posttrain.__all__) <= set(dir(posttrain))
    assert all(getattr(posttrain, name) is not None for name in posttrain.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = posttrain.nothing  # type: ignore[attr-defined]


def test_the_stub_has_the_public_names() -> None:
    stub = (ROOT / "posttrain/__init__.pyi").read_text(encoding="utf-8")
    assert all(f" as {name}\n" in stub or f"{name}: " in stub for name in posttrain.__all__)


def test_the_wheel_says_that_it_is_typed() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    assert {"py.typed", "*.pyi"} <= set(data["posttrain"]) and (ROOT / "posttrain/py.typed").is_file()


def test_the_page_is_current() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(), "run: python -m docs.make.api"


@pytest.mark.slow
def test_samples_have_the_models_log_probs(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    samples = posttrain.sample(model, tokenizer, ["1+1", [{"role": "user", "content": "12+3"}]], n=3, max_tokens=6,
                               temperature=0.8)  # fmt: skip
    assert samples.ids.shape == samples.mask.shape == samples.logp.shape and len(samples.texts) == 6
    logp, _ = token_logprobs(model(samples.ids).logits[:, :-1], samples.ids[:, 1:], temperature=0.8)
    assert_close(logp[samples.mask[:, 1:]], samples.logp[samples.mask], atol=1e-4, rtol=0)
    assert bool((samples.logp[~samples.mask] == 0).all())
    alone = posttrain.sample(model, tokenizer, ["1+1"], n=3, max_tokens=6, temperature=0.8)
    assert alone.texts == samples.texts[:3]
    ended = samples.ids == tokenizer.eos_token_id
    assert bool((samples.truncated == ~(ended & samples.mask).any(1)).all())


def test_sft_takes_the_step_of_transformers(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    twin = copy.deepcopy(model)
    row = {"messages": [{"role": "user", "content": "3+4"}, {"role": "assistant", "content": "7 it is"}]}
    history = posttrain.train_model(model, tokenizer, [row], optimizer={"lr": 1e-3, "warmup": 0.0})
    prompt = tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True, return_dict=False)
    whole = tokenizer.apply_chat_template(row["messages"], return_dict=False)
    ids = torch.tensor([whole])
    labels = ids.clone()
    labels[:, : len(prompt)] = -100
    loss = twin(ids, labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
    torch.optim.AdamW(twin.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0).step()
    assert history[0]["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert_close(mine, theirs, atol=1e-4, rtol=0)


def test_dpo_reports_what_the_loss_alone_gives(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for part in reference.parameters():
            part.add_(0.05 * torch.randn(part.shape, generator=torch.Generator().manual_seed(1)))
    rows = [{"prompt": f"{a}+1", "chosen": str(a + 1), "rejected": "no"} for a in range(3)]
    twin = copy.deepcopy(model)
    (metrics,) = posttrain.train_model(model, tokenizer, rows, "dpo", reference=reference)
    talks = [[{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row[side]}]
             for side in ("chosen", "rejected") for row in rows]  # fmt: skip
    whole = [tokenizer.apply_chat_template(talk, return_dict=False) for talk in talks]
    prompts = [tokenizer.apply_chat_template(talk[:1], add_generation_prompt=True, return_dict=False) for talk in talks]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(one) for one in whole], batch_first=True)
    sizes = zip(prompts, whole, strict=True)
    mask = torch.tensor([[len(p) <= t < len(w) for t in range(ids.shape[1])] for p, w in sizes])[:, 1:]
    logp, ref_logp = (token_logprobs(one(ids).logits[:, :-1], ids[:, 1:])[0] for one in (twin, reference))
    loss, expected = preference_loss("dpo", logp, mask, ref_logp=ref_logp)
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["kto", "sdpo", "orpo"])
def test_other_algorithms_train(loaded: tuple[Any, Any], algorithm: str) -> None:
    model, tokenizer = loaded
    rows = [{"prompt": f"{a}+1", "completion": str(a), "label": a % 2 == 0, "chosen": "yes", "rejected": "no"}
            for a in range(8)]  # fmt: skip
    steps: list[int] = []
    history = posttrain.train_model(
        model, tokenizer, rows, algorithm, epochs=8, batch_size=4, optimizer={"lr": 3e-3},
        on_step=lambda step, _: steps.append(step),
    )  # fmt: skip
    assert steps == list(range(len(history))) == list(range(16))
    assert history[-1]["loss"] < history[0]["loss"] or algorithm == "sdpo"
    assert torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all(), "the model has its own attention again"


def test_the_first_part_of_sdpo_has_the_given_reference(loaded: tuple[Any, Any]) -> None:
    """And leaves it as it is: later parts move a copy."""
    model, tokenizer = loaded
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    before = copy.deepcopy(reference.state_dict())
    rows = [{"prompt": f"{a}+1", "chosen": "yes", "rejected": "no"} for a in range(8)]
    history = posttrain.train_model(model, tokenizer, rows, "sdpo", epochs=1, batch_size=2, reference=reference)
    assert history[0]["margin"] != 0
    assert all(torch.equal(before[name], part) for name, part in reference.state_dict().items())


def test_mistakes_are_named(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    row = {"prompt": "1", "completion": "2"}
    with pytest.raises(ParamsError, match="Did you mean 'dpo'"):
        posttrain.train_model(model, tokenizer, [row], "dop")
    with pytest.raises(DataError, match=r"rows\[1\]: 'completion' is missing"):
        posttrain.train_model(model, tokenizer, [row, {"prompt": "1"}])
    with pytest.raises(DataError, match=r"rows\[0\]: 'completion' is missing or null; fill it in"):
        posttrain.train_model(model, tokenizer, [{"prompt": "1", "completion": None}])
    turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": None}]
    with pytest.raises(DataError, match=r"rows\[0\]: the content of turn 2 of 'messages' is missing or null"):
        posttrain.train_model(model, tokenizer, [{"messages": turns}])
    with pytest.raises(DataError, match=r"rows\[0\]: it has \d+ tokens, more than the model's context of 256"):
        posttrain.train_model(model, tokenizer, [{"prompt": "1" * 300, "completion": "2"}])
    with pytest.raises(ParamsError, match=r"optimizer\.lrr"):
        posttrain.train_model(model, tokenizer, [row], optimizer={"lrr": 1})
    with pytest.raises(ParamsError, match="temperature"):
        posttrain.sample(model, tokenizer, ["1"], temperature=0.0)
    with pytest.raises(ModelError, match=r"Call model.float\(\)"):
        posttrain.sample(copy.deepcopy(model).bfloat16(), tokenizer, ["1"])


def test_a_tool_call_with_null_content_is_trained(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    with pytest.raises(DataError, match="tool"):  # the template of this model knows no tools, and says so
        posttrain.train_model(copy.deepcopy(model), tokenizer, [{"messages": turns}])


ROWS = [{"prompt": f"{a}+1", "completion": str(a + 1)} for a in range(8)]
PAIRS = [{"prompt": f"{a}+1", "chosen": str(a + 1), "rejected": "no"} for a in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "rows"), [("sft", ROWS), ("dpo", PAIRS), ("simpo", PAIRS)])
def test_heldout_rows_are_measured_while_it_trains(
    folder: Path, algorithm: str, rows: list[dict[str, str]], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"epochs": 4, "batch_size": 4, "optimizer": {"lr": 3e-3}}
    model, tokenizer = posttrain.load_model(folder)
    history = posttrain.train_model(
        model, tokenizer, rows, algorithm, heldout=rows[:3], evaluate_every=3, output=tmp_path, **options
    )
    plain, _ = posttrain.load_model(folder)
    posttrain.train_model(plain, tokenizer, rows, algorithm, **options)
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "measuring changes nothing"
    measured = [row["step"] for row in history if "heldout_loss" in row]
    assert measured == [0, 3, 6, 8] and "loss" not in history[-1]
    assert history[-1]["heldout_loss"] < history[0]["heldout_loss"]
    assert ("heldout_accuracy" in history[0]) is (algorithm != "sft")
    saved, _ = posttrain.load_model(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), model.parameters(), strict=True))


def test_the_heldout_loss_is_that_of_the_rows(folder: Path) -> None:
    model, tokenizer = posttrain.load_model(folder)
    history = posttrain.train_model(model, tokenizer, ROWS, heldout=ROWS, batch_size=8, optimizer={"lr": 1e-3})
    assert history[0]["heldout_loss"] == pytest.approx(history[0]["loss"], rel=1e-6)


def test_wrong_heldout_rows_are_named(folder: Path) -> None:
    model, tokenizer = posttrain.load_model(folder)
    with pytest.raises(DataError, match=r"heldout\[0\]"):
        posttrain.train_model(model, tokenizer, ROWS, heldout=[{"prompt": "1+1"}] * 2)
