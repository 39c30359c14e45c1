"""Words on the command line that mean nothing are refused in a line, before anything is started."""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.workspace import ROOT, run

CASES = [
    ("flows.sweep k --seeds a,b", "'a,b' are not whole numbers"),
    ("flows.sweep k --seeds 1,-2", "'1,-2' are not whole numbers"),
    ("flows.sweep k --seeds 1 --seeds 2", "--seeds is given twice. Give all values at once"),
    ("flows.sweep k --seeds=", "it is empty. Give numbers like 1,2,3, or leave the option out"),
    ("flows.sweep k --seeds 1 --targets=", "it is empty. Give a name, or leave the option out"),
    ("flows.sweep k -S sft.runs.main.epochs=1 --jobs 0", "'0' is not a whole number above 0"),
    ("flows.sweep k -S sft.runs.main.epochs=1 --random -1", "'-1' is not a whole number above 0"),
    ("flows.deploy serve --cron zonk", "'zonk' is not a schedule"),
    ("flows.deploy serve --every nan", "'nan' is not a number of seconds of at least 1"),
    ("flows.deploy watch data --look-every -3", "'-3' is not a number of seconds of at least 1"),
    ("flows.server --port abc", "'abc' is not a port: 0 to 65535"),
    ("flows.server --port 99999", "'99999' is not a port: 0 to 65535"),
]
LATER = [
    ("flows.sweep ../k -S sft.runs.main.epochs=1", "'../k' is not a valid name for a sweep"),
    ("flows.sweep k -S sft.runs.main.epochs=1 -S sft.runs.main.epochs=2", "'sft.runs.main.epochs' is given twice"),
    ("flows.sweep k -S sft.runs.main.epochs=*x", "a value that is not valid YAML"),
    ("flows.pipeline --workers --force", "error: --workers --force: hosts use all results"),
    ("flows.deploy pool a/b", "error: deploy pool: 'a/b' is not a valid name for a work pool. Use letters"),
    ("flows.pipeline zonk", "error: dvc.yaml: no stage 'zonk'"),
]
"""What is found after the arguments are read; each starts a process."""


@pytest.mark.parametrize(("words", "message"), CASES)
def test_a_word_that_means_nothing_is_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, *rest = words.split()
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main(rest)
    assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"), [LATER[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in LATER[1:])]
)
def test_a_word_that_means_nothing_is_refused_in_a_line(words: str, message: str) -> None:
    done = run(ROOT, sys.executable, "-m", *words.split())
    assert done.returncode in (1, 2) and message in done.stdout, done.stdout
    assert "Traceback" not in done.stdout
