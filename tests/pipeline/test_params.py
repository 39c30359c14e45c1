"""Every params file that we ship is right, and a wrong one is told without running anything."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.params import NAMED, SINGLE
from posttrain.sections import RUNS, SECTIONS, check_params, describe_params
from tests.workspace import ROOT

FILES = [ROOT / "params.yaml", *sorted((ROOT / "recipes").glob("*.yaml"))]

TRUNCATED = "online: {runs: {a: {algorithm: grpo, rollout: {sampling: {%s}}%s}}}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_shipped_params_are_right(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copyfile(file, tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    assert check_params() == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("online: {runs: {}, seed: 1}", "online.seed: unknown key. Settings belong to a run: online.runs.NAME.seed"),
        ("sft: {optimizer: {betas: [0.9, 1.0]}}", "Use numbers from 0 to below 1"),
        ("base: {window: 600}", "window = 600 is longer than shape.context = 512"),
        ("onlin: {}", "unknown section 'onlin'. Did you mean 'online'?"),
        ("sft: {epochs: 1.0, epoch: 2}", "sft.epoch: unknown key. Did you mean 'epochs'?"),
        ("sft: {optimizer: {lr: fast}}", "sft.optimizer.lr = 'fast'"),
        ("sft: {optimizer: {learning_rate: 0.1}}", "sft.optimizer.learning_rate: unknown key"),
        ("sft: {batch: 16.5}", "sft.batch = 16.5"),
        ("sft: {batch: true}", "sft.batch = True"),
        ("base: {batch: 0, steps: 0}", "base.steps = 0"),
        ("online: {runs: {a: {}}}", "online.runs.a names no algorithm"),
        ("online: {runs: {a: {algorithm: grpo, clip: {hi: 1.0}}}}", "online.runs.a.clip.hi: unknown key"),
        (TRUNCATED % ("top_p: 0.9", ""), "rollout.sampling: top_p = 0.9 draws from another distribution"),
        (TRUNCATED % ("top_k: 5", ""), "Use top_p 1 and top_k null, or experimental: true"),
        ("evaluate: {sampling: {stop: ['']}}", "evaluate.sampling.stop: every text contains the empty string"),
        ("[1, 2]", "holds no sections"),
        ("a: [", "not readable as YAML"),
        ("a: 1\na: 2", "duplicate key"),
    ],
)
def test_a_wrong_file_is_told(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParamsError) as caught:
        check_params()
    assert words in str(caught.value) and "params.yaml" in str(caught.value)
    assert "?." not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        TRUNCATED % ("top_p: 0.9", ", experimental: true"),
        TRUNCATED.replace("grpo", "raft") % ("top_p: 0.9, top_k: 20", ""),
        "distill: {runs: {a: {algorithm: gkd, teacher: base, rollout: {sampling: {top_k: 20}}}}}",
        "pairs: {sampling: {top_p: 0.9, stop: ['Q:']}}",
    ],
)
def test_who_does_not_learn_by_the_samplers_log_probs_may_truncate(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert check_params() == 1


def test_sections_are_known_where_the_file_is_read() -> None:
    assert set(SECTIONS) == set(SINGLE) and set(RUNS) == set(NAMED)


def test_every_parameter_is_explained() -> None:
    for section in (*SECTIONS, *RUNS):
        lines = [line for line in describe_params(section).splitlines() if line.startswith("  ")]
        assert lines
        bare = [line for line in lines if not line.split("  ", 3)[-1].strip() or line.rstrip().endswith("=")]
        assert not bare, bare
