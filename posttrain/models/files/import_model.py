"""Import a model that was trained elsewhere: from a folder, or from the Hub at a commit."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.data.hub_errors import hub_error
from posttrain.errors import ModelError
from posttrain.models.files.adapter_files import ADAPTER_CONFIG, is_adapter
from posttrain.models.files.loading import WHOLE_TEXT, is_scorer
from posttrain.models.files.save_dtype import SaveDtype
from posttrain.models.files.store import GENERATION, LICENCES, MANIFEST, load_model, load_stop_tokens, save_model
from posttrain.models.files.tokenizer import check_template, complete_tokenizer

CARD = "README.md"
FILES = [
    "config.json",
    ADAPTER_CONFIG,
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "chat_template.jinja",
    GENERATION,
    *LICENCES,
    CARD,
]


def fetch_model(
    name: str,
    revision: str | None,
    target: Path,
    save_dtype: SaveDtype | None = None,
    chat_template: str | None = None,
    variables: Mapping[str, Any] | None = None,
) -> None:
    """Check a model and its tokenizer, and write both to `target` in their own dtype, with a manifest.

    `chat_template`: a file whose template replaces the model's. `variables`: fixed values for its variables.
    """
    folder = Path(name) if revision is None else _from_hub(name, revision)
    if not folder.is_dir():
        fix = "Give a model's folder in base.folders; a Hub model belongs in base.hub, with its commit"
        raise ModelError(what="folder not found", where=name, fix=fix)
    if is_adapter(folder):
        fix = "Merge it into its model with peft (merge_and_unload), and give the folder of the whole model"
        raise ModelError(what="this is an adapter, not a whole model", where=name, fix=fix)
    model = load_model(folder)
    load_stop_tokens(folder)
    if is_scorer(model):
        _check_scorer(model, folder)
    with tempfile.TemporaryDirectory(prefix="posttrain-") as scratch:
        files = Path(scratch) / "files"
        complete_tokenizer(folder, files, chat_template, variables)
        for pattern in (GENERATION, *LICENCES, CARD):
            for file in folder.glob(pattern):
                shutil.copyfile(file, files / file.name)
        if chat_template is not None:
            check_template(folder, files, chat_template, scores=is_scorer(model))
        save_model(model, target, folder, save_dtype, files=files)


def _check_scorer(model: Any, folder: Path) -> None:
    """Reject a classifier with several labels, and mark a scorer that was not trained with posttrain."""
    if (labels := model.score.out_features) != 1:
        what, fix = f"it returns {labels} numbers for a text (num_labels)", "Use a reward model with num_labels 1"
        raise ModelError(what=what, where=str(folder / "config.json"), fix=fix)
    if not (folder / MANIFEST).is_file():
        setattr(model.config, WHOLE_TEXT, True)


def _from_hub(name: str, revision: str) -> Path:
    if not re.fullmatch("[0-9a-f]{40}", revision):
        what = f"revision '{revision}' may move to another commit, so a Hub model needs a fixed commit"
        fix = "Give the commit's full hash of 40 digits"
        raise ModelError(what=what, where=f"base.hub: {name}", fix=fix)
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(name, revision=revision, allow_patterns=FILES, ignore_patterns="*/*")
    except Exception as error:  # the Hub's library raises nearly everything
        raise hub_error(error, "model", name, revision, f"base.hub: {name}") from error
    return Path(folder)
