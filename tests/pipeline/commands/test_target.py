"""Files that a user asks a command to write: nothing of the workspace is written over."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.line import parse
from posttrain.pipeline.commands.plugins import COMMANDS as OF_PLUGINS
from posttrain.pipeline.commands.push.exporters import EXPORTERS
from posttrain.pipeline.commands.target import folder_target, target
from tests.workspace import git

GRAPH = """stages:
  page:
    cmd: python page.py
    deps: [page.py, read.html]
    params: [seed]
    outs: [report/page.html, out.json]
"""
COMMANDS = (
    ("show report --to", ".html"),
    ("compare a b --to", ".html"),
    ("preview mine/chat base/start --html", ".html"),
    ("show tokens mine/chat base/start --plot", ".json"),
    *[("push a --gguf", ".gguf")] * ("gguf" in EXPORTERS),  # a plugin, which may be gone
)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "workspace"
    for name in ("params.yaml", "tracked.html", "added.html.dvc", "page.py", "tracked.json", "tracked.gguf"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("seed: 1\n")
    (root / "added.html.dvc").write_text("outs:\n- {md5: abc, path: added.html}\n")
    (root / "dvc.yaml").write_text(GRAPH)
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "first")
    for name in ("report/page.html", "out.json", "added.html", "read.html", "mine.html", "mine.json", "mine.gguf"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("theirs\n")
    (root / "link.html").symlink_to("tracked.html")
    monkeypatch.chdir(root)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in root.rglob("*") if file.is_file() and ".git/" not in str(file)}


@pytest.mark.parametrize(("line", "suffix"), COMMANDS)
def test_no_command_writes_over_what_is_tracked_made_or_of_another_kind(
    workspace: Path, line: str, suffix: str
) -> None:
    before = contents(workspace)
    names = ["params.yaml", "dvc.yaml", "page.py", f"tracked{suffix}", f"mine{suffix}", "report", "new.txt"]
    names += ["report/page.html", "added.html", "read.html", "link.html", "report/page.html/in.html"]
    names += ["out.json"]
    for name in names:
        arguments = parse([*line.split(), name])
        command = importlib.import_module(f"posttrain.pipeline.commands.{line.split(maxsplit=1)[0]}")
        with pytest.raises(ParamsError, match="posttrain does not write to"):
            command.run(arguments)
    assert contents(workspace) == before


@pytest.mark.skipif("show.inspect" not in OF_PLUGINS, reason="the plugin inspect is gone")
def test_a_folder_of_logs_is_none_of_the_workspaces(workspace: Path) -> None:
    from posttrain.pipeline.commands.show import run

    for name in (".", "report", "mine.html"):
        with pytest.raises(ParamsError, match="posttrain does not write to"):
            run(parse(["show", "inspect", "--to", name]))


@pytest.mark.parametrize("begin", ["<!DOCTYPE html>\n<html>", "<!doctype html>"])
def test_a_page_may_be_written_again(workspace: Path, begin: str) -> None:
    assert target("new/deep/page.html", "--to", ".html") == Path("new/deep/page.html")
    (workspace / "mine.html").write_text(begin)
    assert target("mine.html", "--to", ".html") == Path("mine.html")
    (workspace / "mine.json").write_text('[\n  {\n    "run": "mine/chat",')
    assert target("mine.json", "--plot", ".json") == Path("mine.json")
    (workspace / "mine.gguf").write_bytes(b"GGUF\x03")
    assert target("mine.gguf", "--gguf", ".gguf") == Path("mine.gguf")


def test_a_folder_of_ones_own_is_taken(workspace: Path) -> None:
    assert folder_target("new/logs", "--to") == Path("new/logs")
    (workspace / "logs").mkdir()
    assert folder_target("logs", "--to") == Path("logs")
