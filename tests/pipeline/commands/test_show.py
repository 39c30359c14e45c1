"""What `posttrain show` prints."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.measure.timings import report_timings
from posttrain.pipeline.commands import show


def test_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parser = ArgumentParser()
    show.add_arguments(parser)
    arguments = parser.parse_args(["timings"])
    with pytest.raises(PipelineError, match="no timings found"):
        show.run(arguments)
    report_timings("a")
    assert show.run(arguments).splitlines()[1].split()[0] == "a"
    assert parser.parse_args([]).action == "results"
