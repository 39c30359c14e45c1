"""Inputs that change while a stage runs, and damage where DVC trusts what it has: nothing wrong is taken for right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.faults import cuts, edits, flips
from benchmarks.faults.cuts import Cuts
from benchmarks.faults.edits import Edits, replaced
from benchmarks.faults.flips import CACHE, Flips
from benchmarks.faults.project import RUN, command, ended, errors, made, products, repro, stage_runs, started
from posttrain.pipeline.lock.digests import recorded
from posttrain.pipeline.lock.fsync import cached
from posttrain.pipeline.lock.run_records import contradictions
from posttrain.pipeline.lock.verify import CHECKED
from tests.marks import slow_except
from tests.workspace import dvc, run

QUICK_EDITS = ("a parameter",)


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Edits:
    return Edits(tmp_path_factory.mktemp("edits"))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Flips:
    return Flips(tmp_path_factory.mktemp("flips"))


@pytest.fixture
def finished(damaged: Flips, tmp_path: Path) -> Path:
    return Path(shutil.copytree(damaged.template, tmp_path / "project", symlinks=True))


@pytest.mark.slow
def test_a_record_names_the_inputs_that_dvc_records(smoke_workspace: Path) -> None:
    """Our digests and DVC's, our reading of dvc.yaml and DVC's, for every stage of the pipeline."""
    for name, entry in recorded(smoke_workspace).items():
        if name == "code":  # it makes no result
            continue
        (path,) = [out["path"] for out in entry["outs"] if out["path"].startswith("records/")]
        record = json.loads((smoke_workspace / path).read_text())
        assert sorted(record["inputs"]) == sorted({dep["path"] for dep in entry["deps"]})
        assert sorted(record["outputs"]) == sorted(out["path"] for out in entry["outs"] if out["path"] != path)
        assert not contradictions(name, entry, record), name


@pytest.mark.parametrize("fault", slow_except(QUICK_EDITS, edits.FAULTS))
def test_an_input_that_is_edited_during_a_run(disturbed: Edits, fault: str) -> None:
    row = disturbed.trial(seed=0, fault=fault, after="step-00000010")  # a seed that restores the input
    assert not row["wrong"], row
    expected = "no effect" if fault in edits.UNRELATED else "refused, then resumed"
    assert row["outcome"] == expected or fault == edits.UNDONE


@pytest.mark.parametrize("fault", flips.FAULTS)
@pytest.mark.slow
def test_damage_is_found_and_healed(damaged: Flips, fault: str) -> None:
    row = damaged.trial(seed=1, fault=fault)
    assert not row["wrong"], row


@pytest.mark.slow
def test_an_edit_between_the_end_of_a_run_and_its_record_is_found(finished: Path) -> None:
    forced = repro(finished, "--force", "--single-item", "numbers")
    assert forced.status == 0, forced.output
    # As if DVC had looked at the inputs after this edit: it then records what it sees.
    replaced("posttrain/scale.py", "1.0", "3.0")(finished)
    assert command(finished, "dvc", "commit", "--force", "numbers").status == 0
    synced = command(finished, "posttrain", "repair", "sync")
    assert synced.status == 1
    assert (
        "numbers did not run as DVC recorded it: posttrain (the run read another version)" in errors(synced.output)[0]
    )
    again = repro(finished, "numbers")
    assert "Running stage 'numbers'" in again.output, again.output
    assert command(finished, "posttrain", "repair", "sync").status == 0


@pytest.mark.slow
def test_dvc_commit_after_an_edit_does_not_pass_for_a_run(finished: Path) -> None:
    whole = products(finished)
    assert command(finished, "posttrain", "repair", "sync").status == 0
    replaced("posttrain/scale.py", "1.0", "1.00")(finished)
    assert command(finished, "dvc", "commit", "--force").status == 0
    assert "Running stage" not in repro(finished).output, "DVC takes it for a run"
    verified = command(finished, "posttrain", "repair", "verify")
    assert verified.status == 1, verified.output
    for stage in ("numbers", "fit@a", "fit@b"):
        assert f"{stage}: dvc.lock does not say what ran (posttrain (the run read another version))" in verified.output
    assert repro(finished).output.count("Running stage") == 4
    assert command(finished, "posttrain", "repair", "verify").status == 0
    assert products(finished) == whole


@pytest.mark.slow
def test_after_a_new_start_of_the_machine_emptied_files_are_made_again(damaged: Flips, finished: Path) -> None:
    assert command(finished, "posttrain", "repair").status == 0
    (out,) = [out for out in recorded(finished)["fit@b"]["outs"] if out["path"].startswith("metrics/")]
    for file in (finished / out["path"], *cached(finished / CACHE, out)):
        file.chmod(0o644)
        file.write_bytes(b"")
        file.chmod(0o444)
    assert "Running stage" not in repro(finished).output, "DVC heals it by itself: repair is needed no more"
    (finished / CHECKED).write_text("another boot")
    assert "metrics/fit/b.json of fit@b is empty" in command(finished, "posttrain", "repair").output
    assert "Running stage 'fit@b'" in repro(finished).output
    assert products(finished) == damaged.whole


@pytest.mark.slow
def test_runs_whose_entries_were_damaged_run_again(finished: Path) -> None:
    """DVC reads the run cache where dvc.lock does not have the run, and fails on a run's folder without an entry."""
    emptied, edited, *_ = sorted((finished / ".dvc/cache/runs").glob("??/*/*"))
    emptied.write_bytes(b"")
    edited.write_text(edited.read_text().replace("md5: ", "md5: 0", 1))
    (finished / CHECKED).write_text("another boot")
    repaired = command(finished, "posttrain", "repair").output
    assert f"{emptied.relative_to(finished)} was emptied by a power cut: removed" in repaired
    verified = command(finished, "posttrain", "repair", "verify")
    assert verified.status == 1 and f"DVC's run cache, {edited.name}: it was damaged, removed" in verified.output
    (finished / "dvc.lock").unlink()
    done = repro(finished)
    assert done.status == 0 and done.output.count("Running stage") == 2, done.output


@pytest.mark.slow
def test_verify_waits_for_nobody_and_changes_nothing_while_a_stage_runs(finished: Path) -> None:
    process = started(finished, "dvc", "repro", "--force", "--single-item", RUN)
    while not stage_runs(process):
        assert process.poll() is None
    refused = command(finished, "posttrain", "repair", "verify")
    assert refused.status == 1
    assert "busy" in refused.output and "Wait until DVC has ended" in refused.output
    done = ended(process)
    assert done.status == 0, done.output
    assert command(finished, "posttrain", "repair", "verify").status == 0


@pytest.mark.slow
@pytest.mark.skipif(bool(cuts.why_not()), reason=cuts.why_not())
@pytest.mark.parametrize("fault", cuts.FAULTS)
def test_a_power_cut_loses_nothing_that_cannot_be_made_again(tmp_path: Path, fault: str) -> None:
    row = Cuts(tmp_path).trial(seed=1, fault=fault)
    assert not row["wrong"], row


@pytest.mark.slow
def test_the_report_refuses_a_figure_with_a_flipped_digit(own_workspace: Path) -> None:
    headline = (own_workspace / "report/headline.json").read_bytes()
    file = next((own_workspace / "results").rglob("metrics.json"))
    text = file.read_text()
    digit = text.index("0.") + 2
    file.write_text(text[:digit] + ("4" if text[digit] != "4" else "5") + text[digit + 1 :])
    read = dvc(own_workspace, "repro", "--force", "--single-item", "report")
    assert read.returncode, read.stdout
    assert "posttrain repair verify" in errors(read.stdout)[0]
    assert run(own_workspace, "python", "-m", "posttrain", "repair", "verify").returncode == 1
    healed = dvc(own_workspace, "repro")
    assert healed.returncode == 0, healed.stdout
    assert (own_workspace / "report/headline.json").read_bytes() == headline


@pytest.mark.slow
def test_a_project_without_a_run_has_nothing_to_verify(tmp_path: Path) -> None:
    verified = command(made(tmp_path / "project"), "posttrain", "repair", "verify")
    assert (verified.status, verified.output) == (
        0,
        "0 objects in DVC's cache and 0 outputs of dvc.lock are as they were recorded\n",
    )
