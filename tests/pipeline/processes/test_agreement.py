"""What the hosts of a run must share."""

from __future__ import annotations

from posttrain.pipeline.processes.agreement import differences


def test_differences_between_two_hosts() -> None:
    first = {"params": {"params.yaml": {"lr": 1}}, "inputs": {"data/a": "1"}, "code": {"files": {"a.py": "1"}}}
    other = {"params": {"params.yaml": {"lr": 2}}, "inputs": {"data/a": "2"}, "code": {"files": {"a.py": "2"}}}
    assert differences(first, first, 3) == []
    assert differences(first, other, 3) == ["params.yaml lr (1 in process 1, 2 in process 3)", "files a.py", "data/a"]
