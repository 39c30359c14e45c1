"""A policy, a reward model and a teacher of three tokenizers, and a template of the user's, through `dvc repro`."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.library.models.imported_models import CHATML, policy_folder, scorer_folder
from tests.pipeline.test_own_data import changed, write_rows
from tests.workspace import dvc, make_workspace, run

pytestmark = pytest.mark.slow

PARAMS = """
data:
  files:
    mine: {path: my/data, chat: demonstrations.jsonl, prompts: prompts.jsonl}
  samples:
    compared: {policy: base/other, data: mine/prompts, reward_model: base/rm, reward: {model: 1.0}, tables: [pairs],
               prompts: 6, heldout_prompts: 3, samples: 48, sampling: {max_tokens: 24}}
base:
  folders:
    start: {path: my/model, chat_template: custom/own.jinja}
    other: {path: my/other}
    rm: {path: my/rm}
sft:
  runs:
    main: {start: base/start, data: mine/chat, epochs: 0.5}
online:
  runs:
    grpo: {algorithm: grpo, start: sft/main, data: mine/prompts, corpus: none, reward_model: base/rm,
           reward: {model: 1.0},
           rollout: {rounds: 2, prompts: 4, group_size: 2, minibatches: 1, sampling: {max_tokens: 8}}}
distill:
  runs:
    refused: {algorithm: distill, start: sft/main, teacher: base/other, data: mine/prompts,
              demonstrations: none, reward_model: none, own: 1.0}
evaluate:
  settings: {data: mine/prompts, reference: sft/main, reward_model: base/rm, prompts: 6, samples: 2,
             reward: {model: {weight: 1.0, truncated: score}}, sampling: {max_tokens: 8}}
  policies: {grpo: online/grpo, other: base/other}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which everything ran that can: the log is in repro.txt."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "params.yaml").write_text(PARAMS, encoding="utf-8")
    made = make_workspace(folder / "clone", folder / "params.yaml")
    write_rows(made / "my/data")
    policy_folder(made / "my/model", template=None, ends=[0])
    policy_folder(made / "my/other", vocabulary=300)
    scorer_folder(made / "my/rm")
    (made / "custom/own.jinja").write_text(CHATML, encoding="utf-8")
    assert run(made, "python", "-m", "posttrain", "check").returncode == 0
    (made / "repro.txt").write_text(dvc(made, "repro", "--keep-going").stdout, encoding="utf-8")
    return made


def test_the_template_is_saved_with_the_model_and_its_end_is_an_end_token(workspace: Path) -> None:
    said = (workspace / "repro.txt").read_text(encoding="utf-8")
    assert "custom/own.jinja ends an answer with <|im_end|>, so <|im_end|> becomes an end token" in said
    for model in ("base/start", "sft/main", "online/grpo"):
        folder = workspace / "models" / model
        assert json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"] == CHATML
        assert json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"] == [0, 2]


def test_online_training_learns_from_a_reward_model_of_another_tokenizer(workspace: Path) -> None:
    found = pl.read_csv(workspace / "plots/online/grpo.csv")
    assert found.height == 2, (workspace / "repro.txt").read_text(encoding="utf-8")
    assert found["reward_model"].is_finite().all() and found["reward"].n_unique() == 2


def test_samples_and_evaluation_are_scored_by_a_given_reward_model(workspace: Path) -> None:
    assert pl.read_parquet(workspace / "data/compared/pairs.parquet").height > 4, "of a third tokenizer"
    rows = pl.read_parquet(workspace / "results/grpo/rollouts.parquet")
    assert rows["reward"].is_finite().all() and rows["reward"].n_unique() > 6
    assert "kl_k1" in json.loads((workspace / "results/grpo/metrics.json").read_text(encoding="utf-8"))


def test_kl_to_a_reference_of_another_tokenizer_is_not_measured(workspace: Path) -> None:
    said = (workspace / "repro.txt").read_text(encoding="utf-8")
    assert "completions@other: models/sft/main has a different tokenizer, so the KL to it is not measured" in said
    metrics = json.loads((workspace / "results/other/metrics.json").read_text(encoding="utf-8"))
    assert "kl_k1" not in metrics and "score" in metrics


def test_a_teacher_of_another_tokenizer_is_refused(workspace: Path) -> None:
    said = (workspace / "repro.txt").read_text(encoding="utf-8")
    assert "distill.runs.refused.teacher = 'base/other' has a different tokenizer than sft/main" in said
    assert not (workspace / "models/distill").exists()


def test_a_changed_template_is_noticed_and_a_broken_one_is_refused_with_its_line(workspace: Path) -> None:
    file = workspace / "custom/own.jinja"
    with changed(file, (CHATML + "\n{{ messages.nothing.here }}").encode()):
        assert dvc(workspace, "repro", "code").returncode == 0
        assert "base_folders@start" in dvc(workspace, "status").stdout
        done = dvc(workspace, "repro", "base_folders@start")
        assert done.returncode != 0
        assert "error: custom/own.jinja: the chat template fails on" in done.stdout and "(line 2 of the" in done.stdout
    assert dvc(workspace, "repro", "base_folders@start").returncode == 0
