"""What failures of a reward do to a run: GRPO with a reward that fails in several ways, left out or counted as 0.

python -m benchmarks.reward_faults            run what is missing in .reward-faults, then write reports/reward-faults.md
python -m benchmarks.reward_faults --table    write the page from the results that are there
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.learning import prepare, train_and_evaluate
from benchmarks.learning_trials import scores_per_prompt
from benchmarks.machine import machine
from posttrain.pipeline.compare.statistics import ALPHA, difference

PAGE = ROOT / "docs" / "reports" / "reward-faults.md"
SEEDS = (1, 2, 3)
REWARD = '''
"""The rule `correct`, and what goes wrong with it: chosen by a hash of the completion, so a run can be repeated."""

import hashlib
import os
import time
from pathlib import Path
from typing import Literal

from pydantic import Field

from posttrain.settings.params import Params
from posttrain.rewards.numeric import NumericOptions, expected_number, final_number
from posttrain.rewards.reward import rule
from posttrain.rollout import Score


class Faults(Params):
    kind: Literal["none", "down", "slow", "crash", "zero"] = Field("none", description="what goes wrong")
    share: float = Field(0.0, description="with this share of completions")
    once: bool = Field(False, description="whether it goes wrong only the first time")
    longer_than: int = Field(0, description="only with completions of more characters")


@rule(Faults)
def right(rollout, options):
    text = f"{rollout.prompt.id}:{rollout.sample}:{rollout.text}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    numeric = NumericOptions(after="####")
    found = final_number(rollout.text, numeric)
    score = float(found is not None and found == expected_number(rollout.prompt.answer, "####"))
    if int(digest[:8], 16) / 2**32 >= options.share or len(rollout.text) <= options.longer_than:
        return score
    if options.once:
        mark = Path(os.environ["FAULTS_SEEN"]) / digest
        if mark.exists():
            return score
        mark.touch()
    if options.kind == "slow":
        time.sleep(60)
    if options.kind == "crash":
        os._exit(1)
    return 0.0 if options.kind == "zero" else Score(0.0, "infrastructure", "the server is down")
'''
RULE = "faulty_server:right"
JUDGE = {"model": "judge", "key": "JUDGE_KEY", "prompt": "{answer} {completion}", "scale": [0, 1], "cache": False}
"""Its url is that of benchmarks/faulty_judge.py, which gives the scores of the rule."""
WORKING = 8
"""Characters of the longest completion without working: `#### -18`."""
CASES: dict[str, dict[str, Any]] = {
    "no failures": {RULE: {}},
    "half of the calls kill their worker process, the next one answers": {
        RULE: {"kind": "crash", "share": 0.5, "once": True}
    },
    "half of the requests to a judge fail: it hangs up, status 500, a page, nonsense": {"judge": JUDGE},
    "2 % kill every worker process, left out": {RULE: {"kind": "crash", "share": 0.02}},
    "5 % hang and are killed after 0.5 s, left out": {RULE: {"kind": "slow", "share": 0.05, "timeout": 0.5}},
    "the server is down for half of the completions with working, left out": {
        RULE: {"kind": "down", "share": 0.5, "longer_than": WORKING}
    },
    "the server is down for half of the completions with working, counted as 0": {
        RULE: {"kind": "zero", "share": 0.5, "longer_than": WORKING}
    },
    "the server is down for half of all completions, left out": {RULE: {"kind": "down", "share": 0.5}},
    "the server is down for half of all completions, counted as 0": {RULE: {"kind": "zero", "share": 0.5}},
}


def name_of(case: int, seed: int) -> str:
    """Return the run of a case and a seed."""
    return f"faults-{case}-{seed}"


@contextmanager
def faulty_judge(share: float) -> Iterator[str]:
    """The url of a judge that runs meanwhile."""
    command = [sys.executable, "-m", "benchmarks.faulty_judge", str(share)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        process.terminate()


def run_missing(place: Path) -> None:
    """Train and evaluate every case with every seed."""
    folder = place / "worker0"
    (folder / "custom").mkdir(exist_ok=True)
    (folder / "custom" / "faulty_server.py").write_text(REWARD, encoding="utf-8")
    os.environ["DVC_ROOT"] = str(folder)
    os.chdir(folder)
    os.environ["JUDGE_KEY"] = "none"
    for seed in SEEDS:
        for number, reward in enumerate(CASES.values()):
            run = name_of(number, seed)
            if (Path("results") / run / "metrics.json").is_file():
                continue
            with tempfile.TemporaryDirectory() as seen, faulty_judge(0.5) as url:
                os.environ["FAULTS_SEEN"] = seen
                added = {"weight": 1.0} | ({"url": url} if "judge" in reward else {})
                terms = {name: {**added, **options} for name, options in reward.items()}
                train_and_evaluate("online", run, settings_of(seed, terms))


def settings_of(seed: int, reward: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a GRPO run."""
    return {
        "algorithm": "grpo",
        "start": "sft/main",
        "data": "two_step/prompts",
        "corpus": "none",
        "reward_model": "none",
        "reward": reward,
        "seed": seed,
        "max_failed": 1.0,
        "rollout": {"rounds": 25, "prompts": 8, "group_size": 8, "minibatches": 2},
        "optimizer": {"lr": 1e-3, "schedule": "linear"},
    }


def page(place: Path) -> str:
    """Return the table of all cases."""
    results = place / "worker0" / "results"
    scores = [np.array([scores_per_prompt(results / name_of(i, seed)) for seed in SEEDS]) for i in range(len(CASES))]
    start = np.array([scores_per_prompt(place / "pipeline" / "results" / "sft")])
    lines = [
        "# Failures of a reward",
        "",
        "GRPO on the miniature's task with a reward that fails for some completions. A failed call is repeated where",
        "that can help; scores that stay unknown leave their group, its baseline and every denominator",
        "([rewards.md](../rewards.md#the-status-of-a-score)). For contrast two cases count them as 0. pass@1 on 120",
        "test prompts with 8 samples, mean of seeds; the difference from the run without failures has a 95 % interval",
        "over prompts and seeds.",
        "",
        "| reward | pass@1 | difference from no failures |",
        "|---|---:|---:|",
        f"| (the start model) | {start.mean():.3f} | |",
    ]
    for label, found in zip(CASES, scores, strict=True):
        change = difference(found, scores[0])
        low, high = (change.mean + sign * change.half(ALPHA) for sign in (-1, 1))
        shown = f"{change.mean:+.3f} [{low:+.3f}, {high:+.3f}]" if found is not scores[0] else ""
        spread = ", ".join(f"{one:.3f}" for one in found.mean(axis=1))
        lines.append(f"| {label} | {statistics.fmean(found.mean(axis=1)):.3f} ({spread}) | {shown} |")
    lines += [
        "",
        "Failures that fall at random halve the data. As zeros they are noise that is the same for every kind of",
        "answer, and here that costs less than the lost samples. Failures that fall on one kind of answer, such as",
        "the longer ones, are not noise: zeros then teach the policy to avoid it.",
    ]
    return "\n".join([*lines, "", f"`python -m benchmarks.reward_faults`; {machine()}.", ""])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reward_faults", description=__doc__)
    parser.add_argument("--workspace", type=Path, default=ROOT / ".reward-faults", help="where it trains")
    parser.add_argument("--table", action="store_true", help="only write the page")
    options = parser.parse_args(arguments)
    place: Path = options.workspace.resolve()
    if not options.table:
        place.mkdir(exist_ok=True)
        prepare(place)
        run_missing(place)
    PAGE.write_text(page(place), encoding="utf-8")
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
