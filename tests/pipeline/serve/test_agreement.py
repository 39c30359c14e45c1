"""What `posttrain serve` says greedily is what `evaluate` has measured: the same tokens, whatever the chat template."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from posttrain.data.columns import with_ids
from posttrain.isolation.library import library_environment
from posttrain.models.files.store import load_tokenizer
from posttrain.pipeline.tables.store import read_table, write_table
from tests.library.models.tiny import tiny_folder
from tests.pipeline.rewards.judge.models import parrot_folder
from tests.pipeline.serve.served import Served
from tests.workspace import environment

PARAMS = """
evaluate:
  settings:
    {data: mine/prompts, reference: none, reward_model: none, prompts: 12, samples: 1, sampling: {max_tokens: 24},
     reward: {length: {weight: 1.0, target: 5}}}
  policies: {tiny: base/tiny}
"""
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|system|>Be short.<|end|>{% endif %}{% for m in messages %}"
    "{{ '<|' + m['role'] + '|>\\n' + m['content'] | trim + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\\n{% endif %}"
)
TALKS = [
    [{"role": "user", "content": "{n}+1="}],
    [{"role": "system", "content": "You add."}, {"role": "user", "content": "{n}+2="}],
    [
        {"role": "user", "content": "{n}+3="},
        {"role": "assistant", "content": "#### {n}"},
        {"role": "user", "content": " and {n}+4=?\n"},
    ],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "template", "cut"),
    [
        (tiny_folder, None, {True}),
        (tiny_folder, CHATML, {True, False}),
        (partial(parrot_folder, text="Verdict: 7"), None, {False}),
    ],
    ids=["own", "chatml", "ends"],
)
def test_greedy_completions_are_those_of_evaluate(
    made: Callable[[Path], Path], template: str | None, cut: set[bool], tmp_path: Path
) -> None:
    model = tmp_path / "project/models/base/tiny"
    shutil.copytree(made(tmp_path / "made"), model)
    if template is not None:
        tokenizer = load_tokenizer(model)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(model)
        (model / "manifest.json").unlink()  # of the tokenizer as it was
    talks = [
        [{**turn, "content": turn["content"].replace("{n}", str(n))} for turn in TALKS[n % len(TALKS)]]
        for n in range(12)
    ]
    rows = [
        {"split": "test", "problem": f"p{n}", "prompt": talk, "answer": "", "info": "{}", "task": ""}
        for n, talk in enumerate(talks)
    ]
    project = tmp_path / "project"
    write_table(with_ids(pl.DataFrame(rows), "prompts"), project / "data/mine/prompts.parquet", "prompts")
    (project / "params.yaml").write_text(PARAMS, encoding="utf-8")
    paths = {"PYTHONPATH": library_environment()["PYTHONPATH"]}
    for stage in ("completions", "evaluate"):
        command = [sys.executable, "-P", "-m", "posttrain", "run", stage, "tiny"]
        done = subprocess.run(command, cwd=project, env={**environment(), **paths}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    measured = read_table(project / "results/tiny/rollouts.parquet", "rollouts").filter(pl.col("greedy"))
    assert measured.height == 12 and set(measured["truncated"]) == cut

    served, text = Served(model, tmp_path / "cache"), load_tokenizer(model)
    try:
        for row in measured.iter_rows(named=True):
            asked = {"model": str(model), "messages": row["prompt"], "temperature": 0, "max_tokens": 24}
            status, found = served.ask("/chat/completions", {**asked, "logprobs": True})
            assert status == 200, found
            (choice,) = found["choices"]
            tokens = [one["token"] for one in choice["logprobs"]["content"]]
            assert tokens == [text.decode([token]) for token in row["completion_ids"]]
            logps = [one["logprob"] for one in choice["logprobs"]["content"]]
            assert logps == pytest.approx(row["logps"], abs=1e-4)
            assert choice["message"]["content"] == row["completion"]
            assert choice["finish_reason"] == ("length" if row["truncated"] else "stop")
            assert found["usage"]["completion_tokens"] == len(row["completion_ids"])
    finally:
        assert served.end() == 0
