"""What a stage or a command says of limits, rights and secrets: the cause, in one line, and never a secret."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import psutil
import pytest

from posttrain.data.parquet import ran_out_of_memory, write_parquet
from posttrain.measure import masking
from posttrain.pipeline.lock.repair_dvc import USER_SITE_CACHE, repair_lock
from posttrain.rewards.reward import raised
from tests.marks import slow_except
from tests.workspace import ROOT, environment

SECRET = "sk-9f8e7d6c5b4a"
TWO_LINES = "MIIEvQIBADANBg\nkqhkiG9w0BAQEF"
NOISY = """import os
import sys

from posttrain.measure.stage_log import start_log
from posttrain.measure.terminal import make_streams_safe
from posttrain.settings.host import HOST

if sys.argv[1] == "stage":
    import posttrain.pipeline

    start_log("online@a")
else:  # as a worker process of a reward does
    make_streams_safe()
    HOST.secret_names = lambda: ["MY_JUDGE"]  # as its first line says
print("key is", os.environ["MY_JUDGE"], flush=True)
key = os.environ["MY_JUDGE"]
print(key[:5], end="", flush=True)
print(key[5:])
for letter in key:
    sys.stderr.write(letter)
sys.stderr.write("\\n")
for line in os.environ["SSH_KEY"].splitlines():
    print(line)
print("token is", os.environ["HF_TOKEN"], file=sys.stderr)
raise ValueError("cannot log in with " + os.environ["MY_JUDGE"])
"""


def posttrain(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command of this checkout in a folder."""
    command, known = [sys.executable, *words], {**environment(), "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, check=False)


@pytest.fixture
def unseen() -> Iterator[None]:
    """The secrets are read once per process: read them again before and after."""
    masking._secrets.cache_clear()
    yield
    masking._secrets.cache_clear()


@pytest.mark.usefixtures("unseen")
def test_secrets_are_hidden_and_ordinary_words_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("online: {runs: {a: {reward: {judge: {key: MY_JUDGE}}}}}\n")
    for name, value in {"MY_JUDGE": SECRET, "HF_TOKEN": f"{SECRET}-longer", "LANGUAGE_": SECRET[::-1]}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SOME_API_KEY", "short")
    assert masking.masked(f"{SECRET}-longer {SECRET} {SECRET[::-1]} short") == f"*** *** {SECRET[::-1]} short"
    assert SECRET not in raised(ValueError(f"with {SECRET}")).reason


@pytest.mark.parametrize("process", ["stage", "worker"])
def test_what_an_own_reward_prints_or_raises_has_no_secret(tmp_path: Path, process: str) -> None:
    (tmp_path / "params.yaml").write_text("online: {runs: {a: {reward: {judge: {key: MY_JUDGE}}}}}\n")
    (tmp_path / "noisy.py").write_text(NOISY)
    done = posttrain(tmp_path, "noisy.py", process, MY_JUDGE=SECRET, HF_TOKEN=f"hf_{SECRET}", SSH_KEY=TWO_LINES)
    said = done.stdout + done.stderr + "".join(file.read_text() for file in tmp_path.glob("logs/*.log"))
    assert "key is ***" in done.stdout and "token is ***" in done.stderr
    assert "ValueError: cannot log in with ***" in done.stderr
    assert SECRET not in said and not any(line in said for line in TWO_LINES.splitlines())
    assert done.stdout.count("***") == 3, "the two lines of a key count as one"


LIMITED = """import resource, sys
import psutil
from posttrain.errors import TableError
from posttrain.pipeline.tables.store import read_table

limit = psutil.Process().memory_info().vms + 40_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    read_table(sys.argv[1], "chat")
except TableError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_table_under_a_limit_of_memory_is_not_called_damaged(tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    write_parquet(pl.DataFrame({"text": [f"{number} " * 50 for number in range(300_000)]}), file)
    done = posttrain(tmp_path, "-c", LIMITED, str(file))
    assert "memory ran out while reading it" in done.stdout, done.stdout + done.stderr
    assert "ulimit -v" in done.stdout and "verify" not in done.stdout


def test_a_size_that_only_damage_can_ask_for_is_called_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    wanted = psutil.virtual_memory().total * 2
    assert ran_out_of_memory(MemoryError("malloc of size 65536 failed"))
    assert not ran_out_of_memory(MemoryError(f"realloc of size {wanted} failed"))
    assert not ran_out_of_memory(ValueError("malloc of size 65536 failed"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["repair", "status", "show results"])
def test_a_folder_of_dvc_that_cannot_be_written_is_one_line(tmp_path: Path, command: str) -> None:
    """Root may write into read-only folders; into a file in a folder's place nobody may."""
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_bytes((ROOT / ".dvc/config").read_bytes())
    (tmp_path / ".dvc/tmp").write_text("")
    for name in ("dvc.yaml", "params.yaml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    known = {**environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "posttrain", *command.split()],
        cwd=tmp_path,
        env=known,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert re.search(r"^error: \S*\.dvc/tmp\S*: (File exists|Not a directory)\. Fix", done.stderr, re.M), done.stderr


@pytest.mark.parametrize("name", slow_except(("grün und é",), ("grün und é", "plain with a space")))
def test_a_clone_may_have_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / name / "project"
    for words in (["init", str(folder), "--recipe", "rlvr"], ["repair"], ["status"]):
        place = folder if words[0] != "init" else tmp_path
        done = posttrain(place, "-m", "posttrain", *words)
        assert done.returncode == 0, done.stderr
    repair_lock(folder)
    text = (folder / ".dvc/config.local").read_text(encoding="utf-8")
    inside = f"{tmp_path}/cache/{USER_SITE_CACHE}/" if not name.isascii() else f"{folder}/.dvc/tmp/site"
    assert f"site_cache_dir = {inside}" in text.replace('"', "")
