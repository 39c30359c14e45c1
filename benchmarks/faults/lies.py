"""A state machine that looks for lies: users' actions in random order, and after each every reader's answer.

What was really trained and evaluated is written down by `spy.py`, next to the workspace. An answer is true, or it names
what does not belong together; anything else is a lie. The readers run in this process.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psutil
import yaml
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from benchmarks.faults import spy
from benchmarks.faults.asked import RUNS, Readers
from benchmarks.faults.ledger import Row
from tests.library.models.imported_models import policy_folder
from tests.pipeline.test_own_data import write_rows
from tests.workspace import environment, git, make_workspace

ACTIONS: Final = 8
REAL: Final = 6
"""Every so-many-th sequence trains for real, by `sft`."""
PARAMS = """format: 2
seed: 0
data:
  files:
    mine: {path: my/data, chat: demonstrations.jsonl, prompts: prompts.jsonl}
base:
  folders:
    start: {path: my/model}
"""
EXTERNAL = """external:
  runs:
    a:
      script: my/train.py
      command: [python, my/train.py, "0.1"]
      start: base/start
      data: none
      seed: 1
    b:
      script: my/train.py
      command: [python, my/train.py, "0.2"]
      start: base/start
      data: none
      seed: 2
"""
SFT = """sft:
  runs:
    a:
      start: base/start
      data: mine/chat
      epochs: 0.5
      optimizer: {lr: 0.1}
      seed: 1
    b:
      start: base/start
      data: mine/chat
      epochs: 0.5
      optimizer: {lr: 0.2}
      seed: 2
"""
EVALUATE = """evaluate:
  settings:
    data: mine/prompts
    reference: base/start
    reward_model: none
    prompts: 6
    samples: 2
    sampling: {{max_tokens: 8}}
    reward: {{"spread:spread": 1.0}}
  policies:
    a: {kind}/a
    b: {kind}/b
"""
TRAINER = """import os, random, shutil, sys
from safetensors.numpy import load_file, save_file

factor, seed = float(sys.argv[1]), os.environ["POSTTRAIN_SEED"]
start, out = os.environ["POSTTRAIN_START"], os.environ["POSTTRAIN_OUT"]
shutil.copytree(start, out, dirs_exist_ok=True)
os.remove(f"{out}/manifest.json")
weights = load_file(f"{out}/model.safetensors")
weights = {name: part * (1.0 + factor * random.Random(seed + name).random()) for name, part in weights.items()}
weights = {name: part.astype("float32") for name, part in weights.items()}
save_file(weights, f"{out}/model.safetensors", {"format": "pt"})
with open(os.environ["POSTTRAIN_METRICS"], "w") as file:
    file.write(f'"step","loss"\\n0,{factor}\\n1,{factor / 2}')
"""
SPREAD = """import hashlib

from posttrain.rewards.reward import rule


@rule()
def spread(rollout, options):
    return int(hashlib.sha256(rollout.text.encode()).hexdigest()[:4], 16) / 65535
"""


class Lies:
    """Sequences of actions on copies of a workspace that has run once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._templates: dict[str, Path] = {}

    def trial(self, seed: int, actions: int = ACTIONS) -> Row:
        """Try one sequence; `wrong` names the first lie, with the actions before it."""
        kind = "sft" if seed % REAL == REAL - 1 else "external"
        here = Path.cwd()
        machine = _machine(self.template(kind), self._folder / f"{kind}-{seed}", kind, seed)
        quiet = settings(
            max_examples=1, stateful_step_count=actions + 1, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        try:
            run_state_machine_as_test(machine, settings=quiet)
        finally:
            os.chdir(here)
        shutil.rmtree(self._folder / f"{kind}-{seed}", ignore_errors=True)
        done, lies, answers = machine.done, machine.lies, dict(machine.answers)
        wrong = f"{lies[0]} after {' / '.join(done)}" if lies else ""
        return {"fault": kind, "outcome": "no lie", "wrong": wrong, "done": done, "lies": lies, "answers": answers}

    def template(self, kind: str) -> Path:
        """A workspace in which both runs were trained and evaluated, and committed."""
        if kind not in self._templates:
            folder = self._folder / f"template-{kind}"
            folder.mkdir(parents=True)
            params = folder / "params.yaml"
            params.write_text(PARAMS + {"external": EXTERNAL, "sft": SFT}[kind] + EVALUATE.format(kind=kind))
            made = make_workspace(folder / "workspace", params)
            write_rows(made / "my/data")
            policy_folder(made / "my/model")
            (made / "my/train.py").write_text(TRAINER)
            (made / "custom/spread.py").write_text(SPREAD)
            shutil.copyfile(spy.__file__, folder / "spy.py")
            for stage in ("external", "sft", "evaluate"):
                _spied(made / "dvc.yaml", stage)
            git(made, "add", "--all")
            ran = _python(made, "-m", "dvc", "repro", ledger=folder / "ledger.jsonl")
            assert ran.returncode == 0, ran.stdout
            git(made, "add", "--all")
            git(made, "commit", "--quiet", "--message", "first")
            self._templates[kind] = folder
        return self._templates[kind]


def _spied(file: Path, stage: str) -> None:
    """Put the spy before a stage's command; it is found by a variable, so that a copy of the workspace can move."""
    text = file.read_text()
    file.write_text(text.replace(f"cmd: python -m stages.{stage} ", f'cmd: python "$SPY" "$LEDGER" stages.{stage} '))


def _python(folder: Path, *words: str, ledger: Path, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python in a workspace; after so many seconds it is killed with all that it has started."""
    env = environment() | {"SPY": str(ledger.with_name("spy.py")), "LEDGER": str(ledger)}
    process = subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, output)


class Machine(RuleBasedStateMachine):
    """The actions."""

    template: Path
    folder: Path
    kind: str
    done: list[str]
    lies: list[str]
    answers: Counter[str]
    """How often a reader gave a number that was true, and how often it named what does not belong together."""

    @initialize(number=st.integers(0, 2**32))
    def start(self, number: int) -> None:
        """Copy the workspace."""
        assume(number > 1000)  # the first example that hypothesis tries is the simplest one
        self.rng = random.Random(number)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.template, self.folder, symlinks=True)
        self.ledger, self.root = self.folder / "ledger.jsonl", self.folder / "workspace"
        os.chdir(self.root)
        self.rare = 1
        """Kills and sweeps that are left."""
        self.names = 0
        self._python("-m", "posttrain", "repair")
        self.done.clear()
        self.lies.clear()
        self.answers.clear()

    def _python(self, *words: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
        return _python(self.root, *words, ledger=self.ledger, seconds=seconds)

    def _git(self, *words: str) -> bool:
        done = subprocess.run(["git", *words], cwd=self.root, capture_output=True, check=False)
        return done.returncode == 0

    def _did(self, text: str) -> None:
        self.done.append(text)
        readers = Readers(self.root, self.kind, self.ledger, self.answers)
        self.lies += [f"{lie} [after action {len(self.done)}]" for lie in readers.lies()]

    @rule(run=st.sampled_from(RUNS), value=st.integers(3, 6), key=st.sampled_from(["rate", "seed", "samples"]))
    def edit(self, run: str, value: int, key: str) -> None:
        """Edit a setting of a run, or of all evaluations."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self._did(self._edited(run, value, key))

    def _edited(self, run: str, value: int, key: str) -> str:
        file = self.root / "params.yaml"
        text = file.read_text()
        if key == "samples":
            file.write_text(re.sub(r"samples: \d", f"samples: {value}", text))
            return f"samples {value}"
        before, name, after = text.partition(f"    {run}:\n")
        if key == "seed":
            after = re.sub(r"seed: \d", f"seed: {value}", after, count=1)
        else:
            after = re.sub(r'(train.py, "|lr: )0.\d', rf"\g<1>0.{value}", after, count=1)
        file.write_text(before + name + after)
        return f"{run}.{key} {value}"

    @rule(what=st.sampled_from(["trainer", "reward"]), value=st.integers(1, 3))
    def edit_code(self, what: str, value: int) -> None:
        """Edit the trainer or the reward."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        place, old, new = {
            "trainer": ("my/train.py", r"\(1\.\d \+", f"(1.{value} +"),
            "reward": ("custom/spread.py", r"/ 6553\d", f"/ 6553{value}"),
        }[what]
        file = self.root / place
        file.write_text(re.sub(old, new, file.read_text()))
        self._did(f"{what} {value}")

    @rule()
    def repro(self) -> None:
        """Run all."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self._python("-m", "dvc", "repro", "--keep-going")
        self._did("repro")

    @rule(run=st.sampled_from(RUNS), value=st.integers(3, 6), key=st.sampled_from(["rate", "seed", "samples"]))
    def edit_and_run(self, run: str, value: int, key: str) -> None:
        """Edit a setting and run all."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        edited = self._edited(run, value, key)
        self._python("-m", "dvc", "repro", "--keep-going")
        self._did(f"{edited} and repro")

    @rule(stage=st.sampled_from(["train", "evaluate"]), run=st.sampled_from(RUNS))
    def repro_one(self, stage: str, run: str) -> None:
        """Run a stage alone, with the code as it is."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        name = f"{self.kind if stage == 'train' else 'evaluate'}@{run}"
        self._python("-m", "dvc", "repro", "--single-item", "code")
        self._python("-m", "dvc", "repro", "--single-item", name)
        self._did(f"repro -s {name}")

    @rule()
    def commit(self) -> None:
        """Commit everything."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "more")
        self._did("commit")

    @rule(new=st.booleans(), outputs=st.booleans())
    def switch(self, new: bool, outputs: bool) -> None:  # noqa: FBT001
        """Make a branch, or go to the other one, with or without `dvc checkout`."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        if new:
            self.names += 1
            self._git("checkout", "--quiet", "-b", f"branch{self.names}")
        else:
            self._git("checkout", "--quiet", "-f", self._other())
        if outputs:
            self._python("-m", "dvc", "checkout", "--force")
        self._did(f"{'new branch' if new else 'other branch'}{' and dvc checkout' * outputs}")

    def _branches(self) -> list[str]:
        return git(self.root, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()

    def _other(self) -> str:
        current = git(self.root, "rev-parse", "--abbrev-ref", "HEAD").strip()
        others = [name for name in self._branches() if name != current] or [current]
        return self.rng.choice(others)

    @rule(how=st.sampled_from(["plain", "ours", "theirs", "rebase"]), end=st.sampled_from(["ours", "theirs", "repair"]))
    def merge(self, how: str, end: str) -> None:
        """Merge a branch of other settings that were run; a conflict ends in a commit, as people resolve it."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self._branch_off()
        words = ["rebase", self._other()] if how == "rebase" else ["merge", "--no-edit", self._other()]
        option = [f"-X{how}"] if how in ("ours", "theirs") else []
        if not self._git(*words[:1], *option, *words[1:]):
            self._resolved(end)
            if how == "rebase":
                subprocess.run(
                    ["git", "-c", "core.editor=true", "rebase", "--continue"],
                    cwd=self.root,
                    capture_output=True,
                    check=False,
                )
                self._git("rebase", "--abort")
        self._did(f"{how} merge, conflicts by {end}")

    def _branch_off(self) -> None:
        """Have another branch with other settings and results, where there is none."""
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "before the merge")
        if len(self._branches()) > 1:
            return
        back = git(self.root, "rev-parse", "--abbrev-ref", "HEAD").strip()
        self._git("checkout", "--quiet", "-b", "side")
        self._edited("a", 7, "rate")
        self._python("-m", "dvc", "repro", "code", f"{self.kind}@a", "evaluate@a")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "side")
        self._git("checkout", "--quiet", back)
        self._edited("a", 8, "seed")
        self._python("-m", "dvc", "repro", "code", f"{self.kind}@a", "evaluate@a")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "main")

    def _resolved(self, end: str) -> None:
        unmerged = git(self.root, "diff", "--name-only", "--diff-filter=U").split()
        if end == "repair":
            for file in unmerged:
                if file != "dvc.lock":
                    self._git("checkout", "--ours", file)
            self._python("-m", "posttrain", "repair", "merge")
        else:
            for file in unmerged:
                self._git("checkout", f"--{end}", file)
        self._git("add", "--all")
        self._git("commit", "--quiet", "--no-edit")

    @rule(pop=st.booleans())
    def stash(self, pop: bool) -> None:  # noqa: FBT001
        """Put what is not committed aside, and perhaps take it back."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self._git("stash")
        if pop:
            self._git("stash", "pop")
        self._did(f"stash{' and pop' * pop}")

    @rule(what=st.sampled_from(["checkout", "commit", "gc"]))
    def dvc(self, what: str) -> None:
        """Run `dvc checkout`, `dvc commit` or `dvc gc`."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        words = {"checkout": ["--force"], "commit": ["--force"], "gc": ["--workspace", "--force"]}[what]
        self._python("-m", "dvc", what, *words)
        self._did(f"dvc {what}")

    @rule(what=st.sampled_from(["cache", "model", "results", "record"]), run=st.sampled_from(RUNS))
    def remove(self, what: str, run: str) -> None:
        """Remove the cache or an output."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        place = {
            "cache": ".dvc/cache/files", "model": f"models/{self.kind}/{run}", "results": f"results/{run}/metrics.json",
            "record": f"records/evaluate/{run}.json",
        }[what]  # fmt: skip
        file = self.root / place
        shutil.rmtree(file, ignore_errors=True) if file.is_dir() else file.unlink(missing_ok=True)
        self._did(f"rm {place}")

    @rule(what=st.sampled_from(["model", "results", "entry"]), recorded=st.booleans())
    def copy(self, what: str, recorded: bool) -> None:  # noqa: FBT001
        """Copy what one run made over that of the other, and perhaps have DVC record it."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        if what == "entry":
            self._copy_entry()
        else:
            place = f"models/{self.kind}" if what == "model" else "results"
            if not (self.root / place / "a").is_dir():
                return
            shutil.rmtree(self.root / place / "b", ignore_errors=True)
            shutil.copytree(self.root / place / "a", self.root / place / "b")
            if recorded:
                name = f"{self.kind}@b" if what == "model" else "evaluate@b"
                self._python("-m", "dvc", "commit", "--force", name)
        self._did(f"copy {what}{' and dvc commit' * recorded}")

    def _copy_entry(self) -> None:
        """Edit dvc.lock by hand: give run b's entry the settings of params.yaml."""
        file = self.root / "dvc.lock"
        with contextlib.suppress(Exception):  # a lock in conflict stays
            lock = yaml.safe_load(file.read_text())
            params = yaml.safe_load((self.root / "params.yaml").read_text())
            entry = lock["stages"][f"{self.kind}@b"]
            entry["params"]["params.yaml"] = {f"{self.kind}.runs.b": params[self.kind]["runs"]["b"]}
            file.write_text(yaml.safe_dump(lock, sort_keys=False))

    @precondition(lambda self: self.rare > 0)
    @rule(seconds=st.floats(0.5, 9.0))
    def kill(self, seconds: float) -> None:
        """Kill `dvc repro` with all that it has started."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self.rare -= 1
        self._edited("b", self.rng.randint(3, 6), "rate")
        self._python("-m", "dvc", "repro", seconds=seconds)
        self._did(f"b.rate edited, repro killed after {seconds:.1f} s")

    @precondition(lambda self: self.rare > 0)
    @rule()
    def sweep(self) -> None:
        """Run two settings as experiments."""
        if self.lies:  # the rest of the sequence would say nothing more
            return
        self.rare -= 1
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", "before the sweep")
        self.names += 1
        target = f"{self.kind}@a"
        words = ["-m", "flows.sweep", f"s{self.names}", "-S", f"{self.kind}.runs.a.seed=3,4", "--targets", target]
        self._python(*words)
        self._did("sweep")

    def teardown(self) -> None:
        """Leave the workspace."""
        os.chdir(self.template)


def _machine(template: Path, folder: Path, kind: str, seed: int) -> type[Machine]:
    given: dict[str, Any] = {
        "template": template,
        "folder": folder,
        "kind": kind,
        "done": [],
        "lies": [],
        "answers": Counter(),
    }
    return type(f"Machine{seed}", (Machine,), given | {"_hypothesis_internal_use_seed": seed})
