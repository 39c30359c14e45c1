"""The reward `code` runs a completion's program with the prompt's tests, isolated (docs/rewards.md)."""

from __future__ import annotations

import ast
import atexit
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from posttrain.errors import RewardError
from posttrain.measure.record import note
from posttrain.rewards.reward import Context, Examples, Reward, ScoreFn
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.sandbox.command import Command
from posttrain.sandbox.parent import Limits, Sandbox, SandboxError, SandboxFailed
from posttrain.sandbox.verdicts import Verdict, judged
from posttrain.settings.params import Params

_BLOCK: Final = re.compile(r"^([ \t]*)```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
_FUTURE: Final = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*(?:from __future__ import [^\n]*(?:\n|\Z))+")
_PYTHON: Final = frozenset({"", "python", "python3", "py"})
MIB: Final = 2**20


class CodeOptions(Params):
    """How programs are extracted, run and scored."""

    take: Literal["block", "text"] = Field(
        "block",
        description="block: the program is the last ```python block, or else the last block without a language; "
        "text: the whole completion",
    )
    score: Literal["all", "share"] = Field(
        "all", description="all: 1 if every test passes, else 0; share: the share of tests that pass"
    )
    seconds: float = Field(
        5.0, gt=0, le=600, description="CPU seconds of a program; wall time may be four times as long"
    )
    memory_mib: int = Field(512, ge=64, le=65_536, description="address space of a program")
    output_kib: int = Field(1024, ge=1, le=65_536, description="maximum output of a program")
    scratch_mib: int = Field(16, ge=1, le=65_536, description="size of the folder that a program may write to")
    sandbox: str = Field(
        "kernel",
        description="kernel: Linux isolation; error if unavailable. none: not isolated, only for programs that you "
        "trust. Else a command that starts each program in your own sandbox, e.g. docker run",
    )

    def limits(self) -> Limits:
        """Return the limits of a program."""
        return Limits(self.seconds, self.memory_mib * MIB, self.scratch_mib * MIB, output=self.output_kib * 1024)


class CasePair(Params):
    """An input, and the output that a program must print for it."""

    stdin: str = ""
    stdout: str


class CodeInfo(Params):
    """Keys of the prompt's `info` that the reward `code` reads. Other keys are ignored."""

    model_config = ConfigDict(extra="ignore")

    tests: str | list[str] | list[CasePair] = Field(description="assertions as Python, or inputs with outputs")
    entry_point: str | None = Field(
        None, description="the function that the tests call; none: all names that the tests use but do not define"
    )
    setup: str = Field("", description="Python that runs before the program and before the tests, e.g. imports")
    solution: str | None = Field(
        None, description="a program that passes the tests, for the check before the first step"
    )


_INFO: Final = TypeAdapter(CodeInfo)


def code_info(info: Mapping[str, Any]) -> CodeInfo:
    """Return the tests of a prompt. A ValueError explains an error in them."""
    if "tests" not in info and "stdout" in info:
        info = {**info, "tests": [{"stdin": info.get("stdin", ""), "stdout": info["stdout"]}]}
    if "tests" not in info:
        raise ValueError("its info has no `tests`")
    try:
        parsed = _INFO.validate_python(info)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"][:1] == ("tests",):
            raise ValueError(
                "info.tests is neither Python text with assertions nor a list of {stdin, stdout}"
            ) from error
        raise ValueError(f"info.{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if not parsed.tests:
        raise ValueError("info.tests is empty")
    for name, text in (("tests", assertions(parsed)), ("setup", parsed.setup)):
        _check_python(name, text)
    if assertions(parsed) and not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(assertions(parsed)))):
        raise ValueError("info.tests has no assert statement; methods such as assertEqual are not read")
    return parsed


def _check_python(name: str, text: str) -> None:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"info.{name} is not valid Python ({error})") from error


def assertions(info: CodeInfo) -> str:
    """Return all assertions as one Python text; empty if the tests are inputs with outputs."""
    if isinstance(info.tests, str):
        return info.tests
    return "\n".join(test for test in info.tests if isinstance(test, str))


def program_of(text: str, take: str, entry_point: str | None = None) -> str | None:
    """The program in a completion, after its thoughts; None if there is none.

    It is the first block that defines the entry point, since an example of its use may follow; else the last block.
    """
    if "<think>" in text or "</think>" in text:
        text = text.rpartition("</think>")[2] if "</think>" in text else ""
    if take == "text":
        return text if text.strip() else None
    blocks = [
        (language, re.sub(rf"^[ \t]{{1,{len(blanks)}}}", "", code, flags=re.MULTILINE) if blanks else code)
        for blanks, language, code in _BLOCK.findall(text)
        if language.lower() in _PYTHON
    ]
    programs = [code for language, code in blocks if language] or [code for _, code in blocks]
    if entry_point is not None:
        defines = re.compile(
            rf"^(?:(?:async\s+)?def|class)\s+{re.escape(entry_point)}\b|^{re.escape(entry_point)}\s*=", re.M
        )
        programs = [code for code in programs if defines.search(code)][:1] or programs
    return programs[-1] if programs else None


def judge_program(box: Sandbox | Command, code: str, info: CodeInfo, options: CodeOptions) -> Verdict:
    """Run the prompt's tests on a program."""
    request: dict[str, Any] = {"code": code, "share": options.score == "share"}
    if tests := assertions(info):
        request |= {"tests": tests, "setup": info.setup, "entry_point": info.entry_point}
    else:
        first = _FUTURE.match(code)  # has to stay first
        head, rest = (code[: first.end()], code[first.end() :]) if first else ("", code)
        request["code"] = f"{head}\n{info.setup}\n{rest}" if info.setup else code
        request["cases"] = [[test.stdin, test.stdout] for test in info.tests if isinstance(test, CasePair)]
    limits = options.limits()
    return box.judge(request, limits) if isinstance(box, Command) else judged(box, request, limits)


def _score(rollout: Rollout, options: CodeOptions) -> Score:
    try:
        info = code_info(rollout.prompt.info)
    except ValueError as error:
        return Score(0.0, "error", str(error))
    code = program_of(rollout.text, options.take, info.entry_point)
    if code is None:
        return Score(0.0, "unparseable", "no ```python block" if options.take == "block" else "no program")
    try:
        verdict = judge_program(sandbox(options.sandbox), code, info, options)
    except (SandboxFailed, OSError) as error:
        return Score(0.0, "infrastructure", str(error))
    if verdict.fault:
        return Score(0.0, "error", verdict.fault)
    if options.score == "share":
        return Score(verdict.passed / verdict.count, reason=verdict.reason)
    return Score(float(verdict.passed == verdict.count), reason=verdict.reason)


_BOXES: dict[tuple[str, int], Sandbox | Command] = {}
_LOCK = threading.Lock()


def sandbox(kind: str) -> Sandbox | Command:
    """Return the sandbox of this process. Start it on first use, and again after it has ended."""
    with _LOCK:
        key = (kind, os.getpid())  # a forked process must not share the parent's
        if key not in _BOXES or not _BOXES[key].alive:
            if key in _BOXES:
                _BOXES.pop(key).close()
            _BOXES[key] = Sandbox(isolated=kind == "kernel") if kind in ("kernel", "none") else Command(kind)
        return _BOXES[key]


@atexit.register
def close_sandboxes() -> None:
    """End the sandboxes of this process."""
    for key in [key for key in _BOXES if key[1] == os.getpid()]:
        _BOXES.pop(key).close()


def _score_fn(options: CodeOptions, context: Context) -> ScoreFn:
    """Start the sandbox or fail. The kind of isolation is printed and stored in the stage's record."""
    try:
        mechanisms = sandbox(options.sandbox).mechanisms
    except SandboxError as error:
        raise RewardError(what=error.what, where=context.place, fix=error.fix) from error
    except SandboxFailed as error:
        fix = "Run `python -m posttrain.sandbox` to see what this machine supports"
        raise RewardError(what=str(error), where=context.place, fix=fix) from error
    command = [] if options.sandbox == "kernel" else [options.sandbox]
    held = ", ".join([*command, *(mechanisms if options.sandbox != "none" else [])])
    note(sandbox=held)
    warning = " Programs of the policy run with all your rights (sandbox: none)." if held == "none" else ""
    print(f"{context.place}: isolation: {held}.{warning}", file=sys.stderr)
    return lambda rollouts: _scores(rollouts, options)


def _scores(rollouts: Sequence[Rollout], options: CodeOptions) -> list[Score]:
    """Return a score for each program. As many run at a time as there are processors."""
    sandbox(options.sandbox)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "code") as pool:
        return list(pool.map(lambda rollout: _score(rollout, options), rollouts))


def _cannot_score(prompt: Prompt, options: CodeOptions) -> str | None:  # noqa: ARG001
    try:
        code_info(prompt.info)
    except ValueError as error:
        return str(error)
    return None


def _examples(prompt: Prompt, options: CodeOptions) -> Examples:
    """Return the prompt's solution, if there is one, and programs that pass no tests."""
    info = code_info(prompt.info)
    wrong = ["pass", "raise SystemExit(0)", "import os; os._exit(0)"]
    if assertions(info) and info.entry_point and info.entry_point.isidentifier():
        wrong.append(f"def {info.entry_point}(*args, **kwargs):\n    raise StopIteration")
    return Examples(_written([info.solution] if info.solution else [], options), _written(wrong, options))


def _written(programs: Sequence[str], options: CodeOptions) -> list[str]:
    return [f"```python\n{program}\n```" if options.take == "block" else program for program in programs]


REWARDS = {"code": Reward(_score_fn, CodeOptions, _cannot_score, examples=_examples)}
