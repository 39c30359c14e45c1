"""Rows left out by length, as near-duplicates and for what an evaluation asks; each is listed with what it matches."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from posttrain.data.columns import TURNS, Kind, from_rows, with_ids
from posttrain.errors import DataError, ParamsError
from posttrain.models.files.import_model import fetch_model
from posttrain.pipeline.runs.data_filters import low_scored
from posttrain.pipeline.runs.samples import SamplesRun, sampled_tables
from posttrain.pipeline.runs.scored_filter import ScoredFilterRun
from posttrain.pipeline.tables.filters import COMMON, FilterRun, filtered
from posttrain.pipeline.tables.near_duplicates import SHINGLE, near_duplicates
from posttrain.pipeline.tables.ngrams import chunks, grams
from posttrain.pipeline.tables.options import FileTable
from posttrain.pipeline.tables.store import read_table, write_tables
from posttrain.settings.params import check
from tests.library.models.imported_models import scorer_folder
from tests.library.models.tiny import tiny_folder
from tests.pipeline.rewards.judge.conftest import Endpoint, running
from tests.pipeline.tables.loading import load_table
from tests.pipeline.tables.samples import assistant, user
from tests.pipeline.tables.test_data_stages import run

WORDS = ("river", "runs", "past", "old", "mill", "two", "brothers", "ground", "wheat", "every", "village", "valley")


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str, kind: Kind, rows: list[dict[str, Any]]) -> None:
    """The rows as the table data/NAME/KIND.parquet."""
    write_tables({kind: from_rows(rows, kind)}, Path("data") / name)


def chat(n: int, asked: str, told: str, split: str = "train") -> dict[str, Any]:
    return {"split": split, "problem": f"p{n}", "messages": user(asked) + assistant(told)}


def prompt(n: int, asked: str, split: str = "test") -> dict[str, Any]:
    return {"split": split, "problem": f"q{n}", "prompt": user(asked), "answer": "1", "info": "{}", "task": ""}


def sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) + str(rng.randrange(40)) for _ in range(words))


def left(data: str, **settings: Any) -> tuple[set[str], pl.DataFrame]:
    """The problems that are kept, and the list of the rows left out."""
    kind, table = filtered("clean", check(FilterRun, {"data": data, "against": "none", **settings}, where="here"))
    return set(table["problem"]), pl.read_parquet(f"rejected/clean/{kind}.rejected.parquet")


def test_ngrams_equal_those_of_a_plain_loop_over_words() -> None:
    """Also with short and empty texts, letters of other scripts, and texts of any length in one chunk."""
    rng = random.Random(0)
    texts = [sentence(rng, rng.randrange(9)) for _ in range(200)] + [
        "",
        " .,! ",
        "Äh, ÄH - äh?",
        "水を飲む",
        "a.b",
        "b a",
    ]
    texts += ["a b c d e f", "A b  c, d e (f)", "x" * 3000]
    found = grams(pl.Series(texts), 4)
    plain = [re.findall(r"[水飲をむ]|[^\W_]+", text.lower()) for text in texts]
    expected = [
        [tuple(words[i : i + 4]) for i in range(len(words) - 3)] or ([tuple(words)] if words else []) for words in plain
    ]
    assert np.diff(found.starts).tolist() == [len(one) for one in expected]
    names: dict[tuple[str, ...], int] = {}
    for value, gram in zip(found.values.tolist(), (one for text in expected for one in text), strict=True):
        assert names.setdefault(gram, value) == value
    assert len(set(names.values())) == len(names), "different n-grams have different hashes"


def test_chunks_contain_all_texts_in_order() -> None:
    texts = pl.Series(["x" * 700_000, "b", "", "y" * 3_000_000, "c"] * 3)
    parts = list(chunks(texts))
    assert [start for start, _ in parts] == [0, *np.cumsum([len(part) for _, part in parts])[:-1].tolist()]
    assert pl.concat([part for _, part in parts]).equals(texts)
    assert len(parts) > 3


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_near_duplicates_equal_those_of_comparing_all_pairs(threshold: float) -> None:
    rng = random.Random(1)
    texts = [sentence(rng, 40) for _ in range(60)]
    for text in texts[:30]:
        words = text.split()
        for place in rng.sample(range(40), rng.randrange(4)):
            words[place] = "changed"
        texts.append(" ".join(words))
    sets = [{tuple(words[i : i + SHINGLE]) for i in range(len(words) - 4)} for words in map(str.split, texts)]
    similar = {
        (a, b): len(sets[a] & sets[b]) / len(sets[a] | sets[b]) for b in range(len(texts)) for a in range(b)
    }  # fmt: skip
    expected = {b: (a, value) for (a, b), value in similar.items() if value >= threshold}
    found = {one.text: (one.first, one.similarity) for one in near_duplicates(pl.Series(texts), threshold)}
    assert found == expected
    assert 5 < len(found) < 30


def test_without_a_text_there_is_no_near_duplicate() -> None:
    assert list(near_duplicates(pl.Series([], dtype=pl.String), 0.8)) == []


def called(n: int, arguments: str, split: str = "train") -> dict[str, Any]:
    """A row whose answer is a call of a tool: its turn has no text of its own."""
    fields = [
        {},
        {"tool_calls": [{"type": "function", "function": {"name": "look_up", "arguments": {"of": arguments}}}]},
    ]
    tools = json.dumps([{"type": "function", "function": {"name": "look_up", "description": " ".join(WORDS * 5)}}])
    return {**chat(n, "Look it up", "", split), "fields": json.dumps(fields), "tools": tools}


def test_tool_calls_count_as_text_and_the_list_of_tools_does_not() -> None:
    rng = random.Random(4)
    said = [sentence(rng, 40) for _ in range(3)]
    rows = [called(0, said[0]), called(1, said[1]), called(2, said[1] + " more"), called(3, said[2])]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    frame = pl.DataFrame({**columns, "messages": pl.Series(columns["messages"], dtype=TURNS)})
    write_tables({"chat": with_ids(frame, "chat")}, Path("data/mine"))
    put("asked", "prompts", [prompt(0, said[2])])
    kept, removed = left("mine/chat", near_duplicates=0.8, against="asked/prompts")
    assert kept == {"p0", "p1"}
    assert dict(removed.select("problem", "match_table").rows()) == {"p2": "mine/chat", "p3": "asked/prompts"}
    assert left("mine/chat", min_chars=200)[0] == {"p0", "p1", "p2", "p3"}, "the turns alone are 10 characters"


def test_near_duplicates_of_held_out_rows_are_removed_from_training() -> None:
    rng = random.Random(2)
    asked = sentence(rng, 60)
    rows = [chat(0, asked, "one two"), chat(1, asked + " more", "one two", "heldout")]
    rows += [chat(2, sentence(rng, 60), "three"), chat(3, sentence(rng, 60), "four", "heldout")]
    put("mine", "chat", rows)
    kept, removed = left("mine/chat", near_duplicates=0.8)
    assert kept == {"p1", "p2", "p3"}
    held_out = read_table("data/mine/chat.parquet", "chat").filter(problem="p1")["id"].item()
    assert removed.select("match_table", "match_id", "problem").rows() == [("mine/chat", held_out, "p0")]
    assert 0.8 <= removed["similarity"].item() < 1


def test_rows_that_repeat_an_evaluation_are_removed_from_training() -> None:
    """The same 13 words in any turn but the system's, or a short question that is the same as a whole."""
    rng = random.Random(3)
    question, other = sentence(rng, 30), sentence(rng, 30)
    part = " ".join(question.split()[5:18])
    rows = [
        chat(0, "Repeat.", f"Well: {part.upper()}!"),
        chat(1, "Repeat.", " ".join(question.split()[5:17])),
        chat(2, "What is 2 + 3?", "5"),
        chat(3, "What is 2 + 4?", "What is 2 + 3?"),
        chat(4, part, "held-out rows stay", "heldout"),
        chat(5, other, "that is a training prompt of the evaluation's table"),
        {**chat(6, "Hi", "Hello"), "messages": [{"role": "system", "content": part}, *user("Hi"), *assistant("Hello")]},
    ]
    put("mine", "chat", rows)
    put("exam", "prompts", [prompt(0, question), prompt(1, "what is 2+3"), prompt(2, other, "train")])
    kept, removed = left("mine/chat", against="exam/prompts")
    assert kept == {"p1", "p3", "p4", "p5", "p6"}
    exam = read_table("data/exam/prompts.parquet", "prompts")["id"].to_list()
    assert dict(removed.select("problem", "match_id").rows()) == {"p0": exam[0], "p2": exam[1]}
    assert set(removed["match_table"]) == {"exam/prompts"}


def test_a_template_shared_by_all_evaluation_rows_is_not_contamination(capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(4)
    template = sentence(rng, 20)
    put("exam", "prompts", [prompt(n, f"{template}\n{sentence(rng, 20)}") for n in range(COMMON + 1)])
    put("mine", "chat", [chat(0, f"{template} mine", "1"), chat(1, "two", "2", "heldout")])
    kept, _ = left("mine/chat", against="exam/prompts")
    assert kept == {"p0", "p1"}
    assert "8 n-grams that more than 10 of its rows share are ignored" in capsys.readouterr().err


def test_too_short_and_too_long_rows_are_removed(capsys: pytest.CaptureFixture[str]) -> None:
    put("mine", "chat", [chat(n, "x" * n, "y", "heldout" if n == 5 else "train") for n in (1, 5, 9, 30)])
    kept, removed = left("mine/chat", min_chars=4, max_chars=11)
    assert kept == {"p5", "p9"}
    assert dict(removed.select("problem", "reason").rows()) == {"p1": "3 characters", "p30": "32 characters"}
    counts, kept_rows = capsys.readouterr().err.splitlines()
    assert counts == "data.filters.clean: 2 of 4 rows left out: shorter or longer than min_chars 4, max_chars 11"
    assert kept_rows.startswith("data.filters.clean: 2 of 4 rows kept (1 train, 1 heldout); rejected/clean/chat.reje")


def test_a_filter_that_removes_every_row_is_an_error() -> None:
    put("mine", "chat", [chat(0, "long enough", "1"), chat(1, "no", "2", "heldout")])
    why = r"heldout' remains of 1 row \(1 left out: shorter or longer than min_chars 8, max_chars none\)\. Relax"
    with pytest.raises(DataError, match=why):
        left("mine/chat", min_chars=8)
    put("exam", "prompts", [prompt(0, "only training", "train")])
    with pytest.raises(ParamsError, match="against = exam/prompts: this table has no held-out or test rows"):
        left("mine/chat", against="exam/prompts")
    with pytest.raises(ParamsError, match="must be <= max_chars"):
        left("mine/chat", min_chars=8, max_chars=7)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["corpus", "prompts", "pairs", "feedback"])
def test_every_kind_of_table(kind: Kind, tmp_path: Path) -> None:
    """The stage writes a table of the same kind."""
    rng = random.Random(5)
    said = [sentence(rng, 30) for _ in range(4)]
    said[1] = said[0] + " end"
    asked = [
        {"split": "heldout" if n == 3 else "train", "problem": f"p{n}", "prompt": user(text)}
        for n, text in enumerate(said)
    ]
    rows: dict[str, list[dict[str, Any]]] = {
        "corpus": [{"split": row["split"], "text": text} for row, text in zip(asked, said, strict=True)],
        "prompts": [{**row, "answer": "1", "info": "{}", "task": ""} for row in asked],
        "pairs": [{**row, "chosen": assistant("1"), "rejected": assistant("2"), "margin": 0.0} for row in asked],
        "feedback": [{**row, "completion": assistant("1"), "label": True} for row in asked],
    }
    put("raw", kind, rows[kind])
    done = run(tmp_path, "filters", data=f"raw/{kind}", against=f"raw/{kind}", near_duplicates=0.7, reward_model="none")
    assert done.returncode == 0, done.stderr
    assert read_table(f"data/mine/{kind}.parquet", kind).height == 3


def test_prompts_by_measured_pass_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """Of training prompts those whose share of passing samples is as asked; held-out prompts are all kept."""
    rows = [prompt(n, f"{n}?", "heldout" if n > 2 else "train") for n in range(5)]
    inputs = {"policy": "sft/main", "data": "a/prompts", "reward_model": "none", "reward": {"correct": 1.0}}
    settings = {"tables": ["prompts"], "samples": 2, "pass_rate": [0.1, 0.9], "pass_score": 0.5}
    rewards = [1.0, 1.0, 0.0, 0.5, 0.4, 0.0, 0.0, 0.0, 1.0, 1.0]
    tables, _ = sampled_tables(check(SamplesRun, {**inputs, **settings}, where="here"), "here", rows, [], rewards)
    assert set(tables["prompts"]["problem"]) == {"q1", "q3", "q4"}
    assert capsys.readouterr().out == (
        "here: 1 of 3 training prompts have a pass rate in [0.1, 0.9]; of all, 2 never pass, 2 always\n"
    )
    hard = check(SamplesRun, {**inputs, **settings, "pass_rate": [0.6, 0.9]}, where="here")
    with pytest.raises(DataError, match=r"no training prompt has a pass rate in \[0.6, 0.9\]"):
        sampled_tables(hard, "here", rows, [], rewards)
    with pytest.raises(ParamsError, match="are not shares in order"):
        check(SamplesRun, {**inputs, "pass_rate": [0.9, 0.1]}, where="here")


def test_rows_of_a_group_are_in_one_split() -> None:
    """A column of groups, renamed to `problem`, decides the split; rows without one go by their prompt."""
    rows = [
        {"prompt": f"{n}?", "completion": str(n), "source": f"page {n % 40}" if n < 400 else None} for n in range(420)
    ]
    pl.DataFrame(rows).write_parquet("mine.parquet")
    source = FileTable(path="mine.parquet", rename={"source": "problem"}, heldout_share=0.3, test_share=0.0)
    table = load_table(source, "chat", "here")
    groups = (
        table.filter(pl.col("problem").str.starts_with("page "))
        .group_by("problem")
        .agg(pl.col("split").n_unique(), pl.len())
    )
    assert groups["split"].to_list() == [1] * 40
    assert groups["len"].to_list() == [10] * 40
    assert set(table["split"]) == {"train", "heldout"}
    assert table["problem"].n_unique() == 60


LENGTH = {"length": {"limit": 20, "unit": "words"}}
"""1 for no words, falling to 0 at 20."""


def scored(data: str, **settings: Any) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that are kept, and the list of the rows left out."""
    named = {"data": data, "against": "none", "reward_model": "none", **settings}
    params = check(ScoredFilterRun, named, where="data.filters.good")
    kind, table = filtered("good", params, lambda table, kind: low_scored(table, kind, params, "data.filters.good"))
    return table, pl.read_parquet(f"rejected/good/{kind}.rejected.parquet")


def foreign(draw: random.Random, kind: Kind, prompts: int = 12) -> list[dict[str, Any]]:
    """Rows of a table that others wrote: several answers of each prompt, of 0 to 25 words."""
    rows = []
    for n in range(prompts):
        split = "heldout" if n % 4 == 3 else "train"
        shared = {"split": split, "problem": f"p{n}"}
        for k in range(draw.randrange(1, 6)):
            said = assistant(f"{k} {sentence(draw, draw.randrange(25))}")
            rest = {"messages": user(f"Question {n}?") + assistant("Which?") + user("That.") + said}
            if kind == "pairs":
                rest = {"prompt": user(f"Question {n}?"), "chosen": said, "rejected": assistant("no"), "margin": 1.0}
            if kind == "feedback":
                rest = {"prompt": user(f"Question {n}?"), "completion": said, "label": True}
            rows.append({**shared, **rest})
    return rows


@pytest.mark.parametrize("kind", ["chat", "pairs", "feedback"])
@pytest.mark.parametrize("limits", [{"min_score": 0.4}, {"best": 2}, {"best": 1, "min_score": 0.25}])
def test_a_score_chooses_the_rows_that_a_plain_loop_over_words_does(kind: Kind, limits: dict[str, Any]) -> None:
    rows = foreign(random.Random(6), kind)
    put("theirs", kind, rows)
    column = {"chat": "messages", "pairs": "chosen", "feedback": "completion"}[kind]
    expected, groups = [], dict[str, list[tuple[float, int]]]()
    for place, row in enumerate(rows):
        score = max(0.0, 1 - len(row[column][-1]["content"].split()) / 20)
        groups.setdefault(row["problem"], []).append((score, place))
    for members in groups.values():
        best = sorted(members, key=lambda one: (-one[0], one[1]))[: limits.get("best", 99)]
        expected += [place for score, place in best if score >= limits.get("min_score", 0.0)]
    kept, removed = scored(f"theirs/{kind}", reward=LENGTH, **limits)
    said = [row[column][-1]["content"] for row in rows]
    assert kept[column].list.last().struct.field("content").to_list() == [said[place] for place in sorted(expected)]
    assert removed.height == len(rows) - kept.height > 3
    assert removed["score"].is_finite().all() and set(removed["reason"]) <= {
        f"a score below {limits.get('min_score')}", f"not among the best {limits.get('best')} of the prompt"
    }  # fmt: skip


def test_each_prompt_of_a_problem_keeps_its_best_row() -> None:
    """Questions about one page, and one question with and without what the template reads."""
    words = [5, 1, 3, 2, 4]
    rows = [chat(0, f"Question {n // 2}?", "word " * count + str(n)) for n, count in enumerate(words)]
    put("theirs", "chat", [*rows, chat(0, "Question 2?", "word")])
    assert scored("theirs/chat", reward=LENGTH, best=1)[0]["id"].to_list() == [
        row["id"] for row in from_rows([rows[1], rows[3], chat(0, "Question 2?", "word")], "chat").iter_rows(named=True)
    ]
    variables = pl.Series("chat_template_kwargs", [None, None, '{"enable_thinking":false}', None])
    table = from_rows(rows[:4], "chat").drop("id").with_columns(variables)
    write_tables({"chat": with_ids(table, "chat")}, Path("data/theirs"))
    assert scored("theirs/chat", reward=LENGTH, best=1)[0].height == 3


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A judge's endpoint, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with running() as found:
        yield found


def test_a_judge_chooses_rows_of_a_table_of_others(endpoint: Endpoint) -> None:
    endpoint.does(then="rule")
    put("theirs", "chat", [chat(n, f"Question {n}?", f"A {'good' if n % 3 else 'poor'} answer {n}.") for n in range(9)])
    judge = {"judge": {"url": endpoint.url, "model": "m"}}
    kept, removed = scored("theirs/chat", reward=judge, min_score=0.8)
    assert set(kept["problem"]) == {f"p{n}" for n in range(9) if n % 3}
    assert removed.height == 3 and (removed["score"] < 0.3).all()
    asked = json.dumps(endpoint.asked("Question 0?"))
    assert "Question 0?" in asked and "A poor answer 0." in asked


@pytest.mark.parametrize(
    ("settings", "because"),
    [
        ({"reward": LENGTH}, "reward needs one of them. Set both, or neither"),
        ({"best": 1}, "reward needs one of them. Set both, or neither"),
        ({"reward": {"length": {"weight": 0.0, "limit": 3}}, "best": 1}, "all rewards have weight 0"),
        ({"reward": {"model": 1.0}, "best": 1}, "Set one, e.g. reward_model: reward/main"),
        (
            {"reward_model": "reward/main", "reward": LENGTH, "best": 1},
            "Add `model` to reward, or set reward_model: no",
        ),
        ({"reward_model": "reward/main"}, "reward_model = reward/main, reward = : reward_model and the reward"),
        ({"reward": LENGTH, "best": 0}, "greater than or equal to 1"),
        ({"data": "mine/prompts", "reward": LENGTH, "best": 1}, "its rows have no answers to score. Use chat, pairs"),
        ({"reward": {"correct": 1.0}, "best": 1}, "reward.correct: rows have no `answer` and no `info`"),
        ({"reward": {"code": 1.0}, "best": 1}, "reward.code: rows have no .* .its info has no `tests`.. Use another"),
        ({"reward": {"length": {"limit": 9}}, "best": 1}, "reward.length: it does not score rows: its tokens are not"),
        (
            {"reward": {"judge": {"url": "http://127.0.0.1:1/v1", "model": "m", "mode": "group"}}, "best": 1},
            "reward.judge: mode group compares samples of a prompt, but rows are scored separately. Use score",
        ),
        ({}, "no filter is set, so no row would be left out"),
        ({"ngram": 5, "min_chars": 3}, "ngram = 5: it needs a table in against, but against is none"),
    ],
)
def test_settings_of_scores_that_mean_nothing_are_refused(settings: dict[str, Any], because: str) -> None:
    named = {"data": "mine/chat", "against": "none", "reward_model": "none", **settings}
    with pytest.raises(ParamsError, match=because):
        check(ScoredFilterRun, named, where="data.filters.x")


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A reward model that was trained here, and one of others with another tokenizer and template."""
    import torch

    from posttrain.models.files.store import load_scorer, save_model

    folder = tmp_path_factory.mktemp("judges")
    start = tiny_folder(folder)
    model = load_scorer(start)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.score.weight)
    save_model(model, folder / "ours", start)
    fetch_model(str(scorer_folder(folder / "given")), None, folder / "theirs")
    return {"ours": folder / "ours", "theirs": folder / "theirs"}


def alone(folder: Path, messages: list[dict[str, str]]) -> float:
    """The score of one conversation by a forward pass of transformers, without padding or packing."""
    import torch

    from posttrain.models.files.loading import WHOLE_TEXT
    from posttrain.models.files.store import load_model
    from posttrain.models.files.text import load_text

    model, text = load_model(folder), load_text(folder)
    (row,) = text.exchanges([(messages[:-1], messages[-1:])])
    whole = getattr(model.config, WHOLE_TEXT, False)
    ids = text.whole([messages])[0] if whole else [*row.prompt, *row.rest]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return float(model.score(model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]))


@pytest.mark.parametrize("name", ["ours", "theirs"])
@pytest.mark.parametrize("kind", ["chat", "pairs", "feedback"])
def test_the_rows_that_a_reward_model_scores_highest_are_kept(
    judges: dict[str, Path], name: str, kind: Kind, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("posttrain.rewards.learned.ROWS", 7)  # parts that no prompt's rows fill
    shutil.copytree(judges[name], "models/reward/main")
    rows = [row for row in foreign(random.Random(3), kind, 5) if row["split"] == "train" or kind != "feedback"]
    put("theirs", kind, rows)
    column = {"chat": "messages", "pairs": "chosen", "feedback": "completion"}[kind]
    scores = [alone(judges[name], [*row.get("prompt", []), *row[column]]) for row in rows]
    ranked = sorted(range(len(rows)), key=lambda place: -scores[place])
    least, seen, expected = sorted(scores)[len(scores) // 4] - 1e-4, dict[str, int](), list[int]()
    for place in ranked:
        seen[rows[place]["problem"]] = seen.get(rows[place]["problem"], 0) + 1
        if seen[rows[place]["problem"]] <= 2 and scores[place] >= least:
            expected.append(place)
    kept, removed = scored(
        f"theirs/{kind}", reward_model="reward/main", reward={"model": 2.0}, best=2, min_score=2 * least
    )
    said = [row[column][-1]["content"] for row in rows]
    assert kept[column].list.last().struct.field("content").to_list() == [said[place] for place in sorted(expected)]
    assert 0 < removed.height == len(rows) - kept.height
    listed = dict(zip(removed[column].list.last().struct.field("content"), removed["score"], strict=True))
    for place, score in enumerate(scores):
        assert listed.get(said[place], 2 * score) == pytest.approx(2 * score, abs=1e-4)
    assert f"data.filters.good: reward model: {len(rows)}/{len(rows)} rows" in capsys.readouterr().err


def test_rows_with_tools_are_not_shown_to_a_reward_model(judges: dict[str, Path]) -> None:
    shutil.copytree(judges["ours"], "models/reward/main")
    tools = json.dumps([{"type": "function", "function": {"name": "add", "parameters": {}}}])
    table = from_rows([chat(n, f"Question {n}?", f"Answer {n}.") for n in range(4)], "chat")
    used = pl.when(pl.col("problem") == "p2").then(pl.lit(tools))
    columns = {"fields": pl.lit(None, pl.String), "tools": used}
    write_tables({"chat": with_ids(table.drop("id").with_columns(**columns), "chat")}, Path("data/theirs"))
    with pytest.raises(DataError, match="1 of 4 rows use tools, which a reward model does not see"):
        scored("theirs/chat", reward_model="reward/main", reward={"model": 1.0}, best=1)


def test_a_score_that_no_row_reaches_is_an_error() -> None:
    put("theirs", "chat", [chat(n, f"Question {n}?", f"Answer {n}.") for n in range(4)])
    with pytest.raises(DataError, match="no row of the split 'train' remains"):
        scored("theirs/chat", reward=LENGTH, min_score=2.0)
