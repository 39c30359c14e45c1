"""A run reads params.yaml once, and checks its own settings once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspace import environment

PROGRAM = """
import os, sys
from collections import Counter
from functools import lru_cache
import posttrain.pipeline.params.formats as formats
import posttrain.train.loop as loop
import posttrain.train.run_config as run_config

calls = Counter()
parse, check = formats._parsed.__wrapped__, run_config.check

def counted_parse(text, where):
    calls["parse"] += 1
    return parse(text, where)

def counted_check(model, *arguments, **options):
    calls["check"] += 1
    return check(model, *arguments, **options)

def first_step(*arguments):
    print("counted", calls["parse"], calls["check"], flush=True)
    os._exit(0)

formats._parsed = lru_cache(maxsize=8)(counted_parse)
run_config.check, loop._train = counted_check, first_step
sys.argv = ["stages.{stage}", "{run}"]
from posttrain.pipeline.processes.stage import run_named_stage
from stages.{stage} import main
run_named_stage(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "run"), [("online", "grpo"), ("preference", "dpo"), ("sft", "main")])
def test_params_are_read_and_checked_once(stage: str, run: str, own_workspace: Path) -> None:
    code = PROGRAM.format(stage=stage, run=run)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=own_workspace, env=environment(), capture_output=True, text=True, check=False
    )
    parses, checks = next(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("counted"))
    assert int(parses) == 1 and int(checks) <= 1, done.stderr
