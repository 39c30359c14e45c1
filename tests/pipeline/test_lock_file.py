"""Commands that rewrite dvc.lock keep the entries that a running DVC writes while they wait for it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dvc.utils.serialize import dumps_yaml

from posttrain.errors import PipelineError
from posttrain.pipeline.lock.digests import dvc_lock
from posttrain.pipeline.lock.lock_file import merge_entries, read_entries
from posttrain.pipeline.lock.orphaned_outputs import remove_leftovers
from posttrain.pipeline.lock.verify import repair

SFT, REMOVED = {"cmd": "sft main"}, {"cmd": "sft old"}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose dvc.lock has the entry of a removed run."""
    monkeypatch.chdir(tmp_path)
    Path(".dvc/tmp").mkdir(parents=True)
    Path("params.yaml").write_text("sft: {runs: {main: {}}}")
    put({"sft@old": REMOVED})


def put(entries: dict[str, dict[str, str]]) -> None:
    """Write dvc.lock as a DVC does that holds the lock."""
    Path("dvc.lock").write_text(dumps_yaml({"schema": "2.0", "stages": entries}))


def run_during_dvc(command: Callable[[], str], change: Callable[[], None]) -> str:
    """Start the command while DVC's lock is held, change dvc.lock, and return what the command says."""
    said: list[str] = []
    with dvc_lock(Path()):
        waiting = threading.Thread(target=lambda: said.append(command()))
        waiting.start()
        time.sleep(0.5)
        change()
    waiting.join(timeout=60)
    return said[0]


def test_clean_keeps_an_entry_that_is_written_meanwhile() -> None:
    said = run_during_dvc(remove_leftovers, lambda: put({"sft@old": REMOVED, "sft@main": SFT}))
    assert said == "removed sft@old: its entry in dvc.lock"
    assert read_entries() == {"sft@main": SFT}


def test_a_conflict_that_begins_the_file_is_no_damage() -> None:
    Path("dvc.lock").write_text("<<<<<<< HEAD\nschema: '2.0'\n=======\nschema: '1.0'\n>>>>>>> other\n")
    text = Path("dvc.lock").read_text()
    repair(Path())
    assert Path("dvc.lock").read_text() == text
    with pytest.raises(PipelineError, match="merge conflict"):
        read_entries()


def test_a_merge_leaves_a_lock_that_another_merge_has_settled_meanwhile() -> None:
    def commit(name: str) -> None:
        subprocess.run(["git", "add", "dvc.lock"], check=True)
        subprocess.run([*identity, "commit", "-qm", name], check=True)

    identity = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
    commit("begin")
    subprocess.run(["git", "checkout", "-qb", "other"], check=True)
    put({"sft@b": SFT})
    commit("other")
    subprocess.run(["git", "checkout", "-q", "main"], check=True)
    put({"sft@a": SFT})
    commit("main")
    assert subprocess.run([*identity, "merge", "-q", "other"], check=False, capture_output=True).returncode
    later = {"sft@a": SFT, "sft@b": SFT, "sft@main": SFT}
    assert run_during_dvc(merge_entries, lambda: put(later)) == "dvc.lock has no merge conflict"
    assert read_entries() == later
