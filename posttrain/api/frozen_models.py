"""The models of a call without training: the policy and the reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.api.argument_checks import model_folder
from posttrain.api.own_model import device_of, our_attention, own_model, text_of
from posttrain.errors import ParamsError
from posttrain.models.device import Runtime
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import FrozenSampling


@contextmanager
def frozen(model: Any, tokenizer: Any, config: FrozenSampling) -> Iterator[SampledModel]:
    """Yield the policy from `load_frozen`, or the caller's own model, which is restored afterwards."""
    if isinstance(model, SampledModel):
        if tokenizer is not None:
            what, fix = "the policy from load_frozen already has a tokenizer", "Give None"
            raise ParamsError(what=what, where="tokenizer", fix=fix)
        yield model
        return
    if tokenizer is None:
        raise ParamsError(what="a transformers model needs its tokenizer", where="tokenizer", fix="Give it")
    if config.engine != "builtin":
        what, fix = (
            "it loads the model itself",
            "Load it with posttrain.load_frozen(folder, config), and pass the result",
        )
        raise ParamsError(what=what, where="config.engine", fix=fix)
    from posttrain.models.master_weights import computing

    plain = own_model(model)
    runtime = Runtime(device_of(plain))
    with our_attention(plain), computing(plain, runtime):
        yield SampledModel(plain, Path(), text_of(plain, tokenizer, config.date, config.template), runtime)


@contextmanager
def beside(reference: Any, runtime: Runtime) -> Iterator[Any]:
    """Yield a reference for an evaluation: a folder, or a model, which is restored afterwards."""
    if reference is None or isinstance(reference, str | Path):
        yield reference if reference is None else model_folder(reference, "reference")
        return
    from posttrain.models.master_weights import computing

    other = own_model(reference)
    with our_attention(other), computing(other, runtime):
        yield other
