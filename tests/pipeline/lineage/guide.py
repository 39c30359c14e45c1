"""A small project of the user's own data for docs/reference/deletion.md: one row of it has an address."""

from __future__ import annotations

import json
from pathlib import Path

from tests.library.models.families import hub_folder
from tests.pipeline.commands.test_project import command, posttrain

ADDRESS = "12 Elm Street, Springfield"
LINE = 17
PARAMS = """
format: 2
data:
  files:
    mine:
      path: my/data
      chat: {path: demonstrations.jsonl, test_share: 0.3}
      prompts: {path: prompts.jsonl, test_share: 0.3}
base: {folders: {start: {path: my/model}}}
sft: {runs: {main: {start: base/start, data: mine/chat, epochs: 0.1, batch: 4}}}
evaluate:
  settings: {data: mine/prompts, reference: none, reward_model: none, prompts: 4, samples: 1, sampling: {max_tokens: 4}}
  policies: {sft: sft/main}
"""


def write_data(folder: Path) -> None:
    """Demonstrations, one with the address, and prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = [f"How many are {n} and {n + 1} of them?" for n in range(40)]
    answers = [f"They are {2 * n + 1} together." for n in range(40)]
    asked[LINE - 1] = f"Where does she live, at {ADDRESS}?"
    rows = [
        {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": other}]}
        for one, other in zip(asked, answers, strict=True)
    ]
    prompts = [{"prompt": f"And how many are {n} and 7?", "answer": str(n + 7)} for n in range(40)]
    for name, table in {"demonstrations": rows, "prompts": prompts}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")


def project(folder: Path) -> Path:
    """The project before its first run, in git, with a DVC remote that is a folder."""
    assert posttrain(folder, "init", "mine").returncode == 0
    made = folder / "mine"
    write_data(made / "my/data")
    hub_folder("llama", made / "my/model")
    (made / "params.yaml").write_text(PARAMS, encoding="utf-8")
    for words in (
        ("dvc", "remote", "add", "--default", "store", str(folder / "store")),
        ("git", "config", "user.name", "tests"),
        ("git", "config", "user.email", "tests@localhost"),
        ("git", "add", "--all"),
        ("git", "commit", "--quiet", "--message", "our data"),
    ):
        done = command(made, *words)
        assert done.returncode == 0, done.stdout
    return made
