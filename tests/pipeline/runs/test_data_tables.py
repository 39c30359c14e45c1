"""Tables that the user's own command writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.pipeline.runs.data_tables import command_tables, write_tables_of
from posttrain.pipeline.tables.store import read_table


def test_what_the_command_writes_becomes_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my").mkdir()
    rows = [{"prompt": f"{nth}+1?", "completion": str(nth + 1)} for nth in range(300)]
    Path("my/rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    chat = "{path: rows.jsonl, test_share: 0}"
    command = f"{{command: 'cp my/rows.jsonl {{out}}', script: my, start: none, data: none, chat: {chat}}}"
    Path("params.yaml").write_text(f"data: {{commands: {{made: {command}}}}}\n")
    found = command_tables("made")
    assert list(found) == ["chat"] and found["chat"].height == 300
    write_tables_of("made", command_tables)
    assert read_table(Path("data/made/chat.parquet"), "chat").equals(found["chat"])
