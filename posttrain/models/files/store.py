"""Model folders that `from_pretrained` and vLLM can load, with a manifest of every tensor, checked on load and save."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from posttrain.errors import ModelError, shortened
from posttrain.files import atomic_path, read_finite_json
from posttrain.measure.phases import phase
from posttrain.measure.record import note
from posttrain.models.adapters import TrainedAdapter, adapter_of
from posttrain.models.files.adapter_files import (
    ADAPTED_CONFIG,
    ADAPTER_WEIGHTS,
    Base,
    base_digest,
    check_base,
    config_file,
    is_adapter,
    merge_into,
    read_adapter,
    trained_tensors,
    write_adapter,
)
from posttrain.models.files.config_limits import config_faults
from posttrain.models.files.loading import (
    is_scorer,
    load_weights,
    meta_model,
    model_class,
    not_finite,
    prepared,
    scorer_name,
    with_scalar_head,
)
from posttrain.models.files.save_dtype import SaveDtype, round_weights, saved_layout, saved_tensors
from posttrain.models.files.weights import SHARD_BYTES, WeightFiles, describe, digest, kind, open_weights, write_shards
from posttrain.models.forward.forward import run_in_rows, runs_in_rows
from posttrain.models.nf4 import round_model
from posttrain.settings.host import HOST
from posttrain.settings.plain import MODELS, check_format

MANIFEST = "manifest.json"
FORMAT = "posttrain_format"
"""The manifest's key of the format version. No tensor or file has this name."""
BASE = "posttrain_base"
"""The manifest's key of an adapter's base model."""
WHOLE, NF4 = "whole", "nf4"
"""The format of an adapter's base during training."""
READERS = 4
"""Tensors that are read and hashed in parallel."""
REWRITE = "Write the folder again, or delete manifest.json if you changed it on purpose"
GENERATION = "generation_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*")
IGNORED_KEYS = (
    "_attn_implementation", "_experts_implementation", "attn_implementation", "auto_map", "experts_implementation",
    "fusion_config", "transformers_weights",
)  # fmt: skip
"""Keys of config.json about code and files, which posttrain sets itself."""


@phase("load")
def load_tokenizer(path: str | Path) -> Any:
    """Return the folder's tokenizer, loaded only from its files."""
    from transformers import PreTrainedTokenizerFast

    folder = _folder(path)
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(what="tokenizer.json is missing", where=str(folder), fix="Save the model with its tokenizer")
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        tokenizer("0")  # some settings are only checked on first use
    except BaseException as error:  # tokenizers raises plain Exception, and its PanicException is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        what = f"the tokenizer cannot be read ({shortened(str(error), 300)})"
        raise ModelError(what=what, where=str(folder), fix="Save it again") from error
    if config_file(folder).is_file():
        check_vocabulary(tokenizer, folder)
    return tokenizer


def check_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Check that the folder's model has an embedding for every token."""
    rows = load_config(folder).get_text_config().vocab_size
    if len(tokenizer) > rows:
        what = f"the tokenizer has {len(tokenizer)} tokens, but the model embeds {rows}"
        raise ModelError(what=what, where=str(folder), fix="Use the tokenizer the model was trained with")


@phase("load")
def new_model(config: Any, seed: int) -> Any:
    """Return a causal language model with random weights drawn from the seed."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    cls = model_class(config)
    meta_model(cls, config, "the model's shape")
    torch.manual_seed(seed)
    return prepared(cls(config))


@phase("load")
def load_model(path: str | Path) -> Any:
    """Return the folder's model of the class in its config, in float32, with every tensor checked.

    An adapter is merged into its base.
    """
    folder = _folder(path)
    if is_adapter(folder):
        return _merged_model(folder)
    config = load_config(folder)
    with open_weights(folder) as weights:
        _check_digests(weights)
        return load_weights(model_class(config), config, weights)


def load_policy(path: str | Path) -> Any:
    """Return the folder's model, which must be a causal language model."""
    model = load_model(path)
    if is_scorer(model):
        fix = "Use a model whose architecture ends in ForCausalLM"
        raise ModelError(what=f"{type(model).__name__} scores text and cannot generate any", where=str(path), fix=fix)
    return model


@phase("load")
def empty_model(path: str | Path, *, scores: bool = False) -> Any:
    """Return the folder's model without values, which takes no memory. No weights are read or checked.

    `scores`: with a scalar head.
    """
    folder = _folder(path)
    config = load_config(folder)
    model = prepared(meta_model(model_class(config), config, str(config_file(folder)), fits=False))
    with torch.device("meta"):
        return scorer_of(model, str(path)) if scores and not is_scorer(model) else model


@phase("load")
def load_scorer(path: str | Path) -> Any:
    """Return a model with a scalar head: the folder's own, or a language model's backbone with a head of zeros."""
    model = load_model(path)
    return model if is_scorer(model) else scorer_of(model, str(path))


def scorer_of(model: Any, where: str) -> Any:
    """Return the language model's backbone with a scalar head, initialised to 0."""
    scorer = with_scalar_head(model, where)
    if runs_in_rows(model):
        run_in_rows(scorer)
    return scorer.eval()


def _merged_model(folder: Path) -> Any:
    """Return an adapter's base with the adapter merged. Both must match their manifests."""
    base = _base(_manifest(folder), folder)
    check_base(base, folder, MANIFEST)
    return _merged(base, load_config(folder), *read_adapter(folder), str(folder))


def _merged(base: Base, config: Any, adapter: dict[str, Any], tensors: dict[str, Tensor], where: str) -> Any:
    """Return a folder's model with an adapter merged, and the config of the model with the adapter."""
    model = load_model(base.folder)
    if base.format == NF4:
        round_model(model)
    if config.architectures[0] == scorer_name(config.model_type) and not is_scorer(model):
        model = scorer_of(model, str(base.folder))
    merge_into(model, adapter, tensors, where)
    config_values, inherited = config.to_dict(), model.config.to_dict()
    for name in inherited.keys() - config_values.keys():
        delattr(model.config, name)
    for name, value in config_values.items():
        if name != "dtype" and inherited.get(name) != value:
            setattr(model.config, name, value)
    return model


def _base(manifest: dict[str, Any], folder: Path) -> Base:
    """Return the frozen model of an adapter, from the adapter's manifest."""
    base = manifest.get(BASE)
    if not isinstance(base, dict) or {*map(type, base.values())} != {str} or base.keys() != {*Base._fields}:
        fix = "Merge it into its model with peft (merge_and_unload), and give the folder of the whole model"
        raise ModelError(what="this adapter was not trained by posttrain", where=str(folder), fix=fix)
    # the workspace is the current folder, or that of the adapter
    places = [Path(base["folder"]), *(parent / base["folder"] for parent in folder.resolve().parents)]
    return Base(next((place for place in places if place.is_dir()), places[0]), base["manifest"], base["format"])


def load_config(folder: Path) -> Any:
    """Return the config of the class in config.json, with an architecture of that class."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    file = config_file(folder)
    try:
        data = {name: value for name, value in read_finite_json(file).items() if name not in IGNORED_KEYS}
        if faults := config_faults(data):
            fix = "Use the config.json that belongs to the weights"
            raise ModelError(what="; ".join(faults[:3]), where=str(file), fix=fix)
        kind_of = CONFIG_MAPPING[data["model_type"]]
        config = kind_of.from_dict(kind_of._decode_special_floats(data))  # transformers' own way to write infinity
        sizes = config.get_text_config()
        numbers = {name: getattr(sizes, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
    except ModelError:
        raise
    except FileNotFoundError as error:
        fix = "Give the folder of a model in the format of transformers"
        raise ModelError(what="there is no config.json", where=str(file.parent), fix=fix) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, StrictDataclassError) as error:
        fix = "It must be a transformers config with a model_type that this version of transformers supports"
        raise ModelError(what=f"cannot be read ({error!r:.300})", where=str(file), fix=fix) from error
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    known = [causal, scorer_name(config.model_type)] if causal else []
    if not isinstance(config.architectures, list) or not config.architectures or config.architectures[0] not in known:
        what = (
            f"architectures = {config.architectures!r:.80} is not an architecture of {config.model_type}: "
            f"{', '.join(known)}"
        )
        raise ModelError(what=what, where=str(file), fix="Use one of them; code from the Hub is never run")
    if getattr(config, "quantization_config", None) is not None:
        fix = "Use the model's unquantized weights (bfloat16, float16 or float32)"
        raise ModelError(what="the weights are quantized, which cannot be trained", where=str(file), fix=fix)
    odd = [
        f"{name} = {n!r:.40}" for name, n in numbers.items() if not isinstance(n, int) or isinstance(n, bool) or n < 1
    ]
    if odd:
        raise ModelError(what=f"{', '.join(odd)} cannot be", where=str(file), fix="Give whole numbers above 0")
    return config


@phase("write")
def save_model(
    model: Any,
    path: str | Path,
    source: str | Path,
    save_dtype: SaveDtype | None = None,
    *,
    files: str | Path | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write weights, config, tokenizer and manifest. The folder appears completely or not at all.

    `source`: the folder that the model started from. Its dtype is kept unless `save_dtype` sets another. The model in
    memory is rounded to this dtype, so that later evaluations see the saved weights (a merged adapter stays as
    trained). The tokenizer and other small files come from `files` if given, else from `source`.
    """
    target = Path(path)
    _check_finite(model, target, "Lower the learning rate; the last good checkpoint is kept")
    adapter = adapter_of(model)
    if adapter is not None and adapter.options.merge:
        model = _merged(_base_of(adapter), model.config, adapter.config, trained_tensors(model), str(target))
        adapter = None
    dtype = round_weights(model, source, save_dtype)
    _check_finite(model, target, f"They are too large for {kind(dtype)}: set save_dtype: bfloat16 or float32")
    try:
        with atomic_path(target) as folder:
            folder.mkdir()
            if adapter is None:
                written = write_shards(saved_tensors(model, dtype), saved_layout(model, dtype), folder, shard_bytes)
                manifest = dict(sorted(written.items()))
            else:
                write_adapter(model, adapter, folder, dtype)
                base = {**_base_of(adapter)._asdict(), "folder": adapter.base.as_posix()}
                manifest = {BASE: base, ADAPTER_WEIGHTS: digest(folder / ADAPTER_WEIGHTS)}
            config = folder / ("config.json" if adapter is None else ADAPTED_CONFIG)
            config.write_text(config_text(model, dtype), encoding="utf-8")
            for file in sorted(Path(files).iterdir()) if files else _small_files(Path(source)):
                shutil.copyfile(file, folder / file.name)
            manifest |= {file.name: digest(file) for file in sorted(folder.iterdir()) if file.suffix != ".safetensors"}
            (folder / MANIFEST).write_text(json.dumps({FORMAT: MODELS, **manifest}, indent=1) + "\n", encoding="utf-8")
            note(weights=digest(folder / MANIFEST))
    except (OSError, SafetensorError) as error:
        fix = (
            "Free some disk space or fix the folder's permissions, and run it again: a trained model's checkpoint "
            "is kept"
        )
        raise ModelError(what=f"the model cannot be written ({error})", where=str(target), fix=fix) from error


def _base_of(adapter: TrainedAdapter) -> Base:
    return Base(adapter.base, base_digest(adapter.base, MANIFEST), NF4 if adapter.options.type == "qlora" else WHOLE)


def _check_finite(model: Any, target: Path, fix: str) -> None:
    bad = not_finite(model)
    if bad:
        raise ModelError(what=f"not finite: {', '.join(bad[:5])}", where=str(target), fix=fix)


def _small_files(folder: Path) -> list[Path]:
    """Return the tokenizer, generation and licence files that a saved model takes over."""
    named = [folder / name for name in (*TOKENIZER_FILES, GENERATION) if (folder / name).is_file()]
    return named + sorted({file for pattern in LICENCES for file in folder.glob(pattern) if file.is_file()})


def _folder(path: str | Path) -> Path:
    """Return the folder. If it has a manifest, its small files are checked; tensors are checked when read."""
    folder = Path(path)
    if not folder.is_dir():
        fix = HOST.fix("model missing", "Give the folder with its config.json, weights and tokenizer")
        raise ModelError(what="the model folder is missing", where=str(folder), fix=fix)
    listed = {name: entry for name, entry in _manifest(folder).items() if isinstance(entry, str)}
    changed = [
        name for name, entry in listed.items() if not (folder / name).is_file() or digest(folder / name) != entry
    ]
    if changed:
        raise ModelError(what=f"files differ from {MANIFEST}: {', '.join(changed)}", where=str(folder), fix=REWRITE)
    return folder


def _manifest(folder: Path) -> dict[str, Any]:
    """Return the folder's expected contents; empty for a model from elsewhere, which has no manifest."""
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(what=f"cannot be read ({error})", where=str(file), fix=REWRITE) from error
    if not isinstance(manifest, dict):
        raise ModelError(what="does not contain a JSON object", where=str(file), fix=REWRITE)
    check_format(manifest.pop(FORMAT, 1), MODELS, str(file), ModelError)
    return manifest


def _check_digests(weights: WeightFiles) -> None:
    """Check that the weights match the manifest, if there is one."""
    listed = {name: entry for name, entry in _manifest(weights.folder).items() if not isinstance(entry, str)}
    if not listed:
        return
    with ThreadPoolExecutor(READERS) as readers:  # hashing leaves Python to others
        digests = dict(zip(weights, readers.map(lambda name: describe(weights.tensor(name)), weights), strict=True))
    if digests != listed:
        raise ModelError(what=f"the weights do not match {MANIFEST}", where=str(weights.folder), fix=REWRITE)


def config_text(model: Any, dtype: torch.dtype) -> str:
    """Return the config.json of a model that is saved in this dtype."""
    data = model.config._encode_special_floats(model.config.to_dict())
    for private in ("_name_or_path", "_attn_implementation", "attn_implementation", "_attn_implementation_internal"):
        data.pop(private, None)
    data["dtype"] = kind(dtype)
    return json.dumps(data, indent=2, sort_keys=True) + "\n"


def load_stop_tokens(path: str | Path) -> tuple[int, ...]:
    """Return the end tokens in the folder's generation_config.json, if the file exists."""
    file = Path(path) / GENERATION
    try:
        listed = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        fix = "Fix it, or delete it to use the tokenizer's own end token"
        raise ModelError(what=f"cannot be read ({error!r:.200})", where=str(file), fix=fix) from error
    tokens = [] if listed is None else listed if isinstance(listed, list) else [listed]
    rows = load_config(file.parent).get_text_config().vocab_size if tokens else 0
    odd = [token for token in tokens if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < rows]
    if odd:
        what, fix = f"eos_token_id = {odd!r:.80} is not a token of the model's {rows}", "Give tokens of the vocabulary"
        raise ModelError(what=what, where=str(file), fix=fix)
    return tuple(dict.fromkeys(tokens))
