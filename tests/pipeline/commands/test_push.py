"""`posttrain push` in a finished pipeline, to a server that speaks what is needed of the Hub's interface."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ModelError
from posttrain.models.files.weights import digest
from posttrain.pipeline.commands.push.adapter import HubModel, hub_base, push_note, uploaded
from posttrain.pipeline.commands.push.card import head as card_head
from posttrain.pipeline.lineage.lineage import Lineage
from tests.workspace import ROOT, environment, git

SHA = "b" * 40
TOKEN = "hf_a-token-that-is-never-printed"


class Hub(ThreadingHTTPServer):
    """Repositories in memory; small files come within the commit, the others by LFS's basic transfer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.created: dict[str, Any] = {}
        self.objects: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}
        self.address = f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Hub

    def do_GET(self) -> None:
        assert self.path.partition("?")[0] == "/api/models/me/tiny", self.path
        if not self.server.created:
            return self.say({"error": "Repository not found"}, 404)
        files = [{"rfilename": name} for name in self.server.files]
        return self.say({"id": "me/tiny", "sha": SHA, "siblings": files})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.say({"error": "no"}, 401)
        if self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            return self.say({"url": f"{self.server.address}/me/tiny", "name": "me/tiny", "id": "me/tiny"})
        if self.path == "/api/validate-yaml":
            assert json.loads(body)["content"].startswith("---\nlibrary_name: ")
            return self.say({"errors": [], "warnings": []})
        if self.path == "/api/models/me/tiny/preupload/main":
            modes = {True: "lfs", False: "regular"}
            names = [file["path"] for file in json.loads(body)["files"]]
            found = [{"path": name, "uploadMode": modes[name.endswith(".safetensors")]} for name in names]
            return self.say({"files": [{**file, "shouldIgnore": False} for file in found]})
        if self.path == "/me/tiny.git/info/lfs/objects/batch":
            made = json.loads(body)["objects"]
            href = {one["oid"]: f"{self.server.address}/objects/{one['oid']}" for one in made}
            upload = [{**one, "actions": {"upload": {"href": href[one["oid"]]}}} for one in made]
            return self.say({"transfer": "basic", "objects": upload}, kind="application/vnd.git-lfs+json")
        assert self.path == "/api/models/me/tiny/commit/main", self.path
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[value["path"]] = self.server.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del self.server.files[value["path"]]
            else:
                assert line["key"] == "header" and value["parentCommit"] == SHA, line
        oid = "a" * 40
        return self.say({"success": True, "commitOid": oid, "commitUrl": f"{self.server.address}/me/tiny/commit/{oid}"})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[hashlib.sha256(body).hexdigest()] = body
        self.say({})

    def say(self, answer: object, status: int = 200, kind: str = "application/json") -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def push(where: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return python(where, "-m", "posttrain", "push", *words, **variables)


def python(where: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    clean = {name: value for name, value in environment().items() if name not in ("HF_TOKEN", "HF_HUB_OFFLINE")}
    settings = {**clean, "HF_HOME": str(where / "hf"), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=where, env=settings, capture_output=True, text=True, check=False)


def commit(workspace: Path) -> None:
    git(workspace, "add", "params.yaml", "dvc.lock", "code")
    git(workspace, "commit", "--quiet", "--message", "run")


UPLOAD = """
import sys
from pathlib import Path
from posttrain.pipeline.commands.push.upload import upload
files = {file.name: file for file in Path(sys.argv[1]).iterdir()}
print(upload("me/tiny", {**files, "README.md": b"---\\nlibrary_name: x\\n---\\n"}, "private"))
"""
ALWAYS = ("config.json", "tokenizer.json", "manifest.json")
WHOLE = (*ALWAYS, "model.safetensors", "chat_template.jinja", "generation_config.json")
SHARDS = (*ALWAYS, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
SHARDED = (*SHARDS, "model.safetensors.index.json")
ADAPTER = (*ALWAYS[1:], "adapted_config.json", "adapter_config.json", "adapter_model.safetensors")
OTHERS = (".gitattributes", "LICENSE", "image.png", "model.gguf", "onnx/model.safetensors", "notes/config.json")
OF_OTHERS = ("pytorch_model.bin", "tokenizer.model", "vocab.json", "merges.txt", "additional_chat_templates/rag.jinja")


@pytest.mark.parametrize(("first", "then"), [(WHOLE, SHARDED), (SHARDED, WHOLE), (ADAPTER, WHOLE), (WHOLE, ADAPTER)])
def test_a_second_push_leaves_nothing_of_the_first_model(
    tmp_path: Path, hub: Hub, first: tuple[str, ...], then: tuple[str, ...]
) -> None:
    given = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
    for folder, names in (("first", first), ("then", then)):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text(f"{name} of {folder}")
        done = python(tmp_path, "-c", UPLOAD, folder, **given)
        assert done.returncode == 0, done.stderr
        if folder == "first":
            assert "deleted" not in done.stdout
            hub.files |= dict.fromkeys((*OTHERS, *OF_OTHERS), b"there before")
    gone = sorted({*first, *OF_OTHERS} - {*then})
    assert [line.split()[1] for line in done.stdout.splitlines() if "deleted" in line] == gone
    assert hub.files.keys() == {*then, *OTHERS, "README.md"}
    assert all(hub.files[name] == f"{name} of then".encode() for name in then)


LOCKED = {
    ("base_hub@small", "models/base/small"): {"base.hub.small": {"name": "them/small", "revision": "c" * 40}},
    ("base_folders@own", "models/base/own"): {"base.folders.own": {"path": "my/model"}},
    ("sft@lora", "models/sft/lora"): {"sft.runs.lora": {"start": "base/small", "adapter": "lora"}},
}


def adapter(base: str, folder: Path) -> Path:
    """Write the small files of an adapter."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": base, "revision": None}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    listed = {"posttrain_base": {"folder": base}, "adapter_config.json": digest(folder / "adapter_config.json")}
    (folder / "manifest.json").write_text(json.dumps(listed))
    return folder


def test_an_adapter_names_the_base_of_the_hub_at_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peft = pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    stages = {
        stage: {"params": {"params.yaml": run}, "outs": [{"path": path}]} for (stage, path), run in LOCKED.items()
    }
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
    folder = adapter("models/base/small", Path("models/sft/lora"))
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    base = hub_base(folder, Lineage())
    assert base == ("them/small", "c" * 40)
    Path("copy").mkdir()
    for name, text in uploaded(folder, base).items():
        (Path("copy") / name).write_bytes(text)
    config = peft.PeftConfig.from_pretrained("copy")
    assert (config.base_model_name_or_path, config.revision, config.r) == (*base, 8)
    manifest = json.loads(Path("copy/manifest.json").read_text())
    assert manifest["adapter_config.json"] == digest(Path("copy/adapter_config.json"))
    assert manifest["posttrain_base"] == {"folder": "models/base/small"}
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    Path("models/whole").mkdir()
    assert hub_base(Path("models/whole"), Lineage()) is None
    for nth, base_folder in enumerate(("models/base/own", "models/sft/lora", "/elsewhere/model")):
        with pytest.raises(
            ModelError, match=rf"an adapter of {base_folder}, which was not made by a run of base.hub.*merge: true"
        ):
            hub_base(adapter(base_folder, Path(f"models/other/{nth}")), Lineage())
        said = push_note(Path(f"models/other/{nth}"), Lineage())
        assert said.startswith(f"note: `posttrain push --to` will reject it: it is an adapter of {base_folder}")
    assert push_note(folder, Lineage()) == push_note(Path("models/whole"), Lineage()) == ""


def test_the_card_of_an_adapter_is_that_of_peft_with_its_own_base() -> None:
    teacher = {"params": {"params.yaml": {"base.hub.big": {"name": "them/big", "revision": "d" * 40}}}}
    head = "\n".join(card_head(["base_hub@big"], {"base_hub@big": teacher}, HubModel("them/small", "c" * 40)))
    assert head == '---\nlibrary_name: peft\ntags: [posttrain]\nbase_model: "them/small"\n---'
    whole = "\n".join(card_head(["base_hub@big"], {"base_hub@big": teacher}, None))
    assert whole == '---\nlibrary_name: transformers\ntags: [posttrain]\nbase_model: "them/big"\n---'


@pytest.mark.slow
def test_a_model_is_on_the_hub_byte_for_byte_with_its_card(own_workspace: Path, hub: Hub) -> None:
    early = push(own_workspace, "grpo", "--to", "hf:me/tiny", "--dry-run")
    assert early.returncode == 1 and "neither in git nor in DVC's cache: code" in early.stderr
    commit(own_workspace)
    given = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
    shown = push(own_workspace, "grpo", "--to", "hf:me/tiny", "--dry-run", **given)
    assert shown.returncode == 0, shown.stderr
    assert "model.safetensors" in shown.stdout and hub.created == {} and hub.files == {}
    done = push(own_workspace, "online/grpo", "--to", "hf:me/tiny", **given)
    assert done.returncode == 0, done.stderr
    assert f"{hub.address}/me/tiny/commit/" in done.stdout and hub.created["visibility"] == "private"
    folder = own_workspace / "models/online/grpo"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".")}
    assert {name: body for name, body in hub.files.items() if name != "README.md"} == files and hub.objects
    text = hub.files["README.md"].decode()
    assert text in shown.stdout and "The repository is new or cannot be read" in shown.stdout
    hub.files |= {"model.safetensors.index.json": b"old", "image.png": b"mine"}
    again = push(own_workspace, "grpo", "--to", "hf:me/tiny", "--dry-run", **given)
    assert "deleted  model.safetensors.index.json\n\n" in again.stdout and len(hub.files) == len(files) + 3
    assert push(own_workspace, "grpo", "--to", "hf:me/tiny", **given).returncode == 0
    assert hub.files.keys() == {*files, "README.md", "image.png"}
    metrics = json.loads((own_workspace / "results/grpo/metrics.json").read_text())
    assert f"| score | {metrics['score']:.4g} | [{metrics['score_low']:.3f}, {metrics['score_high']:.3f}] |" in text
    assert "| `data.tasks.two_step` | generated by `two_step` | posttrain's own (Apache-2.0) |" in text
    for part in ('- `online.runs.grpo`: `{"algorithm": "grpo"', "- `sft.runs.main`", "- `data.tasks.two_step`"):
        assert part in text
    assert "made by base_scratch@tiny" in text and "## Limits" in text
    everything = shown.stdout + shown.stderr + done.stdout + done.stderr + text
    assert TOKEN not in everything


@pytest.mark.slow
def test_what_is_refused_says_how_to_fix_it_and_leaves_nothing(own_workspace: Path, hub: Hub) -> None:
    commit(own_workspace)
    there = {"HF_ENDPOINT": hub.address}
    cases = [
        (("grpo", "--to", "me/tiny"), {}, "'me/tiny' is not a repository"),
        (("grop", "--to", "hf:me/tiny"), {}, "no evaluated policy 'grop'"),
        (("grpo", "--to", "hf:me/tiny"), {}, "no token was found"),
        (("grpo", "--to", "hf:me/tiny"), {"HF_TOKEN": "hf_another-token-of-theirs"}, "HTTP status 401"),
    ]
    for words, variables, expected in cases:
        done = push(own_workspace, *words, **there, **variables)
        assert done.returncode == 1 and expected in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and "hf_another-token-of-theirs" not in done.stderr
    closed = push(own_workspace, "grpo", "--to", "hf:me/tiny", HF_ENDPOINT="http://127.0.0.1:9", HF_TOKEN=TOKEN)
    assert closed.returncode == 1 and "the Hub cannot be reached" in closed.stderr and TOKEN not in closed.stderr
    assert "Traceback" not in closed.stderr
    shown = push(own_workspace, "grpo", "--to", "hf:me/tiny", **there, HF_TOKEN=TOKEN, OTHER_API_KEY="two_step/prompts")
    assert shown.returncode == 1 and "the card would show the value of a secret variable" in shown.stderr
    params = own_workspace / "params.yaml"
    params.write_text(params.read_text().replace("grpo: online/grpo", "grpo: sft/main"))
    stale = push(own_workspace, "grpo", "--to", "hf:me/tiny", **there, HF_TOKEN=TOKEN)
    assert stale.returncode == 1 and "its results are not current" in stale.stderr
    assert hub.files == {}
