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
import posttrain.pipeline.params.named_runs as named_runs
import posttrain.pipeline.params.params_file as params_file
import posttrain.pipeline.params.yaml_files as yaml_files
import posttrain.pipeline.runs.typed as typed
import posttrain.train.loop as loop

calls = Counter()
parse, check = yaml_files._parsed.__wrapped__, typed.check

def counted_parse(text, where):
    calls[where] += 1
    return parse(text, where)

def counted_check(model, *arguments, **options):
    calls["check"] += 1
    return check(model, *arguments, **options)

def first_step(*arguments):
    print("counted", calls["params.yaml"], calls["dvc.yaml"], calls["check"], flush=True)
    os._exit(0)

yaml_files._parsed = lru_cache(maxsize=8)(counted_parse)
typed.check = named_runs.check = params_file.check = counted_check
loop._train = first_step
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
    assert "counted 1 1 1\n" in done.stdout, done.stdout + done.stderr
