"""Run a stage from the command line: `python -m stages.NAME [RUN]` or `python -m posttrain run NAME [RUN]`."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import psutil

from posttrain.errors import FREE_MEMORY, ParamsError, PosttrainError, from_system, lacks_resources
from posttrain.files import write_text
from posttrain.measure.masking import masked
from posttrain.measure.phases import CLOCK
from posttrain.measure.progress import keep_progress
from posttrain.measure.record import record_path, write_record
from posttrain.measure.stage_log import start_log
from posttrain.measure.stall import print_stacks_on_signal, watch_stalls
from posttrain.measure.terminal import escaped, finish_streams, make_streams_safe
from posttrain.measure.timings import report_timings
from posttrain.pipeline.lock import inputs
from posttrain.pipeline.lock.check_inputs import check_input_names
from posttrain.pipeline.lock.lock_check import check_and_sync, note_finished
from posttrain.pipeline.lock.repair_dvc import follow_move
from posttrain.pipeline.lock.status import left, place
from posttrain.pipeline.processes.elsewhere import start_elsewhere
from posttrain.pipeline.processes.launch import abandon, end, end_failed, explained_deaths, on_death
from posttrain.pipeline.processes.schedulers import LOCAL, check_size, is_scheduled, is_worker, processes_of
from posttrain.pipeline.workspace import failure_path, lock_stage, remove_committed

ORPHAN_CHECK_S = 0.5
SHOWN_LINES = 20
"""The last lines that a failed process of another program's run prints."""
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def run_stage(work: Callable[[], None]) -> None:
    """Run a stage that has no named runs."""
    parser = _parser(work)
    arguments, stage = parser.parse_args(), parser.prog.rpartition(" ")[2]
    _guarded(stage, stage, lambda: _held(stage, work, arguments))


def run_named_stage(work: Callable[[str], None]) -> None:
    """Run a stage for one of its named runs in params.yaml."""
    parser = _parser(work)
    parser.add_argument("run", help="the run's name in params.yaml")
    arguments, stage = parser.parse_args(), parser.prog.rpartition(" ")[2]

    def held() -> None:
        name = "/".join(checked_name(part) for part in arguments.run.split("/"))
        _held(f"{stage}@{name}", lambda: work(name), arguments)

    _guarded(f"{stage} {arguments.run}", f"{stage}@{arguments.run}", held)


def _held(stage: str, work: Callable[[], None], arguments: argparse.Namespace) -> None:
    """Run the work. Its outputs count only if its inputs are unchanged at the end."""
    print_stacks_on_signal()
    hear_ctrl_c()
    if is_worker():  # the first process of the run does the rest
        _help(stage, work)
        return
    check_input_names(stage)
    follow_move(Path.cwd())
    lock_stage(stage)
    start_log(stage)
    keep_progress(stage)
    _say(place(stage))
    watch_stalls(stage)
    inputs.fix(stage)
    with _watched(stage, arguments), explained_deaths(stage):
        work()
    inputs.check_imports()
    write_record(stage, inputs.used())
    inputs.confirm()
    inputs.sync_outputs()
    note_finished(record_path(stage))
    report_timings(stage)
    _say(left(stage))


def hear_ctrl_c() -> None:
    """Let Ctrl-C end a wait for another thread. The handler that polars installs on import would resume the wait."""
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))


def _say(line: str) -> None:
    if line:
        print(line, file=sys.stderr, flush=True)


def _help(stage: str, work: Callable[[], None]) -> None:
    """Run the work in a process that writes no outputs. A host's first process records the inputs to compare them."""
    if is_scheduled():
        check_size(stage, processes_of(stage))
        if os.environ.get(LOCAL, "0") == "0":
            inputs.fix(stage)
    with explained_deaths(stage), _silent() if is_scheduled() else contextlib.nullcontext():
        work()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Print nothing, since the first process says the same. If the work fails, print the last lines."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield
    except BaseException:
        print(*said.getvalue().splitlines()[-SHOWN_LINES:], sep="\n", file=sys.stderr)
        raise


def checked_name(name: str) -> str:
    """Return the run's name if it is a valid folder name."""
    if not RUN_NAME.fullmatch(name):
        fix = "Use up to 100 letters, digits, '-' and '_', beginning with a letter or digit"
        raise ParamsError(what=f"'{name[:100]}' is not a valid name for a run", where="params.yaml", fix=fix)
    return name


def _parser(work: Callable[..., None]) -> argparse.ArgumentParser:
    module = sys.modules[work.__module__]
    name = module.__spec__.name if module.__spec__ else work.__module__
    parser = argparse.ArgumentParser(
        prog=f"posttrain run {name.rpartition('.')[2]}",
        description=module.__doc__,
        epilog="Parameters come from params.yaml; set POSTTRAIN_TRACEBACK=1 to see where an error was raised.",
    )
    profile = "write torch's trace of the first steps into profiles/; POSTTRAIN_PROFILE=1 does the same"
    parser.add_argument("--profile", action="store_true", help=f"{profile} under dvc repro. Results stay the same")
    return parser


def _watched(stage: str, arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Return a profiler around the stage's work if requested."""
    if not arguments.profile and os.environ.get("POSTTRAIN_PROFILE", "0") in ("", "0"):
        return contextlib.nullcontext()
    from posttrain.measure.profile import profiled

    return profiled(stage)


def _guarded(name: str, stage: str, work: Callable[[], None]) -> None:
    """Run the work and exit."""
    CLOCK.begin()
    make_streams_safe()
    try:
        _explained(name, stage, work)
    except BaseException as error:
        end_failed(error)
        raise
    end()
    # Everything is written. A normal exit with torch and transformers loaded takes 2 s of CPU time more (measured).
    finish_streams()
    os._exit(0)


def _explained(name: str, stage: str, work: Callable[[], None]) -> None:
    """Run the work. A user-fixable error becomes one line and exit code 1, without a traceback."""
    try:
        if not is_worker():
            _end_with_dvc()
            if start_elsewhere(stage):
                return
            _prepare(stage)
        work()
    except PosttrainError as error:
        _fail(stage, str(error), 1)
    except OSError as error:
        if error.errno is None:  # raised by a library, not by the system: a defect of the code
            _save_failure(stage, traceback.format_exc(limit=-1))
            raise
        _fail(stage, str(from_system(error, f"the stage {name}")), 1)
    except (MemoryError, RuntimeError) as error:
        if not lacks_resources(error):
            _save_failure(stage, traceback.format_exc(limit=-1))
            raise
        if "thread" in str(error):
            _fail(stage, f"{name}: the system gave it no more threads. {FREE_MEMORY}", 1)
        fix = (
            "If it samples, lower sampling.rows or the number of samples; else lower micro_tokens. Or use a smaller "
            "model"
        )
        _fail(stage, f"{name}: the memory ran out. {fix}", 1)
    except KeyboardInterrupt:
        _fail(stage, f"{name} was interrupted. The next run resumes from the last checkpoint, where there is one", 130)
    except Exception:
        _save_failure(stage, traceback.format_exc(limit=-1))
        raise


def _prepare(stage: str) -> None:
    """Prepare a stage: check what DVC recorded, and remove leftovers of earlier runs."""
    failure_path(stage).unlink(missing_ok=True)
    on_death(partial(_save_failure, stage))
    if "DVC_ROOT" in os.environ:
        check_and_sync(Path())  # before the checkpoints of recorded runs are removed
    remove_committed()


def _save_failure(stage: str, text: str) -> None:
    """Save the error. `posttrain show results` shows it instead of the result."""
    if is_worker():
        return
    with contextlib.suppress(OSError):  # a full disk must not hide the error itself
        write_text(failure_path(stage), f"{escaped(masked(text.strip()))}\n")


def _fail(stage: str, line: str, status: int) -> None:
    """Exit with one line on stderr, after the traceback if POSTTRAIN_TRACEBACK is set."""
    _save_failure(stage, line)
    if os.environ.get("POSTTRAIN_TRACEBACK"):
        traceback.print_exc()
    print(f"error: {masked(line)}", file=sys.stderr)
    raise SystemExit(status) from None


def _end_with_dvc() -> None:
    """Watch the DVC process that started this stage. A process started by a scheduler has none."""
    dvc = _dvc_process() if "DVC_ROOT" in os.environ else None
    if dvc or ("DVC_ROOT" in os.environ and not is_scheduled()):
        threading.Thread(target=_end_with, args=(dvc,), daemon=True).start()


def _dvc_process() -> psutil.Process | None:
    """Return the DVC process that started this stage; None if it has ended.

    A shell, or another program in the command such as `timeout` or `uv run`, may be between the two processes. The
    ancestors of an orphan are init and session managers, which are not Python programs.
    """
    ancestors = psutil.Process().parents()
    return next((above for above in ancestors if above.name().casefold().startswith(("python", "dvc"))), None)


def _end_with(dvc: psutil.Process | None) -> None:
    """Exit once DVC has ended. An orphan would write into outputs that the next run writes too."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while dvc and dvc.is_running() and dvc.status() != psutil.STATUS_ZOMBIE:
            time.sleep(ORPHAN_CHECK_S)
    print(
        "error: the dvc process that started this stage has ended, so the stage ends too", file=sys.stderr, flush=True
    )
    finish_streams()
    abandon()
    os._exit(1)
