"""Whether the results in a commit belong to the commit's own settings, code and files."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from posttrain.pipeline.lock.at_commit import AtCommit, _blobs, _digest
from posttrain.pipeline.lock.code_digest import normalised
from posttrain.pipeline.lock.digests import read_lock
from tests.pipeline.lock.project import CODE, DVC_YAML, FILES, md5, put, put_lock


def commit() -> None:
    if not Path(".git").is_dir():
        subprocess.run(["git", "init", "-q"], check=True)
        put(Path(".gitignore"), "/models\n/data\n/records\n/.dvc/tmp\n/.dvc/cache\n")
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"], check=True)


@pytest.fixture
def at_commit(made: Path, tmp_path_factory: pytest.TempPathFactory) -> object:
    def look() -> AtCommit:
        commit()
        return AtCommit("HEAD", tmp_path_factory.mktemp("commit"))

    return look


def test_results_that_belong_to_their_commit(at_commit) -> None:
    found = at_commit()
    assert found.of_run("last") == []
    assert found._code_changes("mine@main") == ["the code of mine@main changed"]
    assert found._code_digest("mine@main") == md5(FILES["code/mine/main.json"])
    assert found._code_digest("raw") is None


def test_other_settings_and_code_are_named(made: Path, at_commit) -> None:
    put(made / "params.yaml", "mine: {runs: {main: {lr: 0.2, name: a}}}\n")
    put(made / "custom/a.py", "a = 1\n")
    named = {**CODE, "files": {"custom/a.py": normalised(made / "custom/a.py"), "custom/gone.py": "1"}}
    put(made / "code/mine/main.json", json.dumps(named))
    (line,) = at_commit().of_run("last")
    assert line == "mine@main: params mine.runs.main.lr 0.1 -> 0.2; the code of mine@main changed"
    put(made / "custom/a.py", "a = 2\n")
    found = at_commit()
    assert found._edited("mine@main") == ["custom/a.py"] and found._edited("raw") == []
    assert found.of_run("mine@main")[0].endswith("custom/a.py changed after the stage `code` ran")


def test_dependencies_in_outputs_in_dvc_and_in_git(made: Path, at_commit) -> None:
    put(made / "mine/added.txt.dvc", "outs: [{path: added.txt, md5: '1'}]\n")
    put(made / "mine/own.txt", "own")
    stages = read_lock(made)
    stages["raw"]["outs"].append({"path": "nothing", "md5": "2"})
    put_lock(made, stages)
    found = at_commit()
    assert found._source("models/mine/main/a.txt", "known") == md5("weights")
    assert found._source("models/mine/main/b.txt", "known") == "known"
    assert found._source("mine/added.txt", "known") == "1"
    assert found._source("mine/own.txt", "known") == hashlib.md5(b"own").hexdigest()
    assert found._source("mine/other.txt", "known") == "known"
    put(made / "dvc.yaml", DVC_YAML.replace("[data/raw.txt]", "[data/raw.txt, b]", 1))
    assert at_commit().of_run("raw") == ["raw: b is a new output"]


def test_files_of_a_commit(made: Path) -> None:
    put(made / "custom/a.py", "a = 1  # one\n")
    commit()
    blobs = _blobs("HEAD")
    assert {"dvc.yaml", "custom/a.py", "code/mine/main.json"} <= blobs.keys() and "data/raw.txt" not in blobs
    named = subprocess.run(["git", "rev-parse", "HEAD:custom/a.py"], check=True, capture_output=True, text=True)
    assert blobs["custom/a.py"] == named.stdout.strip()
    assert _digest("custom/a.py", blobs["custom/a.py"]) == normalised(made / "custom/a.py")
