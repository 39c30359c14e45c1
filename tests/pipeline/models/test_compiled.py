"""Compiled layers give the gradients of uncompiled ones up to rounding, and every time the same bytes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from posttrain.errors import ModelError, ParamsError
from posttrain.models.adapters import LoraOptions
from posttrain.models.forward.activations import Activations, set_activations
from posttrain.models.forward.compiled import compiled, compiled_layers
from posttrain.models.lora import add, freeze
from posttrain.settings.params import check
from posttrain.train.loop import TrainingParams, checkpoint_settings
from posttrain.train.model_set import ModelSet
from posttrain.train.step import StepClosure
from tests.library.models.test_families import family
from tests.library.models.test_fast_paths import closure, models_of, objectives
from tests.library.models.tiny import tiny_folder, tiny_model
from tests.pipeline.models.test_activations import runtime, with_critic
from tests.pipeline.train.test_training import CutError, CutSource, digest, make_run, train
from tests.workspace import ROOT

linked = pytest.mark.skipif(" " in torch.__file__, reason="torch's compiler cannot link where its path has a space")


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    """Code of other tests in the process has other sizes, and so other rounding."""
    torch._dynamo.reset()


def gradients(make: Callable[[], StepClosure], *, on: bool, activations: Activations = "keep") -> list[Tensor]:
    """What a step adds to the weights; every pass with a gradient has to run compiled."""
    step = make()
    models = [*step.models.trained.values()]
    for model in models:
        set_activations(model, activations)
    with compiled(models, on=on):
        for model in models:
            assert not any(part.grad is not None for part in model.parameters()), "compiling leaves no gradient"
            model.train()
        if on:
            torch.compiler.set_stance("fail_on_recompile")
        step()
    return [part.grad for model in models for part in model.parameters() if part.grad is not None]


def assert_close(make: Callable[[], StepClosure], activations: Activations = "keep") -> None:
    """Within 1e-5 of the largest gradient of each weight, and not the same bits."""
    expected, found = gradients(make, on=False), gradients(make, on=True, activations=activations)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * max(1.0, float(one.abs().max()))
    assert sum(float(part.abs().sum()) for part in expected) > 0
    assert any(not torch.equal(one, other) for one, other in zip(expected, found, strict=True)), "nothing is compiled"


@linked
@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "autograd"])
def test_gradients_are_those_of_uncompiled_layers(fused: bool) -> None:
    """In micro-batches of many sizes, on both paths of the loss."""
    assert_close(lambda: closure(objectives()["grpo"], models_of("grpo", runtime(fused=fused), 64)))


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["recompute", "offload"])
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_layers_that_are_computed_again_too(name: str, activations: Activations) -> None:
    assert_close(lambda: closure(objectives()[name], models_of(name, runtime(), 64)), activations)


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["keep", "recompute"])
@pytest.mark.parametrize("kind", ["lora", "dora", "qlora"])
def test_adapters_too(kind: str, activations: Activations, tmp_path: Path) -> None:
    """The first layer's input has no gradient."""

    def make() -> StepClosure:
        policy = tiny_model()
        options = LoraOptions(type=kind, rank=4)  # type: ignore[arg-type]
        freeze(policy, options)
        policy = add(policy, options, tmp_path, 0)
        for name, part in policy.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(part, std=0.1, generator=torch.Generator().manual_seed(1))
        return closure(objectives()["grpo"], ModelSet(policy, runtime(), micro_tokens=64))

    assert_close(make, activations)


@pytest.mark.slow
def test_a_critic_too() -> None:
    assert_close(lambda: with_critic("fp32"))


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["keep", "recompute"])
def test_bf16_too_within_its_rounding(activations: Activations) -> None:
    """In a process that imports `stages` first, as a run does.

    In one that has used torch before, torch and its compiler would not have the same instructions of the CPU.
    """
    code = f"import stages; from tests.pipeline.models.test_compiled import check_bf16; check_bf16({activations!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_bf16(activations: Activations) -> None:
    """Check that compiled and uncompiled layers differ from float32 by about the same."""

    def make(precision: str) -> StepClosure:
        return closure(objectives()["grpo"], models_of("grpo", runtime(precision), 64))

    def flat(precision: str, *, on: bool) -> Tensor:
        return torch.cat(
            [part.flatten() for part in gradients(partial(make, precision), on=on, activations=activations)]
        )

    exact, plain, found = flat("fp32", on=False), flat("bf16", on=False), flat("bf16", on=True)
    assert found.dtype == torch.float32
    assert float((found - exact).norm()) <= 1.5 * float((plain - exact).norm()) < 0.1 * float(exact.norm())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "phi3", "olmo2"])
def test_families_too(name: str) -> None:
    """Windows, norms elsewhere, fused matrices."""
    assert_close(lambda: closure(objectives()["grpo"], ModelSet(family(name), runtime(), micro_tokens=64)))


def main(name: str, folder: str, place: str, last: str) -> None:
    """Train the run in `place`, from its checkpoint if there is one, up to step `last`; print its weights' digest."""
    run = make_run(Path(folder), name, Path(place))
    run = replace(run, params=run.params.model_copy(update={"compile": True, "checkpoint_every": 1}))
    if last:
        run = replace(run, source=CutSource(run.source, int(last)))
    with contextlib.suppress(CutError):
        train(run, Path(place))
    log = (Path(place) / f"{run.name}.csv").read_bytes()
    print(digest(run), hashlib.sha256(log).hexdigest())


@pytest.mark.slow
@pytest.mark.parametrize("run", ["sft", "sft+lora_dropout"])
def test_bytes_do_not_depend_on_caches_and_cuts(run: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")

    def trained(name: str, cache: str, last: str = "") -> str:
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / cache), "DVC_ROOT": str(place)}
        command = [sys.executable, "-m", "tests.pipeline.models.test_compiled", run, str(folder), str(place), last]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    expected = trained("cold", "one")
    assert trained("warm", "one") == expected
    cut = trained("cut", "two", last="3")
    assert cut != expected
    assert trained("cut", "one") == expected, "resumed with what another process compiled"
    assert trained("whole", "two") == expected, "compiled for the first time in a run that was cut"


def test_it_names_checkpoints() -> None:
    assert checkpoint_settings(TrainingParams(compile=True)) != checkpoint_settings(TrainingParams())


@pytest.mark.slow
def test_afterwards_the_layers_are_as_before() -> None:
    """Also where the compiler is missing, which is said before any step."""
    model, other = tiny_model(), tiny_model()
    other.runs_in_rows = True
    missing = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})  # pytest cannot undo a patch of it
    with missing, pytest.raises(ModelError, match="InvalidCxxCompiler") as error, compiled([model], on=True):
        raise AssertionError("it began to train")
    assert "g++" in error.value.fix and "compile: false" in error.value.fix
    with pytest.raises(ModelError, match="padded rows"), compiled([other], on=True):
        raise AssertionError("it began to train")
    for part in model.modules():
        assert "forward" not in vars(part)
    assert model.training == tiny_model().training
    run_step = closure(objectives()["likelihood"], ModelSet(model, runtime(), micro_tokens=64))
    run_step()  # the attention is registered again


def test_layers_that_choose_what_they_keep_are_refused() -> None:
    with pytest.raises(ParamsError, match="Use activations: keep or recompute"):
        check(TrainingParams, {"compile": True, "activations": "selective"}, where="test")


@pytest.mark.slow
@pytest.mark.parametrize("activations", ["keep", "recompute"])
def test_a_mixture_too(activations: Activations) -> None:
    """Its attention: what its routers choose is recorded between the parts."""
    mixture = family("qwen3_moe")
    assert {type(part).__name__ for part in compiled_layers(mixture)} == {"Qwen3MoeAttention"}
    assert_close(
        lambda: closure(objectives()["grpo"], ModelSet(family("qwen3_moe"), runtime(), micro_tokens=64)), activations
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
