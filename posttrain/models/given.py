"""Models that are not trained here: a local folder or a Hub name, taken as they are."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from posttrain.errors import ModelError
from posttrain.models.ends import load_ends
from posttrain.models.rounding import SaveDtype
from posttrain.models.store import GENERATION, LICENCES, load_policy, save_model
from posttrain.models.tokenizer import complete_tokenizer

CARD = "README.md"
FILES = [
    "config.json",
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


def fetch_model(name: str, revision: str | None, target: Path, save_dtype: SaveDtype | None = None) -> None:
    """Check the model and its tokenizer, and write them into `target` in their own dtype, with a manifest."""
    folder = Path(name)
    if not folder.is_dir():
        folder = _from_hub(name, revision)
    elif revision is not None:
        mend = "Remove revision, or give a Hub name"
        raise ModelError(what="is a local folder, which has no revision", where=f"base.model = {name}", mend=mend)
    model = load_policy(folder)
    load_ends(folder)
    with tempfile.TemporaryDirectory(prefix="posttrain-") as scratch:
        files = Path(scratch) / "files"
        complete_tokenizer(folder, files)
        for pattern in (GENERATION, *LICENCES, CARD):
            for file in folder.glob(pattern):
                shutil.copyfile(file, files / file.name)
        save_model(model, target, folder, save_dtype, files=files)


def _from_hub(name: str, revision: str | None) -> Path:
    if revision is None or not re.fullmatch("[0-9a-f]{40}", revision):
        said = "it has none" if revision is None else f"'{revision}' may move to another commit"
        raise ModelError(
            what=f"is no local folder, and a Hub model needs its commit so that the run can be repeated: {said}",
            where=f"base.model = {name} (params.yaml)",
            mend="Set base.revision to the commit's 40 hexadecimal digits, or give the path of a folder",
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        found = snapshot_download(name, revision=revision, allow_patterns=FILES, ignore_patterns="*/*")
    except (HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        mend = "Check the name and the connection, or download it and give the folder's path"
        raise ModelError(what=f"cannot be fetched ({reason})", where=name, mend=mend) from error
    return Path(found)
