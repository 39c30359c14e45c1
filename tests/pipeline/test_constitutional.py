"""The recipe `constitutional` with a served model that obeys two rules: its script, its failures, what it teaches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.pipeline.rewards.judge.conftest import Endpoint, running
from tests.pipeline.rule_critic import GREETING, INVITATION, RuleCritic, kept
from tests.workspace import ROOT, dvc, environment, make_workspace

SCRIPT = ROOT / "recipes/constitutional/revise.py"
SECRET = "-".join(["the-key", "of-the", "critic"])  # not in one piece in this file, which the workspace has too
FORMS = ("{sum}\n#### 5", GREETING + "\n{sum}\n#### 5", "{sum}\n" + INVITATION + "\n#### 5", "5")
"""Answers that keep no rule, one or the other."""
PROMPTS = 120


@pytest.fixture
def critic() -> Iterator[RuleCritic]:
    """A served model in a thread of this process."""
    with RuleCritic(key=SECRET) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    """An endpoint that misbehaves on command."""
    with running() as found:
        yield found


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Four samples of each prompt, as `data.samples` writes them."""
    rows = [
        {
            "id": f"{number}-{place}",
            "split": "heldout" if number % 10 == 0 else "train",
            "problem": f"p{number}",
            "prompt": [{"role": "user", "content": f"What is {number} + 5?"}],
            "completion": [{"role": "assistant", "content": form.format(sum=f"{number}+5")}],
            "label": True,
        }
        for number in range(PROMPTS)
        for place, form in enumerate(FORMS)
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "feedback.parquet")
    return tmp_path / "feedback.parquet"


def revise(action: str, samples: Path, url: str, *options: str, key: str = SECRET) -> tuple[int, str, Path]:
    """Exit status, output and the written file of the script."""
    out = samples.with_name(f"{action}{len(list(samples.parent.iterdir()))}.jsonl")
    done = subprocess.run(
        [sys.executable, SCRIPT, action, samples, out, "--model", "critic", *options],
        env={**environment(), "CONSTITUTION_URL": url, "CONSTITUTION_KEY": key},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, out


def pairs_of(critic: RuleCritic) -> dict[str, int]:
    """How many pairs got which reply: each was asked about twice."""
    return {kind: critic.counts[kind] // 2 for kind in ("right", "wrong", "alike", "no verdict")}


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def counted(pattern: str, text: str) -> list[int]:
    """The numbers that all matches of a pattern have, added up by place."""
    return [sum(map(int, column)) for column in zip(*re.findall(pattern, text), strict=True)]


def test_revisions_keep_the_drawn_principle_and_unread_replies_are_counted(samples: Path, critic: RuleCritic) -> None:
    status, said, out = revise("revise", samples, critic.url)
    assert status == 0, said
    rows = rows_of(out)
    left_out = len(FORMS) * PROMPTS - len(rows)
    assert left_out == critic.counts["no revision"] > 10
    assert f"left out: {left_out} replies that cannot be read" in said
    assert all(kept(principle, row["completion"]) for row in rows for principle in row["principles"])
    assert {len(row["principles"]) for row in rows} == {len(row["critiques"]) for row in rows} == {2}
    both = sum(len(set(row["principles"])) == 2 for row in rows) / len(rows)
    assert 0.35 < both < 0.65  # each is drawn from both
    before = sum(kept(principle, row["answer"]) for row in rows for principle in set(row["principles"]))
    of = sum(len(set(row["principles"])) for row in rows)
    assert counted(r"kept by (\d+) of (\d+) answers, (\d+) of their revisions", said) == [before, of, of]
    assert SECRET not in said

    again = revise("revise", samples, critic.url, "--concurrency", "1")
    assert again[2].read_bytes() == out.read_bytes()
    other = revise("revise", samples, critic.url, "--seed", "1")
    assert other[2].read_bytes() != out.read_bytes()


def test_comparisons_in_both_orders_and_their_agreement_with_the_rules(samples: Path, critic: RuleCritic) -> None:
    status, said, out = revise("compare", samples, critic.url)
    assert status == 0, said
    rows, counts = rows_of(out), pairs_of(critic)
    assert min(counts[kind] for kind in ("right", "wrong", "alike", "no verdict")) > 5
    assert sum(counts.values()) == PROMPTS * len(FORMS) / 2
    assert len(rows) == counts["right"] + counts["wrong"]
    assert f"left out: {counts['alike']} comparisons whose two orders disagree" in said
    assert f"left out: {counts['no verdict']} replies that cannot be read" in said
    right = [kept(row["principle"], row["chosen"]) and not kept(row["principle"], row["rejected"]) for row in rows]
    assert sum(right) == counts["right"]
    assert counted(r"agrees with its rule in (\d+) of (\d+) comparisons", said) == [counts["right"], len(rows)]
    assert {row["subset"] for row in rows} == {"principle_1", "principle_2"}


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("leak", "status 401"),
        ("html", "no chat completion"),
        ("no choices", "no chat completion"),
        ("redirect http://127.0.0.1:9/v1", "status 307"),
        ("empty", "gave a row"),
        ("cut", "gave a row"),
        pytest.param("500", "status 500", marks=pytest.mark.slow),
        pytest.param("hang up", "RemoteProtocolError", marks=pytest.mark.slow),
    ],
)
def test_an_endpoint_that_fails_ends_it(does: str, says: str, samples: Path, endpoint: Endpoint) -> None:
    endpoint.does(then=does)
    status, said, out = revise("compare", samples, endpoint.url)
    assert status == 1 and says in said and "Traceback" not in said
    assert SECRET not in said and not out.exists()


@pytest.mark.parametrize(
    ("url", "key", "says"),
    [("", SECRET, "CONSTITUTION_URL is no address"), ("http://127.0.0.1:9/v1", f"{SECRET}\nX: y", "no header takes")],
)
def test_a_wrong_address_or_key_is_refused(url: str, key: str, says: str, samples: Path) -> None:
    status, said, _ = revise("revise", samples, url, key=key)
    assert status == 1 and says in said and "Traceback" not in said and SECRET not in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# nothing\n", "has no principle"),
        ("rule: x\n", "line 1: a rule belongs below its principle"),
        ("Be kind.\nrule: (\n", "line 2: no regular expression"),
    ],
)
def test_principles_that_cannot_be_read_are_named(text: str, says: str, samples: Path) -> None:
    principles = samples.with_name("principles.txt")
    principles.write_text(text, encoding="utf-8")
    status, said, _ = revise("revise", samples, "http://127.0.0.1:9/v1", "--principles", str(principles))
    assert status == 1 and says in said and str(principles) in said and "Traceback" not in said


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_recipe_teaches_its_principles(tmp_path: Path, critic: RuleCritic, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = make_workspace(tmp_path / "clone", ROOT / "recipes/constitutional.yaml")
    monkeypatch.setenv("CONSTITUTION_URL", critic.url)
    monkeypatch.setenv("CONSTITUTION_KEY", SECRET)
    done = dvc(workspace, "repro")
    assert done.returncode == 0, done.stdout

    def share(name: str, figure: str = "score") -> float:
        return json.loads((workspace / f"results/{name}/metrics.json").read_text(encoding="utf-8"))[figure]

    assert share("sft") < 0.02
    assert share("revised") > share("sft") + 0.2
    assert share("ppo") > share("revised") + 0.2
    assert share("dpo") > share("revised") + 0.1

    pairs, counts = pl.read_parquet(workspace / "data/compared/pairs.parquet"), pairs_of(critic)
    assert len(pairs) == counts["right"] + counts["wrong"] and set(pairs["subset"]) == {"principle_1", "principle_2"}
    log = (workspace / "logs/data_commands@compared.log").read_text(encoding="utf-8")
    assert counted(r"agrees with its rule in (\d+) of (\d+) comparisons", log) == [counts["right"], len(pairs)]
    assert SECRET not in done.stdout + log
