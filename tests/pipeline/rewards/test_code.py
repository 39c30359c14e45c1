"""The reward `code`: which program of a completion is judged, its score, and its status."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from posttrain.errors import RewardError
from posttrain.measure.record import _NOTED
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.runs.task_tables import generated
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.rewards import code
from posttrain.rewards.catalog import REWARDS
from posttrain.rewards.code import CodeOptions, program_of
from posttrain.rewards.reward import Context
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.sandbox.verdicts import Verdict
from posttrain.settings.params import check
from posttrain.tasks.task import load_task

CONTEXT = Context(Runtime(DeviceParams()), "online.runs.grpo", name="code")
ASSERTS = {"tests": ["assert f(1) == 2", "assert f(2) == 3"], "entry_point": "f"}
PAIRS = {"tests": [{"stdin": "1\n", "stdout": "2\n"}, {"stdin": "5\n", "stdout": "6\n"}]}
RIGHT = {"asserts": "def f(x): return x + 1", "pairs": "print(int(input()) + 1)"}
WRONG = {"asserts": "def f(x): return 2", "pairs": "print(2)"}
INFO: dict[str, dict[str, Any]] = {"asserts": ASSERTS, "pairs": PAIRS}


def prompt_of(info: dict[str, Any]) -> Prompt:
    return Prompt("p1", [{"role": "user", "content": "Write it."}], [], info=info)


def score(text: str, info: dict[str, Any], **options: Any) -> Score:
    rollout = Rollout(prompt_of(info), 0, TokenRow([], []), [], text, "stop")
    (found,) = REWARDS["code"].score_fn(CodeOptions(**options), CONTEXT)([rollout])
    assert isinstance(found, Score)
    return found


def fenced(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nDone."


@pytest.mark.parametrize("form", INFO)
def test_right_programs_score_1_and_others_0_or_their_share(form: str) -> None:
    assert score(fenced(RIGHT[form]), INFO[form]) == Score(1.0)
    wrong = score(fenced(WRONG[form]), INFO[form])
    assert (wrong.value, wrong.status) == (0.0, "ok") and wrong.reason
    assert score(fenced(WRONG[form]), INFO[form], score="share").value == 0.5
    assert score(fenced("1 / 0"), INFO[form]).status == "ok"
    assert score(fenced("not Python"), INFO[form], score="share").value == 0.0


def test_one_pair_may_stand_alone() -> None:
    assert score(fenced(RIGHT["pairs"]), {"stdin": "1", "stdout": "2"}).value == 1.0


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```", "a\n"),
        ("```python\na\n```\nor\n```py\nb\n```", "b\n"),
        ("```\na\n```", "a\n"),
        ("  ```Python\n  a\n    b\n c\n  ```", "a\n  b\nc\n"),
        ("```python\na\n```\n```text\noutput\n```", "a\n"),
        ("```python\na\n```\n```python\nb", "a\n"),
        ("```python\na\n```\nOutput:\n```\n6\n```", "a\n"),
        ("```\na\n```\n```\nb\n```", "b\n"),
        ("```python\n```", ""),
        ("```python\na", None),
        ("def f(x): return x + 1", None),
        ("`a`", None),
        ("", None),
    ],
)
def test_the_last_closed_python_block_is_the_program(text: str, program: str | None) -> None:
    assert program_of(text, "block") == program


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\ndef f(x): return x\n```\nUse:\n```python\nprint(f(1))\n```", "def f(x): return x\n"),
        ("```python\nimport os\n```\n```python\nclass f: pass\n```", "class f: pass\n"),
        ("```python\nf = len\n```\n```python\ng = len\n```", "f = len\n"),
        ("```python\na\n```\n```python\ndef ff(x): return x\n```", "def ff(x): return x\n"),
        (
            "<think>```python\ndef f(x): return 0\n```</think>\n```python\ndef f(x): return 1\n```",
            "def f(x): return 1\n",
        ),
        ("<think>\n```python\ndef f(x): return 0\n```\n</think>\nDone.", None),
        ("<think>\n```python\ndef f(x): return 0\n```\n", None),
    ],
)
def test_the_first_block_that_defines_the_entry_point_is_the_program(text: str, program: str | None) -> None:
    assert program_of(text, "block", "f") == program


@pytest.mark.parametrize("call", ["exit", "quit"])
def test_a_program_may_exit(call: str) -> None:
    assert score(fenced(f"print(int(input()) + 1)\n{call}()"), INFO["pairs"]).value == 1.0


@pytest.mark.parametrize("form", INFO)
def test_a_program_that_python_refuses_is_wrong(form: str) -> None:
    """It is compiled by itself: with this library's `from __future__` names in annotations would be read by nobody."""
    typed = {"asserts": "def f(x: List[int]) -> int: return x + 1", "pairs": "x: List[int] = []\n" + RIGHT["pairs"]}
    found = score(fenced(typed[form]), INFO[form])
    assert found.value == 0.0 and ("NameError" in found.reason or "exit status" in found.reason), found.reason
    fields = "from dataclasses import *\n@dataclass\nclass A:\n    x: int\nassert fields(A)[0].type is int\n"
    assert score(fenced(fields + RIGHT[form]), INFO[form]).value == 1.0


@pytest.mark.parametrize(
    "program",
    [
        "import argparse, sys\nargparse.ArgumentParser().parse_args()\nprint(int(input()) + len(sys.argv))",
        "import sys\nprint(int(input()) + 1)\nsys.stdout.close()",
        "out = open(1, 'w')\nout.write(str(int(input()) + 1))",
        "import io, sys\nprint(int(input()) + 1)\nsys.stdout = io.StringIO()\nprint('kept')",
    ],
)
def test_a_program_begins_and_ends_as_in_python(program: str) -> None:
    assert score(fenced(program), PAIRS) == Score(1.0)


def test_what_is_from_the_future_stays_before_the_setup() -> None:
    program = "# the answer\nfrom __future__ import annotations\nprint(int(input()) + int(cos(0)))"
    assert score(fenced(program), {**PAIRS, "setup": "from math import cos"}) == Score(1.0)


def test_a_completion_without_a_program_is_not_parsed() -> None:
    assert score("I cannot.", ASSERTS) == Score(0.0, "unparseable", "no ```python block")
    assert score(RIGHT["asserts"], ASSERTS, take="text").value == 1.0
    assert score(" \n", ASSERTS, take="text").status == "unparseable"


@pytest.mark.slow
def test_what_is_too_slow_too_large_or_too_loud_is_wrong() -> None:
    for program, reason in {
        "while True: pass": r"more than 0\.2 seconds of processor time|longer than 0\.8 seconds",
        "import time; time.sleep(60)": r"longer than 0\.8 seconds",
        "print('x' * 10**5)": "more than 1,024 bytes of output",
        "x = bytes(10**9)": "MemoryError",
    }.items():
        found = score(fenced(program), PAIRS, seconds=0.2, output_kib=1, memory_mib=128)
        assert (found.value, found.status) == (0.0, "ok") and re.search(reason, found.reason)


def test_programs_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = threading.Barrier(min(len(os.sched_getaffinity(0)), 2))

    def judge(*arguments: Any) -> Verdict:
        meeting.wait(60)  # breaks where only one program is judged at a time
        return judge_program(*arguments)

    judge_program = code.judge_program
    monkeypatch.setattr(code, "judge_program", judge)
    texts = [fenced(RIGHT["asserts"]), fenced("def f(x): return x")] * 2
    rollouts = [Rollout(prompt_of(ASSERTS), 0, TokenRow([], []), [], text, "stop") for text in texts]
    scores = REWARDS["code"].score_fn(CodeOptions(), CONTEXT)(rollouts)
    assert [found.value for found in scores] == [1.0, 0.0, 1.0, 0.0]


def test_tests_that_cannot_judge_are_an_error() -> None:
    found = score(fenced(RIGHT["asserts"]), {"tests": "assert f(unknown) == 2", "entry_point": "f"})
    assert found.status == "error" and "NameError" in found.reason
    assert score(fenced("x = 1"), {}).status == "error"


def test_a_sandbox_that_dies_is_infrastructure_and_starts_again() -> None:
    assert score(fenced(RIGHT["asserts"]), ASSERTS).value == 1.0
    judge = REWARDS["code"].score_fn(CodeOptions(), CONTEXT)
    rollout = Rollout(prompt_of(ASSERTS), 0, TokenRow([], []), [], fenced(RIGHT["asserts"]), "stop")
    zygote = psutil.Process(code.sandbox("kernel")._process.pid)
    zygote.suspend()
    zygote.kill()  # it dies while it is asked
    (first,) = judge([rollout])
    assert isinstance(first, Score) and (first.status == "infrastructure" or first.value == 1.0)
    (second,) = judge([rollout])
    assert second == Score(1.0)
    assert code.sandbox("kernel")._process.pid != zygote.pid


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({}, "its info has no `tests`"),
        ({"tests": ""}, "info.tests is empty"),
        ({"tests": []}, "info.tests is empty"),
        ({"tests": "assert f("}, "info.tests is not valid Python"),
        ({"tests": "f(1)"}, "info.tests has no assert statement"),
        ({"tests": 3}, "info.tests"),
        ({"tests": [{"stdin": "1"}]}, "nor a list of {stdin, stdout}"),
        ({"tests": "class T(TestCase):\n    def test(self): self.assertEqual(f(1), 2)"}, "assertEqual are not read"),
        ({"tests": "assert f(1)", "setup": "def"}, "info.setup is not valid Python"),
        ({"tests": "assert f(1)", "entry_point": 3}, "info.entry_point"),
    ],
)
def test_prompts_without_usable_tests_are_left_out(info: dict[str, Any], why: str) -> None:
    found = REWARDS["code"].cannot_score(prompt_of(info), CodeOptions())
    assert found is not None and why in found and "\n" not in found


@pytest.mark.parametrize("form", INFO)
@pytest.mark.parametrize("take", ["block", "text"])
def test_the_examples_score_as_they_must(form: str, take: str) -> None:
    info = {**INFO[form], "solution": RIGHT[form]}
    options = CodeOptions(take=take)  # type: ignore[arg-type]
    found = REWARDS["code"].examples(prompt_of(info), options)
    assert len(found.right) == 1 and len(found.wrong) >= 3
    assert [score(text, info, take=take).value for text in found.right] == [1.0]
    assert {score(text, info, take=take).value for text in found.wrong} == {0.0}


def test_isolation_is_printed_and_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    _NOTED.pop("sandbox", None)
    assert score(fenced(RIGHT["asserts"]), ASSERTS).value == 1.0
    assert "seccomp" in str(_NOTED["sandbox"]) and "seccomp" in capsys.readouterr().err
    assert score(fenced(RIGHT["asserts"]), ASSERTS, sandbox="none").value == 1.0
    assert score(fenced(WRONG["asserts"]), ASSERTS, sandbox="none").value == 0.0
    assert _NOTED["sandbox"] == "none"
    assert "online.runs.grpo.reward.code: isolation: none. Programs of the policy run with all your rights" in (
        capsys.readouterr().err
    )
    _NOTED.pop("sandbox")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64")
def test_a_machine_that_cannot_isolate_refuses() -> None:
    source = """
        from tests.library.sandbox.driver import deny
        from posttrain.errors import RewardError
        from posttrain.rewards.code import REWARDS, CodeOptions
        from posttrain.rewards.reward import Context
        deny([272, 444])  # unshare, landlock_create_ruleset
        REWARDS["code"].score_fn(CodeOptions(sandbox="none"), Context(None, "here", name="code"))
        try: REWARDS["code"].score_fn(CodeOptions(), Context(None, "here", name="code"))
        except RewardError as error: print(error)
    """
    done = subprocess.run([sys.executable, "-c", dedent(source)], capture_output=True, text=True, check=True)
    assert "here.reward.code: this machine cannot isolate programs (namespaces: [Errno 1] unshare" in done.stdout
    assert "sandbox: none" in done.stdout and done.stdout.count("\n") == 1


def test_a_program_without_isolation_still_has_limits() -> None:
    for program, reason in {
        "while True: pass": "processor time|longer than",
        "x = bytes(10**9)": "MemoryError",
    }.items():
        found = score(fenced(program), PAIRS, seconds=0.2, memory_mib=128, sandbox="none")
        assert found.value == 0.0 and re.search(reason, found.reason)
    forks = "import os, time\nif os.fork() == 0: time.sleep(60)\nprint(2)"
    score(fenced(forks), PAIRS, sandbox="none")
    assert psutil.Process(code.sandbox("none")._process.pid).children(recursive=True) == []


def test_unknown_options_are_refused() -> None:
    with pytest.raises(Exception, match="memory_mib"):
        check(CodeOptions, {"memory": 3}, where="code", file=PARAMS_FILE)


@pytest.mark.slow
def test_the_task_programs_has_tests_that_its_solutions_pass() -> None:
    generator = load_task("programs").generator
    assert generator is not None
    sizes = {"demonstrations": 40, "heldout_demonstrations": 5, "documents": 50}
    sizes |= {"prompts": 15, "heldout_prompts": 5, "test_prompts": 5}
    tables = generated("programs", generator, generator.params(**sizes, most=3))
    assert tables["prompts"].equals(generated("programs", generator, generator.params(**sizes, most=3))["prompts"])
    problems = {kind: set(tables[kind]["problem"]) for kind in ("chat", "prompts")}
    test = set(tables["prompts"].filter(split="test")["problem"])
    assert not test & problems["chat"] and len(test) == 5
    for row in tables["prompts"].to_dicts():
        info = json.loads(row["info"])
        assert score(info["solution"], info, take="text") == Score(1.0)
    assert load_task("programs").reward_options == {"code": {"take": "text"}}
    right = generated("programs", generator, generator.params(**{**sizes, "flawed_share": 0.0}))["chat"]
    assert all(row["messages"][1]["content"].startswith("def f(x):\n x = ") for row in right.to_dicts())


BWRAP = "bwrap --ro-bind / / --unshare-all --die-with-parent --proc /proc --dev /dev --tmpfs /tmp --chdir /"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["wrapper", BWRAP])
def test_a_command_of_the_users_starts_each_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    if command == BWRAP and shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")
    wrapper, starts = tmp_path / "wrapper", tmp_path / "starts"
    wrapper.write_text(f'#!/bin/sh\necho "secret: $SECRET" >> {starts}\nexec "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("SECRET", "42")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for form, info in INFO.items():
        assert score(fenced(RIGHT[form]), info, sandbox=command).value == 1.0
        found = score(fenced(WRONG[form]), info, sandbox=command)
        assert (found.value, found.status, found.reason != "") == (0.0, "ok", True)
    assert "more than 0.2 seconds" in score(fenced("while True: pass"), PAIRS, sandbox=command, seconds=0.2).reason
    assert str(_NOTED["sandbox"]).startswith(command)
    if command == "wrapper":
        assert starts.read_text().splitlines() == ["secret: "] * 6  # once to try it


def test_a_command_that_is_missing_or_starts_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RewardError, match="'kernal' must be kernel, none or a command on this machine"):
        score("", PAIRS, sandbox="kernal")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "broken").write_text("#!/bin/sh\necho 'no such image' >&2\nexit 125\n")
    (tmp_path / "broken").chmod(0o755)
    with pytest.raises(RewardError, match="`broken` ended with status 125: no such image"):
        score("", PAIRS, sandbox="broken --rm python:3.12")
