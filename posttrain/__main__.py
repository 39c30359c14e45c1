"""`posttrain COMMAND`: check, inspect and repair a project. `posttrain COMMAND --help` shows an example."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from pathlib import Path

from posttrain.errors import (
    FREE_MEMORY,
    ParamsError,
    PipelineError,
    PosttrainError,
    from_system,
    lacks_resources,
    shortened,
)
from posttrain.extras import package_error
from posttrain.measure.masking import masked
from posttrain.measure.terminal import Coded, escaped, escaped_json, in_red, make_streams_safe
from posttrain.measure.text_table import folded
from posttrain.pipeline.commands import line
from posttrain.pipeline.params.parsed import import_late_parts


def script() -> int:
    """Run the command `posttrain`. Inside a checkout, use the checkout's code, as `python -m posttrain` does."""
    here = Path("posttrain/__main__.py")
    if here.is_file() and not here.samefile(__file__):
        os.execv(sys.executable, [sys.executable, "-m", "posttrain", *sys.argv[1:]])
    return process()


def process() -> int:
    """Run one command in a separate process, which imports only the parts of large packages that it uses."""
    import_late_parts()
    return main()


def main() -> int:
    """Run one command. Print an error as one line; add a traceback only if POSTTRAIN_TRACEBACK is set."""
    gc.set_threshold(200_000, 20, 100)  # imports make a million objects that stay: checking them took 13 % of `check`
    _leave_out_folder()
    make_streams_safe()
    try:
        arguments = line.parse(sys.argv[1:])
        if Path(".dvc/config.local").is_file():
            from posttrain.pipeline.lock.repair_dvc import follow_move

            follow_move(Path.cwd())
        _show(line.run(arguments), is_json=arguments.json)
    except PosttrainError as error:
        return _said(_params_error_behind(error))
    except BrokenPipeError:  # the reader has ended; Python would write what is left once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        missing = package_error(error)
        if missing is None:
            raise
        return _said(missing)
    except OSError as error:
        return _said(from_system(error, f"posttrain {sys.argv[1]}"))
    except BaseException as error:  # a panic of polars is not an Exception
        if not lacks_resources(error):
            raise
        what = f"memory or threads ran out ({shortened(str(error), 100) or type(error).__name__})"
        return _said(PipelineError(what=what, where=f"posttrain {sys.argv[1]}", fix=FREE_MEMORY))
    return 0


def _show(text: str, *, is_json: bool) -> None:
    """Print the result of a command. If it contains terminal codes, text from other sources is escaped already."""
    if isinstance(text, Coded):
        shown: str = Coded(f"{text}\n")
    elif is_json or isinstance(text, line.Document):
        shown = f"{escaped_json(text)}\n"
    else:
        shown = "\n".join(map(folded, escaped(text).split("\n"))) + "\n"
    sys.stdout.write(shown)
    sys.stdout.flush()


def _said(error: PosttrainError) -> int:
    """Print an error as one line, with `--json` also as a JSON document, and return the exit code."""
    if os.environ.get("POSTTRAIN_TRACEBACK"):
        traceback.print_exc()
    said = "\n".join(map(folded, escaped(f"error: {masked(str(error))}").split("\n")))
    sys.stderr.write(in_red(f"{said}\n", "error:"))
    if "--json" in sys.argv:
        parts = {"code": error.code, "what": error.what, "where": error.where, "fix": error.fix}
        told = {"error": {name: masked(part) for name, part in parts.items()}, **error.document}
        print(line.as_json(told))
    return 1


def _leave_out_folder() -> None:
    """Keep Python from importing a project's own folders, such as `datasets`, instead of installed packages."""
    if sys.path[0] == str(Path.cwd()) != str(Path(__file__).resolve().parent.parent):
        del sys.path[0]


def _params_error_behind(error: PosttrainError) -> PosttrainError:
    """Return the mistake in params.yaml that keeps DVC from reading the pipeline, or else the error itself."""
    cause = type(error.__cause__)
    if cause.__module__.startswith("dvc.") and cause.__module__ != "dvc.lock":  # a busy DVC is not the file's fault
        from posttrain.pipeline.checks.params_schema import check_params

        try:
            check_params()
        except ParamsError as error_found:
            return error_found
    return error


if __name__ == "__main__":
    raise SystemExit(process())
