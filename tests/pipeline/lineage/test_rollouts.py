"""Rollouts hold text and tokens of the user's prompts: a deletion has to find them, and a push has to name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.data.columns import TRAINING_TEXT
from posttrain.pipeline.lineage.query import Query
from posttrain.pipeline.lineage.search import in_file
from posttrain.pipeline.lineage.user_text import user_text
from posttrain.pipeline.tables.store import write_table
from tests.pipeline.tables.samples import table_of


def test_a_row_is_found_in_rollouts_by_its_prompt_also_where_no_text_is_stored(tmp_path: Path) -> None:
    file, no_text = tmp_path / "part-00000.parquet", dict.fromkeys(TRAINING_TEXT)
    changes = {3: {"completion": "I live at 12 Elm Street"}, 0: no_text}
    write_table(table_of("training_rollouts", changes), file, "training_rollouts")
    assert in_file(file, Query(ids=(f"{0:016x}",))) == [1, 2]
    assert in_file(file, Query(texts=("12 Elm Street",))) == [4]
    assert in_file(file, Query(ids=(f"{9:016x}",))) is None


def test_a_push_names_the_rollouts_of_prompts_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("online/a", "online/figures", "online/generated", "distill/b"):
        Path("rollouts", name).mkdir(parents=True)
    settings = {
        "data": {"files": {"mine": {"path": "my"}}},
        "online": {
            "runs": {
                "a": {"data": "mine/prompts"},
                "figures": {"data": "mine/prompts", "rollouts": "none"},
                "generated": {"data": "two_step/prompts"},
            }
        },
        "distill": {"runs": {"b": {"data": "mine/prompts", "rollouts": "sampled"}}},
    }
    assert user_text(settings) == [Path("rollouts/online/a"), Path("rollouts/distill/b")]
