"""What `check` asks of this host where servers run on others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from posttrain.errors import ParamsError
from posttrain.pipeline.checks.check_models import check_models
from posttrain.plugins.vllm_ssh.ssh import SSH
from posttrain.sampling.vllm.hosts import HOSTS
from posttrain.sampling.vllm.process import PYTHON
from tests.pipeline.checks.test_check_models import Check, checked

__all__ = ["checked"]
"""A fixture."""


@pytest.mark.slow
def test_a_host_without_servers_needs_ssh_and_no_vllm(
    checked: Check,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    checked()
    file = tmp_path / "params.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    run = {
        "algorithm": "grpo", "start": "sft/first", "data": "d/prompts", "corpus": "none", "reward_model": "none",
        "correction": "truncate", "rollout": {"engine": "vllm"},
    }  # fmt: skip
    file.write_text(yaml.safe_dump({**settings, "online": {"runs": {"a": run}}}), encoding="utf-8")
    monkeypatch.setenv(PYTHON, sys.executable)  # the tests' own environment has no vLLM
    monkeypatch.setenv(HOSTS, "far")
    monkeypatch.setenv(SSH, sys.executable)
    check_models()  # no server is on this host
    for hosts, ssh, said in (
        ("far localhost", sys.executable, "vLLM is missing"),
        ("far", "/no/ssh", "no command /no/ssh"),
    ):
        monkeypatch.setenv(HOSTS, hosts)
        monkeypatch.setenv(SSH, ssh)
        with pytest.raises(ParamsError) as raised:
            check_models()
        assert said in str(raised.value)
