"""Every key of TRL's configs is answered by the table, and by nothing else."""

from __future__ import annotations

import json

import pytest

from docs.make.trl import KEYS, PAGE, page
from posttrain.errors import ParamsError
from posttrain.pipeline import EXPLAINED
from posttrain.pipeline.runs.typed import ALGORITHMS, MODELS
from posttrain.settings.other_names import OURS
from posttrain.settings.params import _has, check
from posttrain.settings.trl_names import NONE, TRL

ROWS = ("online.runs.grpo", "online.runs.raft", "preference.runs.dpo", "distill.runs.gkd", "offline.runs.grpo")
RUNS = {f"{section}.{name}": of.model for section, table in ALGORITHMS.items() for name, of in table.items()} | MODELS
STORED = json.loads(KEYS.read_text(encoding="utf-8"))


def test_the_table_has_every_key_of_trl_once() -> None:
    assert set(TRL) == set(STORED)
    names = [name for keys in NONE.values() for name in keys.split()]
    assert len(names) == len(set(names)) and not set(TRL) & set(OURS)


def test_every_key_of_ours_exists() -> None:
    models = [*MODELS.values(), *RUNS.values()]
    places = {place for ours, _ in TRL.values() for place in ours} | {place for ours in OURS.values() for place in ours}
    assert {place for place in places if not any(_has(model, place) for model in models)} == set()


@pytest.mark.parametrize("run", [*(row for row in ROWS if row in RUNS), "sft.runs", "reward.runs"])
def test_check_answers_each_key_by_the_tables_line(run: str) -> None:
    model = RUNS[run]
    for name, (ours, note) in TRL.items():
        if name in model.model_fields:
            continue
        with pytest.raises(ParamsError) as caught:
            check(model, {name: 1}, where="run")
        (line,) = [part for part in str(caught.value).splitlines() if f"run.{name}: unknown key. " in part]
        answer = line.partition("unknown key. ")[2].removesuffix(f". {EXPLAINED}")
        here = [place for place in ours if _has(model, place)]
        if here:
            said = f"It is {' or '.join(map(repr, here))} here"
            assert answer == (f"{said} ({note})" if note else said)
        else:
            wanted = f"no equivalent here: {note}" if not ours else "in other runs"
            assert answer.startswith("TRL's key") and wanted in answer, name


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run: python -m docs.make.trl"
