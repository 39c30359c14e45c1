"""Outputs are links into DVC's cache: no stage writes into one, and an edit by hand cannot pass for the result."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.faults.processes import Server
from posttrain.files import file_digest, write_json
from posttrain.pipeline.lock.digests import DIGESTS_FILE, Digests, recorded
from posttrain.pipeline.lock.fsync import SYNCED, cache_folder, cached, object_path, sync_cache
from posttrain.pipeline.lock.lock_check import NOTES, forget_mismatched
from tests.workspace import dvc, run

STAGES = ("data_tasks two_step", "base_scratch tiny", "sft main", "data_samples compared", "reward main")
LATER = ("preference dpo", "online grpo", "completions dpo", "evaluate dpo", "report")


@pytest.fixture
def linked(own_workspace: Path) -> Path:
    """A finished pipeline whose outputs are links: the copy of the workspace has copied them."""
    done = dvc(own_workspace, "checkout", "--relink")
    assert done.returncode == 0, done.stdout
    return own_workspace


def pairs(workspace: Path) -> Iterator[tuple[Path, Path]]:
    """Each file of a cached output and its object in the cache."""
    digests, cache = Digests(workspace), cache_folder(workspace)
    for out in (out for entry in recorded(workspace).values() for out in entry["outs"]):
        whole = workspace / out["path"]
        files = digests.listed(out["path"]) if whole.is_dir() else [{"md5": out["md5"], "relpath": ""}]
        found = ((whole / one["relpath"], object_path(cache, one["md5"])) for one in files)
        yield from ((here, kept) for here, kept in found if kept.is_file())  # others are in git


@pytest.mark.slow
def test_new_outputs_are_one_file_with_the_cache(smoke_workspace: Path) -> None:
    weights = list(smoke_workspace.glob("models/*/*/model.safetensors"))
    kept = dict(pairs(smoke_workspace))
    assert len(weights) == 5 and all(file.samefile(kept[file]) for file in weights)
    assert {file.stat().st_mode & 0o777 for file in weights} == {0o444}


@pytest.mark.slow
def test_no_stage_writes_into_an_output_in_place(linked: Path, stage_server: Server) -> None:
    """Each stage runs by hand, so that DVC has not removed its outputs; root may write into read-only files."""
    kept = {stored: file_digest(stored) for _, stored in pairs(linked)}
    assert len(kept) > 40
    for stage in (*STAGES, *LATER):
        before = [here.stat().st_ino for here, _ in pairs(linked)]
        ended = stage_server.run(linked, stage)
        assert ended.status == 0, ended.output
        assert [here.stat().st_ino for here, _ in pairs(linked)] != before, f"{stage} has written nothing"
    assert {stored: file_digest(stored) for stored in kept} == kept


@pytest.mark.slow
def test_an_edit_by_hand_is_refused_or_found(linked: Path) -> None:
    metrics = linked / "results/sft/metrics.json"
    if os.geteuid():
        with pytest.raises(PermissionError):
            metrics.open("r+b")
    assert run(linked, "python", "-m", "posttrain", "show", "results").returncode == 0, (
        "which reads every file once a boot"
    )
    times = (metrics.stat().st_atime_ns, metrics.stat().st_mtime_ns)
    metrics.chmod(0o644)  # by force, or as root
    text = metrics.read_text()
    with metrics.open("r+") as stream:
        stream.write(text.replace("0.", "1.", 1))
    metrics.chmod(0o444)
    os.utime(metrics, ns=times)
    shown = run(linked, "python", "-m", "posttrain", "show", "results")
    advice = "its output results/sft/metrics.json is not what dvc.lock has: `dvc checkout` after"
    assert advice in shown.stdout, shown.stdout
    row = next(line for line in shown.stdout.splitlines() if line.startswith("sft "))
    assert re.fullmatch(rf"sft +out of date: evaluate@sft has to run again \({re.escape(advice)}[^0-9]+\)", row), row
    found = run(linked, "python", "-m", "posttrain", "repair", "verify")
    assert (
        found.returncode == 1 and "results/sft/metrics.json of evaluate@sft): it was damaged, removed" in found.stdout
    )


@pytest.mark.slow
def test_digests_of_dvc_are_taken_unless_a_file_changed_since(
    own_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_workspace)
    lock, model, plot = Path("dvc.lock"), Path("models/sft/main/model.safetensors"), Path("plots/sft/main.csv")
    record = Path("records/sft/main.json")
    note = {"stage": "sft@main", "path": str(record), "record": file_digest(record)}
    DIGESTS_FILE.unlink(missing_ok=True)
    time.sleep(0.2)
    os.utime(lock)
    time.sleep(0.2)
    times = plot.stat()
    plot.chmod(0o644)  # DVC's links are for reading alone
    plot.write_bytes(plot.read_bytes().replace(b"1", b"2", 1))
    os.utime(plot, ns=(times.st_atime_ns, times.st_mtime_ns))
    write_json(NOTES / "sft@main.json", note)
    time.sleep(0.2)
    assert not forget_mismatched(Path())
    known = DIGESTS_FILE.read_text()
    assert f'"{model}"' in known and file_digest(model) in known and f'"{record}"' in known
    assert f'"{plot}"' not in known, "it changed after DVC had recorded it, with its time kept"


@pytest.mark.slow
def test_only_new_objects_are_written_to_the_disk_again(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("posttrain.pipeline.lock.fsync.fsync", synced.append)
    (own_workspace / SYNCED).unlink(missing_ok=True)
    cache = cache_folder(own_workspace)
    (out,) = [out for out in recorded(own_workspace)["sft@main"]["outs"] if out["path"].startswith("records/")]
    (new,) = cached(cache, out)
    past = time.time() + 3
    sync_cache(own_workspace)
    assert len([file for file in synced if file.is_file()]) > 40 and new in synced
    while time.time() < past:  # so that what the copy of the workspace has made is older than the margin
        time.sleep(0.1)
    sync_cache(own_workspace)
    synced.clear()
    shutil.copyfile(new, new.with_suffix(".new"))
    os.replace(new.with_suffix(".new"), new)
    sync_cache(own_workspace)
    assert {file for file in synced if file.is_relative_to(cache) and file.is_file()} == {new}


@pytest.mark.slow
def test_several_processes_may_sync_at_the_same_time(own_workspace: Path) -> None:
    """As the stages of a flow do, each at its start, and the flow after each."""
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            list(threads.map(lambda _: (sync_cache(own_workspace), Digests(own_workspace).keep()), range(16)))
    assert not list((own_workspace / ".dvc/tmp").glob(".*.tmp*"))
