"""lm-eval's numbers next to ours, row by row: log-likelihoods of options, and greedy completions of the same prompts.

    python -m benchmarks.lm_eval_agreement [my/smollm2]     # needs `make env-lm-eval`; writes docs/reports/lm-eval.md

`make test-lm-eval` asserts the same of a tiny model.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
import torch

from benchmarks import ROOT
from posttrain.models.files.store import load_policy
from posttrain.models.files.text import load_text
from posttrain.models.forward.forward import score_tokens
from posttrain.pipeline.tables.store import read_table
from posttrain.rollout import TokenRow
from posttrain.text.packing import pack
from tests.workspace import dvc, make_workspace

PAGE: Final = ROOT / "docs" / "reports" / "lm-eval.md"
ROWS: Final = 60
PARAMS: Final = """
format: 2
data:
  files:
    sums: {path: my/sums, prompts: test.jsonl}
base:
  folders:
    start: {path: my/model}
evaluate:
  settings:
    data: sums/prompts
    reference: none
    reward_model: none
    reward: {correct: 1.0}
    prompts: 60
    samples: 1
    sampling: {max_tokens: 16}
  policies: {start: base/start}
  lm_eval:
    start: {policy: base/start, tasks: [sums_choice, sums_written], include: custom/sums, chat: true}
"""
TASK: Final = """
task: {task}
dataset_path: json
dataset_kwargs: {{data_files: custom/sums/sums.jsonl}}
test_split: train
doc_to_text: "{{{{prompt}}}}"
{more}
"""
TASKS: Final = {
    "sums_choice": """output_type: multiple_choice
doc_to_choice: "{{options}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]""",
    "sums_written": """output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: [], max_gen_toks: 16, do_sample: false}
filter_list:
  - name: last_number
    filter: [{function: regex, regex_pattern: '([0-9]+)[^0-9]*$'}, {function: take_first}]
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]""",
}
NUMBER: Final = re.compile("([0-9]+)[^0-9]*$")
"""The same reading of an answer."""


@dataclass(frozen=True)
class Agreement:
    """What both sides say of the same rows."""

    options: int
    nats: float
    """The largest difference of a log-likelihood."""
    same_choice: int
    acc: tuple[float, float]
    """lm-eval's accuracy, and ours."""
    same_text: int
    exact: tuple[float, float]
    rows: int


def write_project(place: Path, model: Path) -> Path:
    """Make a project with a model, prompts, and two tasks of lm-eval over the same prompts."""
    params = place / "params.yaml"
    params.write_text(PARAMS, encoding="utf-8")
    workspace, rng = make_workspace(place / "project", params), random.Random(0)
    shutil.copytree(model, workspace / "my/model")
    rows = []
    for a, b in rng.sample([(a, b) for a in range(2, 30) for b in range(2, 30)], ROWS):
        options = rng.sample([a + b, a + b + 1, a + b - 1, a + b + 10], 4)
        asked = f"What is {a} + {b}?"
        label = options.index(a + b)
        rows.append({"prompt": asked, "answer": str(a + b), "options": [str(one) for one in options], "label": label})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for folder, file in (("my/sums", "test.jsonl"), ("custom/sums", "sums.jsonl")):
        (workspace / folder).mkdir(parents=True)
        (workspace / folder / file).write_text(text, encoding="utf-8")
    for task, more in TASKS.items():
        (workspace / f"custom/sums/{task}.yaml").write_text(TASK.format(task=task, more=more), encoding="utf-8")
    return workspace


def agreement(workspace: Path) -> Agreement:
    """Compare what both sides have written, and the log-likelihoods of the options as our forward pass has them."""
    rows = read_table(workspace / "results/lm_eval/start/documents.parquet", "documents")
    choice, written = (rows.filter(task=task).sort("doc") for task in TASKS)
    docs = [json.loads(line) for line in (workspace / "custom/sums/sums.jsonl").read_text("utf-8").splitlines()]
    theirs = [[logp for _, logp, _ in json.loads(response)] for response in choice["response"]]
    ours = likelihoods(workspace / "models/base/start", docs)
    best = [[max(range(len(one)), key=one.__getitem__) for one in side] for side in (theirs, ours)]
    labels = [doc["label"] for doc in docs]
    greedy = read_table(workspace / "results/start/rollouts.parquet", "rollouts").filter(pl.col("greedy"))
    plain = load_text(workspace / "models/base/start", None).tokenizer  # lm-eval leaves special tokens out
    text_of = {
        row["prompt"][-1]["content"]: plain.decode(row["completion_ids"], skip_special_tokens=True)
        for row in greedy.iter_rows(named=True)
    }
    texts = [text_of[doc["prompt"]] for doc in docs]
    answers = [doc["answer"] for doc in docs]
    read = [found[1] if (found := NUMBER.search(text)) else "" for text in texts]
    figures = json.loads((workspace / "results/lm_eval/start/metrics.json").read_text("utf-8"))
    return Agreement(
        options=sum(map(len, ours)),
        nats=max(abs(x - y) for pair in zip(theirs, ours, strict=True) for x, y in zip(*pair, strict=True)),
        same_choice=_equal(*best),
        acc=(figures["sums_choice.acc"], _equal(best[1], labels) / len(docs)),
        same_text=_equal(written["response"].to_list(), texts),
        exact=(figures["sums_written.exact_match,last_number"], _equal(read, answers) / len(docs)),
        rows=len(docs),
    )


@torch.no_grad()
def likelihoods(folder: Path, docs: list[dict[str, Any]]) -> list[list[float]]:
    """Return the summed log-prob of each option after its prompt."""
    text, model = load_text(folder, None), load_policy(folder).eval()
    prompts = text.prompts([[{"role": "user", "content": doc["prompt"]}] for doc in docs])
    found = []
    for prompt, doc in zip(prompts, docs, strict=True):
        options = [text.tokenizer(option, add_special_tokens=False)["input_ids"] for option in doc["options"]]
        logps, _ = score_tokens(model, pack([TokenRow(prompt, option) for option in options]))
        found.append([float(part.double().sum()) for part in logps.split([len(option) for option in options])])
    return found


def table(found: Agreement, model: str, versions: dict[str, str]) -> str:
    """Return the page."""
    shares = [f"{a:.3f} | {b:.3f}" for a, b in (found.acc, found.exact)]
    rows = found.rows
    likely = f"the same option in {found.same_choice} of {rows}; {found.options} log-likelihoods differ by at most"
    return f"""# lm-eval next to our own figures

The same {rows} rows measured by lm-evaluation-harness {versions["lm_eval"]} (transformers' forward pass and `generate`)
and by posttrain (its own forward pass and decoder), with {model} in float32 on a CPU. Written by
`python -m benchmarks.lm_eval_agreement` ({", ".join(f"{name} {version}" for name, version in versions.items())}).

| | lm-eval | posttrain | agree, row by row |
|---|---:|---:|---|
| multiple choice by log-likelihood: accuracy | {shares[0]} | {likely} {found.nats:.1e} nats |
| greedy completion: its last number is right | {shares[1]} | the same text in {found.same_text} of {rows} |
"""


def _equal(one: list[Any], other: list[Any]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def main() -> None:
    """Run the project and write the page."""
    model = Path(sys.argv[1] if len(sys.argv) > 1 else "my/smollm2")
    with tempfile.TemporaryDirectory(prefix="lm-eval-") as place:
        workspace = write_project(Path(place), model)
        done = dvc(workspace, "repro")
        if done.returncode:
            raise SystemExit(done.stdout)
        record = json.loads((workspace / "records/lm_eval/start.json").read_text("utf-8"))
        versions = {name: record[key] for key in record if (name := key.removeprefix("lm_eval_")) != key}
        name = "SmolLM2-135M-Instruct" if model.resolve().name == "smollm2" else model.resolve().name
        page = table(agreement(workspace), name, {"lm_eval": record["lm_eval"], **versions})
    PAGE.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
