"""Notes of a comparison: what makes the compared policies less alike than they look."""

from __future__ import annotations

from dataclasses import replace

from posttrain.pipeline.compare.notes import listed, readable, unlike_notes
from posttrain.pipeline.compare.settings import Setting
from tests.pipeline.compare.trained import trained


def test_other_code_other_meaning_and_runs_without_a_record_are_named() -> None:
    one, other = trained("grpo"), trained("cispo")
    assert unlike_notes([one, other]) == []
    coded = replace(one, code={"online: a.py": "1", "evaluate: b.py": "1"}, unverified=("online@grpo",))
    found = unlike_notes([coded, replace(other, code={"online: a.py": "2", "evaluate: b.py": "2"})])
    assert found[0] == "evaluated with different code (evaluate: b.py): the scores mean different things"
    assert found[1] == "trained with different code (online: a.py)"
    assert found[2].startswith("grpo-none-1 is not verified, because online@grpo has no record here")
    hot = {"evaluate.policies.grpo": "x", "evaluate.settings.sampling.temperature": "2"}
    cold = {**hot, "evaluate.settings.sampling.temperature": "1"}
    (note,) = unlike_notes([replace(one, settings=hot), replace(other, settings=cold)])
    assert note == "evaluated with different sampling.temperature: the scores mean different things"


def test_settings_without_answers_are_left_out_unless_all_are() -> None:
    read, unread = Setting("a", [trained("grpo")]), Setting("b", [trained("cispo", parsed=False)])
    assert readable([read, unread])[0] == [read] and len(readable([read, unread])[1]) == 1
    assert readable([unread])[0] == [unread]


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b" and listed(list("abcdef")) == "a, b, c, d and 2 more"
