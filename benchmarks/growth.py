"""How the time of commands grows with the runs of a project and with the rows of a table; writes reports/growth.md.

python -m benchmarks.growth                              10 to 1,000 runs and 1e4 to 1e6 rows (about 15 minutes)
python -m benchmarks.growth --runs 10 30 --rows --show   fewer, on the terminal alone
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import ROOT
from benchmarks.data.__main__ import PARAMS, STEPS
from benchmarks.data.sides import write_inputs
from benchmarks.machine import machine, versions
from benchmarks.overhead.pipelines import finished, locked
from posttrain.files import file_digest, write_json
from posttrain.measure.record import record_path
from posttrain.pipeline.lock.code_manifest import code_path
from posttrain.pipeline.params.yaml_files import read_yaml
from tests.workspace import environment

PAGE: Final = ROOT / "docs" / "reports" / "growth.md"
COMMANDS: Final = {
    "`posttrain check`": ["-m", "posttrain", "check"],
    "`dvc status`": ["-m", "dvc", "status"],
    "`posttrain status`": ["-m", "posttrain", "status"],
    "`posttrain flow`": ["-m", "posttrain", "flow"],
    "`posttrain show results`": ["-m", "posttrain", "show", "results"],
    "what each stage does before its work": ["-m", "posttrain", "repair", "sync"],
}
AT_MOST: Final = {"`dvc status`": 300}
"""The most runs at which a command is measured: at 1,000, DVC's own `status` takes more than eight minutes."""
TABLES: Final = {"`data_files`": STEPS["tables"], "the first start of SFT: tokens": STEPS["tokens"]}
COPIED: Final = ("models/sft/{}", "metrics/sft/{}.json", "plots/sft/{}.csv", "records/sft/{}.json", "code/sft/{}.json")
SAMPLED: Final = ("completions/{}", "records/completions/{}.json", "code/completions/{}.json")
EVALUATED: Final = ("results/{}", "records/evaluate/{}.json", "code/evaluate/{}.json")
HEAD: Final = """# Growth

CPU seconds of commands with nothing to do, by the number of runs, and of reading tables, by the number of rows (`make
bench-growth`). A project of N runs has N models, their completions and their scores: 3N + 7 stages. A command's seconds
include its child processes, such as the server of `posttrain flow`. The exponent is the slope between the last two
sizes: at 1 the time grows in proportion, at 2 with the square.
"""
TAIL: Final = """
## What to do

`dvc status`, `dvc repro` and `dvc commit` read params.yaml again for each stage that has parameters: their time grows
with the square of the runs ([a patch for DVC](../reference/dvc-params.md)). `posttrain status` does not start DVC, and
`posttrain flow` starts it only if a stage must run. So:

- Make one project for each study. Take a model or a table from another project by `base.folders` or `data.files`.
- Ask `posttrain status`, and name targets: `dvc repro sft@main`, `dvc status sft@main`.
- Remove runs that nobody needs from params.yaml; `posttrain clean` then deletes their files.
"""
Found = dict[str, dict[str, float]]
"""Side -> size -> CPU seconds."""


def main(arguments: list[str]) -> int:
    """Measure every size, and write the page or show it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--runs", type=int, nargs="*", default=[10, 100, 300, 1000])
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--show", action="store_true", help="only on the terminal")
    parser.add_argument("--workspace", type=Path, help="a finished smoke pipeline, which is made otherwise")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        ours = finished(options.workspace or Path(scratch) / "ours") if options.runs else Path()
        runs = [project(ours, Path(scratch) / f"runs{count}", count) for count in options.runs]
        measured = [_commands(folder, count) for folder, count in zip(runs, options.runs, strict=True)]
        by_runs = table_of(options.runs, measured)
        by_rows = table_of(options.rows, [_tables(Path(scratch) / f"rows{count}", count) for count in options.rows])
    text = page(by_runs, by_rows, f"{machine()}; {versions('dvc', 'polars', 'tokenizers')}")
    print(text)
    if not options.show:
        PAGE.write_text(text, encoding="utf-8")
    return 0


def page(by_runs: Found, by_rows: Found, used: str) -> str:
    """docs/reports/growth.md."""
    tables = [*page_table("runs", by_runs), "", *page_table("rows", by_rows)]
    return "\n".join([HEAD, f"Machine: {used}.", "", *tables, TAIL])


def project(ours: Path, folder: Path, count: int) -> Path:
    """Return a finished project of so many runs of SFT and their evaluations: copies of one run under other names."""
    shutil.copytree(ours, folder, symlinks=True)
    from dvc.utils.serialize import dump_yaml

    settings, names = read_yaml(ours / "params.yaml"), [f"run{number:03}" for number in range(count)]
    own = settings["sft"]["runs"]["main"]
    kept = {name: settings[name] for name in ("format", "seed", "base")}
    kept["data"] = {"tasks": settings["data"]["tasks"]}
    kept["sft"] = {"runs": {"main": own, **{name: copy.deepcopy(own) for name in names}}}
    policies = {"sft": "sft/main", **{name: f"sft/{name}" for name in names}}
    kept["evaluate"] = {"settings": settings["evaluate"]["settings"], "policies": policies}
    dump_yaml(str(folder / "params.yaml"), kept)
    entries = locked(ours)
    lock = {name: entries[name] for name in ("code", "data_tasks@two_step", "base_scratch@tiny", "sft@main")}
    lock |= {name: entries[name] for name in ("completions@sft", "evaluate@sft", "report")}
    for name in names:
        for path, old in [*((one, "main") for one in COPIED), *((one, "sft") for one in (*SAMPLED, *EVALUATED))]:
            _copy(folder / path.format(old), folder / path.format(name))
        lock[f"sft@{name}"] = _renamed(entries["sft@main"], (*COPIED, "stages.sft {}", "sft.runs.{}"), "main", name)
        for kind, more in (("completions", ()), ("evaluate", (*EVALUATED, "evaluate.policies.{}"))):
            patterns = (*SAMPLED, *more, f"stages.{kind} {{}}")
            again = _renamed(entries[f"{kind}@sft"], patterns, "sft", name)
            again = lock[f"{kind}@{name}"] = _renamed(again, ("models/sft/{}",), "main", name)
            reference = next(dep for dep in entries[f"{kind}@sft"]["deps"] if dep["path"] == "models/sft/main")
            again["deps"].append(reference)
        lock[f"evaluate@{name}"]["params"]["params.yaml"][f"evaluate.policies.{name}"] = f"sft/{name}"
    _replace_in_lock(folder, lock)
    return folder


def _renamed(entry: Mapping[str, Any], patterns: Sequence[str], old: str, new: str) -> dict[str, Any]:
    """Return an entry of dvc.lock for a run of another name; the bytes of its files are the same."""
    text = json.dumps(entry)
    for pattern in patterns:
        text = text.replace(f"{pattern.format(old)}", f"{pattern.format(new)}")
    found: dict[str, Any] = json.loads(text)
    return found


def _copy(old: Path, new: Path) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    if old.is_dir():
        shutil.copytree(old, new)
    else:
        shutil.copyfile(old, new)


def _replace_in_lock(folder: Path, lock: Mapping[str, Any]) -> None:
    """Record the stages, and have DVC take over what depends on the whole: `code` and `report`."""

    def run(*words: str) -> str:
        (folder / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": lock}), encoding="utf-8")
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} in {folder}: {done.stdout}{done.stderr}")
        return done.stdout

    run("stages.code")
    for name, entry in lock.items():  # the code of completions has their settings, among them the policy
        for dep in entry.get("deps", ()) if name.startswith("completions@") else ():
            if dep["path"].startswith("code/"):
                dep.update(md5=file_digest(folder / dep["path"]), size=(folder / dep["path"]).stat().st_size)
    run("dvc", "commit", "--force", "code", "report")
    lock = locked(folder)
    for name, entry in lock.items():
        _own_record(folder, name, entry)
    run("posttrain", "repair")  # DVC's cache gets the records
    if "nothing is stale" not in (said := run("posttrain", "status")):
        raise RuntimeError(f"something is stale in {folder}: {said[:2000]}")


def _own_record(folder: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Make the record of a run say what dvc.lock says: it is a copy of another run's."""
    file = folder / record_path(name)
    outs = {out["path"]: out for out in entry["outs"]}
    if (out := outs.pop(record_path(name).as_posix(), None)) is None:
        return
    record = json.loads(file.read_bytes())
    record |= {"stage": name, "inputs": {dep["path"]: dep["md5"] for dep in entry["deps"]}}
    record |= {"params": entry.get("params", {}), "outputs": {path: one["md5"] for path, one in outs.items()}}
    record["code"] = json.loads((folder / code_path(name)).read_bytes())
    file.unlink()  # it may be a link into DVC's cache
    write_json(file, record)
    out |= {"md5": file_digest(file), "size": file.stat().st_size}


def _commands(folder: Path, runs: int) -> dict[str, float]:
    """CPU seconds of each command in a project; the first of all reads every file, which is not counted."""
    return {name: _cpu(command, folder) for name, command in COMMANDS.items() if runs <= AT_MOST.get(name, runs)}


def _tables(folder: Path, rows: int) -> dict[str, float]:
    """CPU seconds of reading and of tokenizing a table."""
    folder.mkdir()
    before = Path.cwd()
    os.chdir(folder)
    write_inputs(rows)
    os.chdir(before)
    (folder / ".dvc/tmp").mkdir(parents=True)
    (folder / "params.yaml").write_text(json.dumps(PARAMS), encoding="utf-8")
    return {name: _cpu(command[1:], folder, PYTHONPATH=str(ROOT)) for name, command in TABLES.items()}


def _cpu(words: Sequence[str], folder: Path, **variables: str) -> float:
    """CPU seconds of a command with its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    known = {**environment(), **variables}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=known, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} in {folder}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{folder.name}: {' '.join(words)}: {seconds:.1f} s", file=sys.stderr, flush=True)
    return seconds


def table_of(sizes: Sequence[int], measured: Sequence[Mapping[str, float]]) -> Found:
    """Return what was measured of each size, by side."""
    sides = measured[0] if measured else {}
    by_size = list(zip(sizes, measured, strict=True))
    return {side: {f"{size:,}": one[side] for size, one in by_size if side in one} for side in sides}


def page_table(title: str, found: Found) -> list[str]:
    """Return a table with a row per side and the exponent of its growth."""
    sizes = list(next(iter(found.values()), {}))
    rows = [f"| {' | '.join(['', *(f'{size} {title}' for size in sizes), 'exponent'])} |"]
    rows.append(f"|---|{'---:|' * (len(sizes) + 1)}")
    for side, seconds in found.items():
        cells = [side, *(f"{seconds[size]:.1f}" if size in seconds else "" for size in sizes), exponent(seconds)]
        rows.append(f"| {' | '.join(cells)} |")
    return rows if found else [f"No {title} were measured."]


def exponent(seconds: Mapping[str, float]) -> str:
    """Return the slope between the last two sizes on logarithmic scales."""
    if len(seconds) < 2:
        return "-"
    (small, before), (large, after) = [(int(size.replace(",", "")), took) for size, took in seconds.items()][-2:]
    return f"{math.log(after / before) / math.log(large / small):.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
