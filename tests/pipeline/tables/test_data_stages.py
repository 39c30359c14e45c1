"""The stages that make tables, run as DVC runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.data.columns import Kind
from posttrain.pipeline.tables.sources import USER_KINDS
from posttrain.pipeline.tables.store import read_table
from tests.pipeline.tables.samples import assistant, user

SIZES = {"n_corpus": 300, "n_corpus_heldout": 20, "n_sft": 50, "n_sft_heldout": 10, "n_rl": 60} | {
    "n_heldout": 20,
    "n_test": 30,
}


def run(
    folder: Path, stage: str, *, others: dict[str, Any] | None = None, **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run `stages.data_STAGE mine` with these settings of data.STAGE.mine, and with other sections."""
    (folder / "params.yaml").write_text(json.dumps({"data": {stage: {"mine": settings}}, **(others or {})}))
    environment = {**os.environ, "PYTHONPATH": str(Path(posttrain.__file__).parents[1])}
    command = [sys.executable, "-m", f"stages.data_{stage}", "mine"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def put(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.slow
def test_a_task_writes_its_tables_and_a_summary(tmp_path: Path) -> None:
    done = run(tmp_path, "tasks", task="two_step", **SIZES)
    assert done.returncode == 0, done.stderr
    made: tuple[Kind, ...] = ("corpus", "chat", "prompts")
    assert {path.name for path in (tmp_path / "data/mine").iterdir()} == {f"{kind}.parquet" for kind in made}
    for kind in made:
        read_table(tmp_path / f"data/mine/{kind}.parquet", kind)
    assert [line.split() for line in done.stdout.splitlines()[-4:]] == [
        ["table", "train", "heldout", "test"],
        ["corpus", "300", "20", "-"],
        ["chat", "50", "10", "-"],
        ["prompts", "60", "20", "30"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["data_tasks", "data_files", "data_hub", "data_filters"])
def test_a_data_stage_imports_neither_torch_nor_transformers(stage: str) -> None:
    """Torch costs seconds at import, and these stages are to end in about three."""
    heavy = "{'torch', 'transformers', 'datasets', 'prefect'}"
    code = f"import sys, stages.{stage}; print(sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    root = Path(posttrain.__file__).parents[1]
    assert subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.slow
def test_a_stage_that_fails_writes_no_table(tmp_path: Path) -> None:
    done = run(tmp_path, "tasks", task="two_step", **{**SIZES, "n_test": 10**6})
    assert done.returncode != 0
    assert "n_test = 1,000,000, but the test split has only" in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_own_files_become_tables(tmp_path: Path) -> None:
    put(tmp_path / "own/chat.jsonl", [{"messages": user(f"{n}+1?") + assistant(str(n + 1))} for n in range(100)])
    put(tmp_path / "own/prompts.jsonl", [{"question": f"{n}+1?", "answer": n + 1} for n in range(100)])
    put(
        tmp_path / "own/pairs.jsonl", [{"prompt": f"{n}+1?", "chosen": str(n + 1), "rejected": "0"} for n in range(100)]
    )
    prompts = {"path": "prompts.jsonl", "rename": {"question": "prompt"}}
    done = run(tmp_path, "files", path="own", chat="chat.jsonl", prompts=prompts, pairs="pairs.jsonl")
    assert done.returncode == 0, done.stderr
    given = [kind for kind in USER_KINDS if kind != "corpus"]
    tables = {kind: read_table(tmp_path / f"data/mine/{kind}.parquet", kind) for kind in given}
    assert {path.stem for path in (tmp_path / "data/mine").iterdir()} == set(given)
    assert tables["prompts"].height == 100
    assert tables["feedback"].height == 2 * tables["pairs"].height, "each answer of a pair is feedback too"
    assert [line.split()[0] for line in done.stdout.splitlines()[-5:]] == [
        "table",
        "chat",
        "prompts",
        "pairs",
        "feedback",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("data", "refused"), [("mine/prompts", True), ("other/prompts", False)])
def test_too_few_test_prompts_for_evaluate_stop_the_data_stage(tmp_path: Path, data: str, refused: bool) -> None:
    rows = [{"prompt": f"{n}+1?", "answer": n + 1, "split": "train"} for n in range(20)]
    put(tmp_path / "own/prompts.jsonl", [*rows, {"prompt": "7+7?", "answer": 14, "split": "test"}])
    evaluate = {"settings": {"data": data}, "policies": {"sft": "sft/main"}}
    prompts = {"path": "prompts.jsonl", "heldout_share": 0}
    done = run(tmp_path, "files", path="own", prompts=prompts, others={"evaluate": evaluate})
    said = "error: data/mine/prompts.parquet: the split 'test' has 1 prompt, and evaluate needs at least 2. Give more"
    assert (done.returncode != 0) == refused and (said in done.stderr) == refused, done.stderr
    assert (tmp_path / "data/mine/prompts.parquet").exists() != refused


@pytest.mark.slow
def test_all_tables_with_errors_are_reported_at_once(tmp_path: Path) -> None:
    put(tmp_path / "own/chat.jsonl", [{"question": "1+1?"}])
    put(tmp_path / "own/pairs.jsonl", [{"prompt": "1+1?", "chosen": "2", "rejected": n} for n in ("3", 4)])
    done = run(tmp_path, "files", path="own", chat="chat.jsonl", pairs="pairs.jsonl")
    first, *others = done.stderr[done.stderr.index("error: ") :].splitlines()
    assert first == "error: data.files.mine: 2 tables have errors. Fix these:"
    assert others[0].startswith("data.files.mine.chat: a 'chat' table cannot be made from the columns question. ")
    assert others[1].startswith("data.files.mine.pairs: 1 of 2 rows break the rules of a 'pairs' table:")
    assert "pairs.jsonl line 2: 'rejected' is " in others[2]


@pytest.mark.slow
def test_a_problem_in_two_splits_of_the_source_is_refused(tmp_path: Path) -> None:
    chat = [{"prompt": f"{n}?", "completion": "a"} for n in range(100)]
    put(tmp_path / "own/chat/train.jsonl", chat)
    put(tmp_path / "own/chat/validation.jsonl", chat[:1])
    put(tmp_path / "own/prompts/train.jsonl", chat)
    put(tmp_path / "own/prompts/test.jsonl", [{"prompt": "another"}])
    done = run(tmp_path, "files", path="own", chat="chat", prompts="prompts")
    assert done.returncode != 0
    assert "must be in one split only" in done.stderr
    assert "rejected/mine/chat.rejected.parquet" in done.stderr
    assert (tmp_path / "rejected/mine/chat.rejected.parquet").is_file()
    assert not (tmp_path / "data/mine").exists(), "no table is written"
