"""Prepare an adapter for upload: its config names its base on the Hub instead of a folder in the workspace."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from posttrain.errors import ModelError
from posttrain.files import read_finite_json
from posttrain.models.files.adapter_files import ADAPTER_CONFIG, is_adapter
from posttrain.models.files.store import MANIFEST
from posttrain.pipeline.lineage.lineage import Lineage

BASE: Final = "base_model_name_or_path"


class HubModel(NamedTuple):
    """A model on the Hub at a commit."""

    name: str
    revision: str


def hub_base(folder: Path, lineage: Lineage) -> HubModel | None:
    """Return the Hub model that an adapter belongs to; None for a whole model.

    Raise if the base is not from the Hub.
    """
    if not is_adapter(folder):
        return None
    base = str(read_finite_json(folder / ADAPTER_CONFIG).get(BASE))
    stage = lineage.maker(base) or ""
    if not stage.startswith("base_hub@"):
        what = (
            f"it is an adapter of {base}, which was not made by a run of base.hub, so nobody else could load the "
            "adapter"
        )
        raise ModelError(
            what=what, where=str(folder), fix="Run it with `adapter: {type: lora, merge: true}`, or push --gguf"
        )
    settings = next(iter(lineage.lock[stage]["params"].values()))
    run: dict[str, Any] = settings[f"base.hub.{stage.partition('@')[2]}"]
    return HubModel(run["name"], run["revision"])


def push_note(folder: Path, lineage: Lineage) -> str:
    """Return a note if an adapter cannot be uploaded; empty if it can."""
    try:
        hub_base(folder, lineage)
    except ModelError as error:
        return f"note: `posttrain push --to` will reject it: {error.what}. {error.fix}"
    return ""


def uploaded(folder: Path, base: HubModel) -> dict[str, bytes]:
    """Return an adapter's config that names the Hub base, and the manifest with this config's digest."""
    config = {**read_finite_json(folder / ADAPTER_CONFIG), BASE: base.name, "revision": base.revision}
    text = (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
    manifest = {**read_finite_json(folder / MANIFEST), ADAPTER_CONFIG: hashlib.sha256(text).hexdigest()}
    return {ADAPTER_CONFIG: text, MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode()}
