"""Settings of a run that names an algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.params.named_runs import load_run, typed_run
from posttrain.pipeline.runs.offline import OFFLINE
from posttrain.pipeline.runs.online import ONLINE
from posttrain.supervised.preference import PREFERENCES


def test_the_algorithms_values_stay_where_the_run_sets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = typed_run({"algorithm": "simpo", "epochs": 2}, "preference.runs.a", PREFERENCES)
    assert (found.epochs, found.reduce) == (2.0, "mean")
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("preference: {runs: {a: {algorithm: simpo, epochs: 2}}}\n")
    assert load_run("preference.runs.a", PREFERENCES) == found


def test_what_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"preference\.runs\.a has no algorithm"):
        typed_run({}, "preference.runs.a", PREFERENCES)
    with pytest.raises(ParamsError, match=r"algorithm = 'dpoo' is unknown.*Did you mean"):
        typed_run({"algorithm": "dpoo"}, "preference.runs.a", PREFERENCES)
    with pytest.raises(ParamsError, match=r"It is an algorithm of preference\.runs, or here 'online_dpo'"):
        typed_run({"algorithm": "dpo"}, "online.runs.a", ONLINE)
    with pytest.raises(ParamsError, match=r"It is an algorithm of preference\.runs"):
        typed_run({"algorithm": "kto"}, "offline.runs.a", OFFLINE)
