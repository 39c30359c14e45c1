"""Gives stages bad input and judges how they refuse it: python -m benchmarks.faults.fuzz [--share N]

A refusal is clear when the stage ends with status 1 and one line that begins with 'error:' and names the place,
without a traceback, and when it has written nothing but the rejected rows next to a table. What may be
accepted is listed with its reason; everything else is a fault of the library. Writes docs/reports/fuzz.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.faults.accepted import ACCEPTED
from benchmarks.faults.cases import Case, all_cases
from benchmarks.faults.changes import SNAPSHOT, listing
from benchmarks.faults.kills import prepared
from benchmarks.faults.processes import Ended, Server
from tests.workspace import ROOT, dvc, make_workspace

PAGE = ROOT / "docs/reports/fuzz.md"
PATIENCE_S = 60.0
LONGEST = 6000
GONE_WRONG = re.compile(r"at step \d+|the weights|not finite")
"""Training that went wrong is refused while it runs: its log and checkpoints are there by design."""

HEAD = """# Bad input

Written by `make fuzz`; do not edit. Each case damages one input and runs the stage that reads it. *Refused
clearly*: exit code 1, one line with what, where and fix, no traceback, and no file written or changed (`dvc.lock`
included) except rejected rows.
"""


@dataclass(frozen=True)
class Verdict:
    """What came of a case."""

    case: Case
    outcome: Literal["refused", "accepted", "wrong"]
    why: str


class Fuzz:
    """The workspaces that cases begin with, and the outputs of stages whose input nobody spoilt."""

    def __init__(self, server: Server, smoke: Path, folder: Path) -> None:
        self._server, self._folder, self._number = server, folder, 0
        self._start = prepared(smoke, folder / "start")
        for stage in ("data_tasks two_step", "data_samples compared"):
            assert server.run(self._start, stage).status == 0
        self._report = prepared(smoke, folder / "report", "report")
        self._resumed = self._linked(self._start)
        assert server.run(self._resumed, "sft main").status == 0
        self._trained = {name: digest for name, digest in listing(self._resumed).items() if "models/sft" in name}
        self._whole: dict[str, dict[str, str]] = {}

    def judge(self, case: Case) -> Verdict:
        """Run one case."""
        stage = case.stage.removesuffix(" resumed")
        workspace = self._linked(self._of(case))
        given = {"change": case.change, "arguments": case.arguments}
        try:
            ended = self._server.run(
                workspace, stage, before="benchmarks.faults.changes:apply", given=given, patience=PATIENCE_S
            )
        except TimeoutError:
            return Verdict(case, "wrong", f"it still ran after {PATIENCE_S:.0f} s")
        if not (workspace / SNAPSHOT).exists():
            return Verdict(case, "wrong", f"the change itself failed: {ended.output}")
        before, after = json.loads((workspace / SNAPSHOT).read_text()), listing(workspace)
        shutil.rmtree(workspace)
        names = (name for name in before.keys() | after if not name.startswith("logs/"))
        changed = sorted(name for name in names if before.get(name) != after.get(name))
        return self._verdict(case, stage, ended, changed, after)

    def _verdict(self, case: Case, stage: str, ended: Ended, changed: list[str], after: dict[str, str]) -> Verdict:
        fault = _unclear(case, ended)
        if ended.status != 0:
            if GONE_WRONG.search(ended.output):
                changed = [name for name in changed if not name.startswith(("plots/", "checkpoints/"))]
            fault = fault or (f"it wrote {', '.join(changed[:5])}" if changed else "")
            return Verdict(case, "wrong" if fault else "refused", fault or _line(ended))
        if case.stage.endswith("resumed"):
            same = all(after.get(name) == digest for name, digest in self._trained.items())
            if same and "checkpoint skipped: " in ended.output:
                return Verdict(case, "accepted", "named and skipped; the weights are the same")
            return Verdict(case, "wrong", f"same weights: {same}, but nothing was named: {ended.output[-300:]}")
        if case.stage == "report" and f" is left out: {case.names}" in ended.output:
            return Verdict(case, "accepted", "the report names the policy and why it is left out")
        reason = next((why for pattern, why in ACCEPTED if re.search(pattern, f"{case.kind}: {case.name}")), None)
        if reason is None and re.search(r" (flip|zeros) \d+$", case.name) and self._same(case, stage, after):
            reason = "the bytes carry nothing that is read: the outputs are the same"
        return Verdict(case, "accepted" if reason else "wrong", reason or f"it was accepted: {ended.output[-300:]}")

    def _same(self, case: Case, stage: str, after: dict[str, str]) -> bool:
        """Whether the outputs are those of the stage on unspoilt input."""
        if stage not in self._whole:
            workspace = self._linked(self._of(case))
            assert self._server.run(workspace, stage).status == 0
            self._whole[stage] = listing(workspace)
            shutil.rmtree(workspace)
        spoilt = case.arguments.get("file")
        theirs = self._whole[stage]
        names = {
            name
            for name in theirs.keys() | after
            if not name.startswith(("checkpoints/", "timings/", "logs/")) and name != spoilt
        }
        return all(theirs.get(name) == after.get(name) for name in names)

    def _of(self, case: Case) -> Path:
        if case.stage.endswith("resumed"):
            return self._resumed
        return self._report if case.stage == "report" else self._start

    def _linked(self, source: Path) -> Path:
        """A copy that shares its files until they are written again."""
        self._number += 1
        target = self._folder / f"case{self._number}"
        shutil.copytree(source, target, copy_function=os.link, ignore=shutil.ignore_patterns("held", ".held"))
        return target


def _unclear(case: Case, ended: Ended) -> str:
    """Why a refusal is not clear; empty where it is."""
    if ended.status == 0:
        return ""
    usage = ended.status == 2 and ended.output.startswith("usage:")
    lines = [line for line in ended.output.splitlines() if line.startswith("error: ")]
    if "Traceback" in ended.output or (ended.status != 1 and not usage):
        return f"status {ended.status}: {ended.output[-1500:]}"
    if not usage and len(lines) != 1:
        return f"{len(lines)} error lines: {ended.output[-1500:]}"
    told = ended.output[ended.output.find("error: ") :]
    if len(told) > LONGEST:
        return f"an error of {len(told)} characters"
    if case.names not in told:
        return f"the error does not name {case.names}: {told[:500]}"
    return ""


def _line(ended: Ended) -> str:
    return ended.output[ended.output.find("error: ") :].strip()[:300]


def run_cases(smoke: Path, folder: Path, cases: list[Case]) -> list[Verdict]:
    """The verdict on every case."""
    with Server() as server:
        fuzz = Fuzz(server, smoke, folder)
        return [fuzz.judge(case) for case in cases]


def page(verdicts: list[Verdict]) -> str:
    """The whole document."""
    lines = [
        HEAD,
        "| input | tried | refused clearly | accepted, with a reason | neither |",
        "|---|---:|---:|---:|---:|",
    ]
    kinds = dict.fromkeys(verdict.case.kind for verdict in verdicts)
    counts = {kind: Counter(one.outcome for one in verdicts if one.case.kind == kind) for kind in kinds}
    total: Counter[str] = sum(counts.values(), Counter())
    for kind, count in [*counts.items(), ("**all**", total)]:
        refused, accepted, wrong = (count[name] for name in ("refused", "accepted", "wrong"))
        lines.append(f"| {kind} | {count.total()} | {refused} | {accepted} | {wrong} |")
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.outcome == "accepted":
            reasons[verdict.case.kind, verdict.why].append(verdict.case.name)
    lines += ["", "## What is accepted, and why", "", "| input | reason | cases | for example |", "|---|---|---:|---|"]
    lines += [f"| {kind} | {why} | {len(names)} | `{_shown(names[0])}` |" for (kind, why), names in reasons.items()]
    return "\n".join([*lines, ""])


def _shown(name: str) -> str:
    return name.replace("|", "\\|")[:80]


def main(arguments: list[str]) -> int:
    """0 when every case was refused clearly or accepted with a reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=int, default=1, help="take every so-many-th case")
    parser.add_argument("--only", default="", help="cases whose kind and name match this; the page is not written")
    parser.add_argument("--smoke", type=Path, help="a finished smoke pipeline, if there is one")
    chosen = parser.parse_args(arguments)
    cases = [case for case in all_cases() if re.search(chosen.only, f"{case.kind}: {case.name}")][:: chosen.share]
    with tempfile.TemporaryDirectory(prefix="fuzz") as place:
        smoke = chosen.smoke or make_workspace(Path(place) / "smoke", ROOT / "recipes/smoke.yaml")
        if chosen.smoke is None and (done := dvc(smoke, "repro")).returncode:
            raise RuntimeError(done.stdout)
        verdicts = run_cases(smoke, Path(place) / "fuzz", cases)
    wrong = [verdict for verdict in verdicts if verdict.outcome == "wrong"]
    for verdict in wrong:
        print(f"--- {verdict.case.kind}: {verdict.case.name} ({verdict.case.stage!r})\n{verdict.why}")
    if not chosen.only and chosen.share == 1:
        PAGE.write_text(page(verdicts), encoding="utf-8")
    print(f"{len(verdicts)} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
