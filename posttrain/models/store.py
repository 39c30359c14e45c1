"""Model folders: what `from_pretrained` and vLLM load, plus a manifest of every tensor; checked both ways."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from posttrain.errors import ModelError
from posttrain.measure.phases import phase
from posttrain.models.device import free_bytes
from posttrain.models.probe import check_runs
from posttrain.workspace import finite_json

WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"
ANEW = "Make the folder anew, or delete manifest.json if you changed it on purpose"
GENERATION = "generation_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


@phase("load")
def load_tokenizer(path: str | Path) -> Any:
    """The folder's tokenizer, from its files alone."""
    from transformers import PreTrainedTokenizerFast

    folder = _folder(path)
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(what="there is no tokenizer.json", where=str(folder), mend="Save the model with its tokenizer")
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        tokenizer("0")  # some settings are not looked at before
    except Exception as error:  # tokenizers raises Exception itself, and has no class of its own
        what = f"the tokenizer cannot be read ({' '.join(str(error).split())[:300]})"
        raise ModelError(what=what, where=str(folder), mend="Save it anew") from error
    if (folder / "config.json").is_file():
        rows = load_config(folder).get_text_config().vocab_size
        if len(tokenizer) > rows:
            what = f"the tokenizer has {len(tokenizer)} tokens, the model embeds {rows}"
            raise ModelError(what=what, where=str(folder), mend="Use the tokenizer that the model was trained with")
    return tokenizer


@phase("load")
def new_model(config: Any, seed: int) -> Any:
    """A causal language model with random weights drawn from the seed."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    cls = _class(config.architectures[0])
    _outline(cls, config, "the model's shape")
    torch.manual_seed(seed)
    return _ready(cls(config))


@phase("load")
def load_model(path: str | Path) -> Any:
    """The folder's model as its config names it, in float32, every tensor accounted for and finite."""
    folder = _folder(path)
    config = load_config(folder)
    return _filled(_class(config.architectures[0]), config, _tensors(folder), folder)


def load_policy(path: str | Path) -> Any:
    """The folder's model, if it is one that writes text."""
    model = load_model(path)
    if type(model).__name__.endswith("ForSequenceClassification"):
        mend = "Name a model whose architecture ends in ForCausalLM"
        raise ModelError(what=f"{type(model).__name__} scores text and writes none", where=str(path), mend=mend)
    return model


@phase("load")
def load_scorer(path: str | Path, seed: int) -> Any:
    """A scalar-head model: the folder's own, or a language model's backbone with a head that starts at 0."""
    folder = _folder(path)
    config = load_config(folder)
    if config.architectures[0].endswith("ForSequenceClassification"):
        return load_model(folder)
    config.architectures = [config.architectures[0].replace("ForCausalLM", "ForSequenceClassification")]
    config.num_labels = 1
    torch.manual_seed(seed)
    tensors = {name: part for name, part in _tensors(folder).items() if not name.startswith("lm_head.")}
    tensors["score.weight"] = torch.zeros(1, config.get_text_config().hidden_size)
    return _filled(_class(config.architectures[0]), config, tensors, folder)


def load_config(folder: Path) -> Any:
    """The config class that config.json names, with an architecture that belongs to it."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )

    file = folder / "config.json"
    try:
        data = finite_json(file)
        config = CONFIG_MAPPING[data["model_type"]].from_dict(data)
        sizes = config.get_text_config()
        numbers = {name: getattr(sizes, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, StrictDataclassError) as error:
        mend = "It must be a transformers config with a model_type that this version of transformers knows"
        raise ModelError(what=f"cannot be read ({error!r:.300})", where=str(file), mend=mend) from error
    kinds = (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)
    known = [kind[config.model_type] for kind in kinds if config.model_type in kind]
    if not isinstance(config.architectures, list) or not config.architectures or config.architectures[0] not in known:
        what = f"architectures = {config.architectures!r:.80} is none of {config.model_type}'s: {', '.join(known)}"
        raise ModelError(what=what, where=str(file), mend="Name one of them; code from the Hub is never run")
    odd = [
        f"{name} = {n!r:.40}" for name, n in numbers.items() if not isinstance(n, int) or isinstance(n, bool) or n < 1
    ]
    if odd:
        raise ModelError(what=f"{', '.join(odd)} cannot be", where=str(file), mend="Give whole numbers above 0")
    return config


@phase("write")
def save_model(model: Any, path: str | Path, tokenizer_from: str | Path) -> None:
    """Write weights, config, tokenizer and manifest; the folder appears whole or not at all."""
    target, source = Path(path), Path(tokenizer_from)
    tensors = {name: part.detach().cpu().contiguous() for name, part in _unshared(model).items()}
    bad = [name for name, part in tensors.items() if not torch.isfinite(part).all()]
    if bad:
        mend = "Lower the learning rate; the last good checkpoint is kept"
        raise ModelError(what=f"not finite: {', '.join(bad[:5])}", where=str(target), mend=mend)
    fresh = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        save_file(tensors, str(fresh / WEIGHTS), metadata={"format": "pt"})
        (fresh / "config.json").write_text(_config_text(model), encoding="utf-8")
        for name in (*TOKENIZER_FILES, GENERATION):
            if (source / name).is_file():
                shutil.copyfile(source / name, fresh / name)
        manifest: dict[str, Any] = {name: _described(part) for name, part in sorted(tensors.items())}
        manifest |= {file.name: _digest(file) for file in sorted(fresh.iterdir()) if file.name != WEIGHTS}
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(fresh, target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        mend = "Free the disk or mend the folder's rights, and run it again: a trained model's checkpoint is kept"
        raise ModelError(what=f"the model cannot be written ({error})", where=str(target), mend=mend) from error


def _ready(model: Any) -> Any:
    from posttrain.models.attention import register

    model.set_attn_implementation(register())
    return model.eval()


def _outline(cls: Any, config: Any, where: str) -> Any:
    """The model without memory for its tensors; refused where config makes no model or one that does not fit."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        with torch.device("meta"):
            outline = cls(config)
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        RuntimeError,
        StrictDataclassError,
        TypeError,
        ValueError,
    ) as error:
        mend = "Take the config.json that belongs to the weights"
        raise ModelError(what=f"the config makes no model ({error!r:.200})", where=where, mend=mend) from error
    size, free = sum(part.numel() for part in outline.parameters()) * 4.0, free_bytes(torch.device("cpu"))
    if size > free:
        what = f"its weights take {size / 1e9:.3g} GB in float32, and {free / 1e9:.3g} GB of memory are free"
        raise ModelError(what=what, where=where, mend="Use a smaller model or a larger machine")
    return outline


def _filled(cls: Any, config: Any, tensors: dict[str, torch.Tensor], folder: Path) -> Any:
    """The model that config describes with the tensors in it, without the random start that they would overwrite."""
    from transformers.initialization import no_init_weights

    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if not isinstance(layers, int) or layers > len(tensors):
        what = f"num_hidden_layers = {layers!r:.40} cannot be: there are {len(tensors)} tensors"
        raise ModelError(
            what=what, where=str(folder / "config.json"), mend="Take the config that belongs to the weights"
        )
    outline = _outline(cls, config, str(folder / "config.json"))
    outline.tie_weights()
    _check_fit(outline, tensors, folder)
    with no_init_weights():
        model: Any = cls(config)
    model.tie_weights()
    with torch.no_grad():
        for name, place in _unshared(model).items():
            place.copy_(tensors[name])
    ready = _ready(model)
    check_runs(ready, str(folder))
    return ready


def _class(architecture: str) -> Any:
    import transformers

    found = getattr(transformers, architecture, None)
    if found is None:
        mend = "Use an architecture of this version of transformers; code from the Hub is never run"
        raise ModelError(what=f"unknown architecture '{architecture}'", where="config.json", mend=mend)
    return found


def _folder(path: str | Path) -> Path:
    """The folder, its small files checked against the manifest if there is one; tensors are checked when read."""
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(what="there is no such model folder", where=str(folder), mend="Run the stage that makes it")
    listed = {name: entry for name, entry in _manifest(folder).items() if isinstance(entry, str)}
    changed = [
        name for name, digest in listed.items() if not (folder / name).is_file() or _digest(folder / name) != digest
    ]
    if changed:
        raise ModelError(what=f"not what {MANIFEST} says: {', '.join(changed)}", where=str(folder), mend=ANEW)
    return folder


def _manifest(folder: Path) -> dict[str, Any]:
    """What the folder should hold; empty for a model from elsewhere, which has no manifest."""
    file = folder / MANIFEST
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(what=f"cannot be read ({error})", where=str(file), mend=ANEW) from error
    if not isinstance(found, dict):
        raise ModelError(what="holds no JSON object", where=str(file), mend=ANEW)
    return found


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the folder's safetensors files."""
    index = folder / f"{WEIGHTS}.index.json"
    try:
        files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else [WEIGHTS]
        if any(Path(name).name != name for name in files):
            raise ValueError("its index names files outside the folder")
        tensors: dict[str, torch.Tensor] = {}
        for name in files:
            with safe_open(str(folder / name), "pt"):
                pass
            tensors |= load_file(str(folder / name))
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        mend = "Make the folder anew; weights must be safetensors"
        raise ModelError(what=f"the weights cannot be read ({error})", where=str(folder), mend=mend) from error
    listed = {name: entry for name, entry in _manifest(folder).items() if not isinstance(entry, str)}
    if listed and listed != {name: _described(part) for name, part in sorted(tensors.items())}:
        raise ModelError(what=f"the weights are not those of {MANIFEST}", where=str(folder), mend=ANEW)
    return tensors


def _check_fit(model: Any, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Say which tensors are missing, foreign, misshapen or not finite."""
    places = _unshared(model)
    faults = [f"missing {name}" for name in sorted(set(places) - set(tensors))]
    shared = set(dict(model.named_parameters(remove_duplicate=False))) - set(places)
    faults += [f"foreign {name}" for name in sorted(set(tensors) - set(places) - shared)]
    for name in sorted(set(places) & set(tensors)):
        if places[name].shape != tensors[name].shape:
            faults.append(f"{name} has shape {list(tensors[name].shape)}, expected {list(places[name].shape)}")
        elif not tensors[name].is_floating_point():
            faults.append(f"{name} is {_kind(tensors[name])}, expected floating point")
        elif not torch.isfinite(tensors[name]).all():
            faults.append(f"{name} is not finite")
    if faults:
        shown = "; ".join(faults[:8]) + (f" and {len(faults) - 8} more" if len(faults) > 8 else "")
        raise ModelError(what=shown, where=str(folder / WEIGHTS), mend="Save the model anew with its own config")


def _unshared(model: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and saved buffers, each tied tensor once."""
    seen: dict[int, str] = {}
    kept: dict[str, torch.Tensor] = {}
    for name, part in model.state_dict(keep_vars=True).items():
        if id(part) not in seen:
            seen[id(part)] = name
            kept[name] = part
    return kept


def _config_text(model: Any) -> str:
    data = model.config.to_dict()
    for private in ("_name_or_path", "_attn_implementation", "attn_implementation", "_attn_implementation_internal"):
        data.pop(private, None)
    data["dtype"] = "float32"
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def _described(part: torch.Tensor) -> dict[str, Any]:
    data = part.contiguous().flatten().view(torch.uint8).numpy()
    return {"shape": list(part.shape), "dtype": _kind(part), "sha256": hashlib.sha256(data.tobytes()).hexdigest()}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _kind(part: torch.Tensor) -> str:
    return str(part.dtype).removeprefix("torch.")
