"""Data sets and models of the Hub, from a server that answers as the Hub does; every failure says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.pipeline.tables.hub_server import COMMIT, TOKEN, served
from tests.workspace import ROOT

OTHER = "f" * 40
SECRET = "hf_" + "wrong" * 7
REPOSITORIES = {"dataset": "datasets", "model": "models"}


@dataclass
class Hub:
    """The server, and a folder of ours with the Hub's cache."""

    root: Path
    endpoint: str
    home: Path

    def requests(self) -> str:
        file = self.root / "requests.txt"
        return file.read_text() if file.exists() else ""

    def environment(self, **more: str) -> dict[str, str]:
        known = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        own = {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(self.home), "PYTHONPATH": str(ROOT)}
        return {**known, **own, **more}

    def tried(self, *cases: dict[str, Any], **more: str) -> list[dict[str, Any]]:
        """What comes of reading these, in one process."""
        command = [sys.executable, "-m", "tests.pipeline.tables.hub_tried", json.dumps(cases)]
        environment = self.environment(**more)
        done = subprocess.run(command, cwd=self.home, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    root, home = tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("home")
    data = root / "datasets/org/name/data"
    data.mkdir(parents=True)
    rows = pl.DataFrame([{"prompt": f"{n}+1?", "completion": str(n + 1)} for n in range(60)])
    (data.parent / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n", encoding="utf-8")
    for nth in range(2):
        rows[30 * nth : 30 * nth + 30].write_parquet(data / f"train-0000{nth}-of-00002.parquet")
    for name in ("private", "gated", "terms", "broken"):
        for group in REPOSITORIES.values():
            (root / group / "org" / name).mkdir(parents=True)
    with served(root) as address:
        yield Hub(root, address, home)


@pytest.mark.slow
def test_failures_say_what_to_do(hub: Hub) -> None:
    page = f"{hub.endpoint}/{{}}org/"
    wanted = {
        ("missing", "", COMMIT): "is not found, or is private. Check its name; if it is private, log in with `hf auth",
        ("private", "", COMMIT): "'org/private' is not found, or is private. Check its name; if it is private, log in",
        ("gated", "", COMMIT): f"'org/gated' is gated. Accept its terms at {page}gated, then log in with `hf auth lo",
        ("terms", TOKEN, COMMIT): f"'org/terms' is gated. Accept its terms at {page}terms with the account of your to",
        ("private", SECRET, COMMIT): "the Hub refuses your token: it is invalid or has expired. Log in again with",
        ("private", TOKEN, OTHER): f"'org/private' has no commit {OTHER}. Copy the commit from {page}private/commits/",
        ("broken", "", COMMIT): "the Hub refuses the ",
    }
    cases = [
        {"repo": repo, "name": f"org/{name}", "token": token, "revision": revision}
        for repo in REPOSITORIES
        for name, token, revision in wanted
    ]
    for case, found in zip(cases, hub.tried(*cases), strict=True):
        expected = wanted[case["name"].removeprefix("org/"), case["token"], case["revision"]]
        assert expected.format("datasets/" if case["repo"] == "dataset" else "") in found["error"], case
        assert "\n" not in found["error"] and SECRET not in found["error"]


@pytest.mark.slow
def test_a_limit_reads_only_what_it_needs_and_gives_the_same_rows(hub: Hub) -> None:
    some = {"repo": "dataset", "name": "org/name", "limit": 20}
    streamed = hub.tried(some)[0]
    assert "error" not in streamed and streamed["licence"] == "cc-by-4.0", streamed
    files = [line for line in hub.requests().splitlines() if line.startswith("GET") and ".parquet" in line]
    assert files and not [line for line in files if "train-00001" in line], "the second file is not needed"
    assert "here: reading the first 20 rows of each split from the Hub, of 0.0 MB in 2 files\n" in streamed["printed"]
    whole, again, cached = hub.tried({"repo": "dataset", "name": "org/name"}, some, {**some, "limit": None})
    assert "here: downloading 0.0 MB in 2 files to the Hub's cache\n" in whole["printed"]
    assert len(streamed["ids"]) == 20 and again["ids"] == streamed["ids"] and set(streamed["ids"]) < set(whole["ids"])
    assert "downloading" not in cached["printed"] and cached["ids"] == whole["ids"]
    asked = hub.requests()
    offline, moved, model = hub.tried(
        {"repo": "dataset", "name": "org/name"},
        {"repo": "dataset", "name": "org/name", "revision": OTHER},
        {"repo": "model", "name": "org/name"},
        HF_HUB_OFFLINE="1",
    )
    assert offline["ids"] == whole["ids"] and hub.requests() == asked
    expected = (
        "HF_HUB_OFFLINE is set, and commit fffffff of the data set 'org/name' is not in the cache. Run once without"
    )
    assert expected in moved["error"], "the newest commit of the cache is another one"
    assert "is not in the cache. Run once without it, or download the model elsewhere and list its" in model["error"]


def write_long(folder: Path, files: int) -> int:
    """Write a data set of 5 MB a file, in which one row of 250 has the topic that is looked for; its bytes."""
    folder.mkdir(parents=True)
    for nth in range(files):
        rows = [
            {
                "prompt": f"{nth} {n}?",
                "completion": os.urandom(2500).hex(),
                "topic": "rare" if n % 250 == 0 else "usual",
            }
            for n in range(1000)
        ]
        pl.DataFrame(rows).write_parquet(folder / f"train-{nth:05d}-of-{files:05d}.parquet", row_group_size=100)
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.slow
def test_memory_holds_the_rows_that_are_kept_and_not_those_that_are_read(hub: Hub) -> None:
    found = {}
    for files in (2, 60):
        name = f"org/long{files}"
        size = write_long(hub.root / "datasets" / name / "data", files)
        [found[size]] = hub.tried({"repo": "dataset", "name": name, "limit": 4 * files, "where": {"topic": ["rare"]}})
        assert len(found[size].get("ids", ())) == 4 * files, found
    small, large = found
    assert large - small > 140e6
    assert found[large]["licence"] is None, "its card states none"
    assert abs(found[large]["peak"] - found[small]["peak"]) < 0.2 * (large - small), found


@pytest.mark.slow
def test_without_a_network(hub: Hub) -> None:
    cases = [{"repo": repo, "name": "org/name", "revision": OTHER} for repo in REPOSITORIES]
    for found in hub.tried(*cases, HF_ENDPOINT="http://127.0.0.1:9"):
        assert "the Hub cannot be reached, and commit fffffff of the " in found["error"]
        assert "Run once with a network, or " in found["error"]


@pytest.mark.slow
def test_a_stage_that_is_refused_writes_nothing_and_keeps_the_token_to_itself(hub: Hub, tmp_path: Path) -> None:
    settings = {"data": {"hub": {"mine": {"chat": {"name": "org/private", "revision": COMMIT}}}}}
    (tmp_path / "params.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "stages.data_hub", "mine"]
    environment = hub.environment(HF_TOKEN=SECRET, POSTTRAIN_TRACEBACK="1")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "data.hub.mine.chat: the Hub refuses your token" in done.stderr
    assert not (tmp_path / "data").exists()
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert SECRET not in done.stdout + done.stderr and not any(SECRET.encode() in one for one in written)
