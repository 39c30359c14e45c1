"""Runs stages in forked children, so that imports are paid once: python -m benchmarks.faults.server

Reads one JSON request a line and answers twice: with the child's process id when it has begun, and with its wait status
when it has ended. A child is the stage as `python -m stages.NAME` would run it: a session of its own, the arguments in
sys.argv, the module run as __main__.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

NAMES = tuple(sorted(file.stem for file in (Path(__file__).parents[2] / "stages").glob("[a-z]*.py")))
"""Not from the library: what a stage's process has imported counts in the digest of its code."""
WRITES = os.O_WRONLY | os.O_RDWR
FILE_EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "shutil.copyfile")


def load() -> None:
    """Import what the stages import, without running anything: a fork must find no thread at work."""
    for name in NAMES:
        importlib.import_module(f"stages.{name}")
    import transformers

    for part in ("Qwen3ForCausalLM", "Qwen3ForSequenceClassification", "PreTrainedTokenizerFast"):
        getattr(transformers, part)
    importlib.import_module("posttrain.models.files.import_model")
    importlib.import_module("posttrain.rewards.learned")
    importlib.import_module("pandera.polars")
    importlib.import_module("posttrain.pipeline.lock.code_manifest").PRELOADED.update(sys.modules)


def become(request: dict[str, Any]) -> None:
    """Turn this forked child into the stage that the request names."""
    os.setsid()
    # as bytes: under the locale C this process could not encode every path that it may be started in
    os.chdir(request["cwd"].encode())
    os.environb.update({name.encode(): value.encode() for name, value in request["env"].items()})
    out = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    fresh = Path(f"{request['trace']}.new")
    trace = fresh.open("w")
    faulthandler.register(signal.SIGUSR1, file=trace, all_threads=True)
    fresh.rename(request["trace"])  # tells that the signal may now be sent
    if request.get("before"):
        module, _, function = request["before"].partition(":")
        getattr(importlib.import_module(module), function)(**request["given"])
    if request["operation"] is not None:
        _die_at(request["operation"], trace, request["operations"])
    sys.modules.pop(f"stages.{request['stage']}")
    sys.argv = [f"stages/{request['stage']}.py", *request["arguments"]]
    runpy.run_module(f"stages.{request['stage']}", run_name="__main__", alter_sys=True)


def _die_at(operation: int, trace: Any, counted: str) -> None:
    """SIGKILL just before the so-many-th operation that changes a file or a folder; their number goes to `counted`."""
    seen, number = 0, os.open(counted, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def hook(event: str, arguments: Any) -> None:
        nonlocal seen
        if event in FILE_EVENTS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES):
            seen += 1
            os.pwrite(number, b"%d" % seen, 0)
            if seen == operation:
                faulthandler.dump_traceback(file=trace, all_threads=False)
                os.killpg(0, signal.SIGKILL)

    sys.addaudithook(hook)


def main() -> None:
    load()
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 70
            try:
                become(json.loads(line))
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 1
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
