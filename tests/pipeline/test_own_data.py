"""Own models and own data through `dvc repro` and through the flow, as the README says, word for word."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.library.models.families import hub_folder
from tests.workspace import ROOT, dvc, environment, make_workspace, run


def write_rows(folder: Path, rows: int = 60) -> Path:
    """A user's own files: plain and conversational rows."""
    folder.mkdir(parents=True)
    rng = random.Random(7)
    asked = [f"What is {a} and {b}?" for a, b in rng.sample([(a, b) for a in range(30) for b in range(30)], rows)]
    user = [[{"role": "user", "content": text}] for text in asked]
    answer = [str(rng.randint(0, 60)) for _ in asked]
    tables = {
        "demonstrations": [
            {"messages": [*turn, {"role": "assistant", "content": f"It is {n}"}]}
            for turn, n in zip(user, answer, strict=True)
        ],
        "pairs": [{"prompt": text, "chosen": "It is 4", "rejected": "No"} for text in asked],
        "prompts": [{"prompt": turn, "answer": n} for turn, n in zip(user, answer, strict=True)],
    }
    for name, table in tables.items():
        text = "".join(json.dumps(row) + "\n" for row in table)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


def readme_section(title: str) -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text[text.index(f"## {title}") :].partition("\n## ")[0]


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def own_project(folder: Path) -> Path:
    """A fresh clone with the README's params.yaml, and a GPT-2 that has no pad token and no template."""
    (params,) = blocks(readme_section("Use your own data and model"), "yaml")
    (folder / "params.yaml").write_text(params, encoding="utf-8")
    workspace = make_workspace(folder / "clone", folder / "params.yaml")
    write_rows(workspace / "my" / "data")
    hub_folder("gpt2", workspace / "my" / "model", dtype=torch.float32)
    return workspace


READERS = ("data_files@mine", "base_folders@start")
"""The stages that read what is the user's own."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of which only the stages that read what is the user's own have run."""
    workspace = own_project(tmp_path_factory.mktemp("begun"))
    assert run(workspace, "python", "-m", "posttrain", "check").returncode == 0
    done = dvc(workspace, "repro", *READERS)
    assert done.returncode == 0, done.stdout
    return workspace


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the README's section was followed."""
    (commands,) = blocks(readme_section("Use your own data and model"), "sh")
    workspace = own_project(tmp_path_factory.mktemp("walk"))
    for command in commands.strip().splitlines():
        done = run(workspace, "bash", "-c", command)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
    return workspace


@pytest.mark.slow
def test_the_readme_walk_ends_with_results_of_every_policy(walked: Path) -> None:
    done = run(walked, "python", "-m", "posttrain", "show", "results", "--json")
    rows = json.loads(done.stdout)
    assert [row["policy"] for row in rows] == ["start", "sft", "dpo"], done.stdout
    assert all("error" not in row for row in rows), done.stdout
    assert all(0 <= row["score"] <= 1 for row in rows), done.stdout
    assert dvc(walked, "status").stdout.strip() == "Data and pipelines are up to date."


@pytest.mark.slow
def test_models_of_the_walk_load_elsewhere(walked: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(walked / "models/preference/dpo")
    tokenizer = AutoTokenizer.from_pretrained(walked / "models/preference/dpo")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)["input_ids"]
    assert model(torch.tensor([ids])).logits.shape[-1] == len(model.get_input_embeddings().weight)


@contextmanager
def changed(file: Path, text: bytes) -> Iterator[None]:
    before = file.read_bytes() if file.exists() else None
    file.write_bytes(text)
    try:
        yield
    finally:
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "stage"),
    [
        ("my/data/pairs.jsonl", "data_files@mine"),
        ("my/data/another.jsonl", "data_files@mine"),
        ("my/model/config.json", "base_folders@start"),
        ("my/model/model.safetensors", "base_folders@start"),
    ],
)
def test_dvc_notices_a_change_of_each_own_input(begun: Path, file: str, stage: str) -> None:
    old = (begun / file).read_bytes() if (begun / file).exists() else b""
    with changed(begun / file, old + b" "):
        stale = dvc(begun, "status", "--json", *READERS).stdout
        found = json.loads(stale[stale.index("{") :])
        assert stage in found, found
    assert dvc(begun, "status", *READERS).stdout.strip() == "Data and pipelines are up to date."


@pytest.mark.slow
def test_an_edited_row_runs_what_reads_its_table_and_nothing_else(walked: Path) -> None:
    file = walked / "my/data/pairs.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[3] = json.dumps({"prompt": "A new question?", "chosen": "Yes", "rejected": "No"})
    with changed(file, ("\n".join(lines) + "\n").encode()):
        done = dvc(walked, "repro")
        assert done.returncode == 0, done.stdout
        ran = set(re.findall(r"Running stage '([^']+)'", done.stdout))
        assert ran == {"data_files@mine", "preference@dpo", "completions@dpo", "evaluate@dpo", "report"}, done.stdout
    assert dvc(walked, "repro").returncode == 0


@pytest.mark.slow
def test_a_refused_row_names_the_users_file_and_line_and_blocks_only_what_needs_it(walked: Path) -> None:
    file = walked / "my/data/pairs.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[5] = json.dumps({"prompt": "Which?", "chosen": "Yes"})
    with changed(file, ("\n".join(lines) + "\n").encode()):
        done = dvc(walked, "repro", "--keep-going")
        assert done.returncode != 0
        assert "my/data/pairs.jsonl line 6" in done.stdout, done.stdout
        shown = run(walked, "python", "-m", "posttrain", "show", "results").stdout
        assert "my/data/pairs.jsonl" in shown or "data.files.mine.pairs" in shown, shown
    assert dvc(walked, "repro").returncode == 0


@pytest.mark.slow
def test_the_flow_runs_the_same_pipeline(walked: Path) -> None:
    params = walked / "params.yaml"
    text = params.read_text(encoding="utf-8")
    with changed(params, text.replace("epochs: 1.0", "epochs: 2.0").encode()):
        done = run(walked, "python", "-m", "flows.pipeline")
        assert done.returncode == 0, done.stdout
        assert dvc(walked, "status").stdout.strip() == "Data and pipelines are up to date."
    assert dvc(walked, "repro").returncode == 0


PARTIAL = {
    "sft and dpo": """
data: {files: {mine: {path: my/data, chat: demonstrations.jsonl, pairs: pairs.jsonl}}}
base: {folders: {start: {path: my/model}}}
sft: {runs: {main: {start: base/start, data: mine/chat, epochs: 0.5}}}
preference: {runs: {dpo: {algorithm: dpo, start: sft/main, data: mine/pairs}}}
""",
    "kto": """
data: {files: {mine: {path: my/data, pairs: pairs.jsonl}}}
base: {folders: {start: {path: my/model}}}
preference: {runs: {kto: {algorithm: kto, start: base/start, data: mine/feedback}}}
online: {}
""",
    "evaluation": """
data: {files: {mine: {path: my/data, prompts: prompts.jsonl}}}
base: {folders: {start: {path: my/model}}}
evaluate:
  settings: {data: mine/prompts, reference: none, reward_model: none, samples: 1}
  policies: {start: base/start}
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTIAL)
def test_a_part_of_the_pipeline_alone(walked: Path, name: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARTIAL[name], encoding="utf-8")
    workspace = make_workspace(tmp_path / "clone", tmp_path / "params.yaml")
    shutil.copytree(walked / "my", workspace / "my")
    for command in (("python", "-m", "posttrain", "check"), ("dvc", "repro")):
        done = run(workspace, *command)
        assert done.returncode == 0, done.stdout
    assert dvc(workspace, "status").stdout.strip() == "Data and pipelines are up to date."


WHOLE = """
data:
  files: {{mine: {{path: my/data, chat: demonstrations.jsonl, pairs: pairs.jsonl, prompts: prompts.jsonl}}}}
base: {{folders: {{start: {{path: my/model}}}}}}
sft: {{runs: {{main: {{start: base/start, data: mine/chat, epochs: 0.5}}}}}}
reward:
  runs: {{main: {{start: sft/main, data: mine/pairs, feedback: none, demonstrations: mine/chat, epochs: 0.5}}}}
preference: {{runs: {{dpo: {{algorithm: dpo, start: sft/main, data: mine/pairs, epochs: 0.5}}}}}}
online:
  runs:
    ppo:
      algorithm: ppo
      start: sft/main
      data: mine/prompts
      corpus: none
      reward_model: reward/main
      reward: {{model: 1.0}}
      rollout: {{rounds: 1, prompts: 4, group_size: 2, minibatches: 1, sampling: {{max_tokens: 8}}}}
evaluate:
  settings: {{data: mine/prompts, reference: sft/main, reward_model: none, samples: 1}}
  policies: {{ppo: online/ppo, dpo: preference/dpo}}
"""
FAMILIES = ("llama", "mixtral", "qwen3_moe", "gpt_neox")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_in_the_layout_of_the_hub_passes_the_whole_pipeline(family: str, tmp_path: Path) -> None:
    """With a learned reward and a critic, so that every kind of head is made."""
    (tmp_path / "params.yaml").write_text(WHOLE.format(), encoding="utf-8")
    workspace = make_workspace(tmp_path / "clone", tmp_path / "params.yaml")
    write_rows(workspace / "my" / "data")
    hub_folder(family, workspace / "my" / "model")
    done = dvc(workspace, "repro")
    assert done.returncode == 0, done.stdout
    saved = json.loads((workspace / "models/online/ppo/config.json").read_text())
    assert saved["dtype"] == "bfloat16", "what is saved has the dtype of the start's files"


@pytest.mark.slow
def test_data_and_models_added_to_dvc_are_tracked(walked: Path, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARTIAL["evaluation"], encoding="utf-8")
    workspace = make_workspace(tmp_path / "clone", tmp_path / "params.yaml")
    shutil.copytree(walked / "my", workspace / "my")
    assert dvc(workspace, "add", "my/data", "my/model").returncode == 0
    assert dvc(workspace, "repro").returncode == 0
    subprocess.run(["git", "add", "--all"], cwd=workspace, check=True, env=environment())
    subprocess.run(["git", "commit", "--quiet", "-m", "data"], cwd=workspace, check=True, env=environment())
    done = dvc(workspace, "exp", "run", "--temp", "-S", "evaluate.settings.samples=2")
    assert done.returncode == 0, done.stdout
