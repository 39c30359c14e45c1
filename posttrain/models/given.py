"""Models that are not trained here: a local folder or a Hub name, taken as they are."""

from __future__ import annotations

from pathlib import Path

from posttrain.errors import ModelError
from posttrain.models.ends import load_ends
from posttrain.models.store import GENERATION, load_policy, load_tokenizer, save_model

FILES = [
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    GENERATION,
]


def fetch_model(name: str, revision: str | None, target: Path) -> None:
    """Check the model and its tokenizer, and write them into `target` as float32 with a manifest."""
    folder = Path(name)
    if not folder.is_dir():
        folder = _from_hub(name, revision)
    elif revision is not None:
        mend = "Remove revision, or give a Hub name"
        raise ModelError(what="is a local folder, which has no revision", where=f"base.model = {name}", mend=mend)
    model = load_policy(folder)
    load_tokenizer(folder)  # checks that it fits
    load_ends(folder)
    save_model(model, target, folder)


def _from_hub(name: str, revision: str | None) -> Path:
    if revision is None:
        raise ModelError(
            what="is no local folder, and a Hub model needs its commit so that the run can be repeated",
            where=f"base.model = {name} (params.yaml)",
            mend="Set base.revision to the commit's hash, or give the path of a folder",
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        found = snapshot_download(name, revision=revision, allow_patterns=[*FILES, GENERATION, "chat_template.jinja"])
    except (HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        mend = "Check the name and the connection, or download it and give the folder's path"
        raise ModelError(what=f"cannot be fetched ({reason})", where=name, mend=mend) from error
    return Path(found)
