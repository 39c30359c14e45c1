"""Constitutional AI's data (arXiv:2212.08073) from a served model: revisions by principles, or comparisons by them.

    python revise.py revise FEEDBACK.parquet CHAT.jsonl --model NAME     # samples, revised in turn by principles
    python revise.py compare FEEDBACK.parquet PAIRS.jsonl --model NAME   # two samples of a prompt, in both orders

FEEDBACK has the samples (`data.samples` with `tables: [feedback]`; its labels are not read). The endpoint speaks
OpenAI's protocol. Its address is in the variable CONSTITUTION_URL (http://127.0.0.1:8000/v1), its key in
CONSTITUTION_KEY, which may be empty. A reply that cannot be read is counted and its row left out. So is a comparison
whose two orders disagree.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import httpx
import polars as pl

T = TypeVar("T")
URL, KEY = "CONSTITUTION_URL", "CONSTITUTION_KEY"
PRINCIPLES = Path(__file__).with_name("principles.txt")
WAITS_S = (0.0, 1.0, 4.0, 16.0)
"""Seconds before each try of a request."""
SHOWN = 3
"""Rows that are printed whole."""

TEXT = "<question>\n{question}\n</question>\n<answer>\n{answer}\n</answer>\n<principle>\n{principle}\n</principle>\n"
CRITIQUE = TEXT + "Say in a sentence or two where the answer breaks the principle, or that it keeps it."
REVISION = (
    TEXT
    + "<critique>\n{critique}\n</critique>\nWrite the answer again, so that it keeps the principle and is still right. "
    "Put the new answer, and nothing else, between <revision> and </revision>."
)
COMPARISON = (
    "<question>\n{question}\n</question>\n<A>\n{first}\n</A>\n<B>\n{second}\n</B>\n<principle>\n{principle}\n</principle>\n"
    "Which of the two answers keeps the principle better? Reply with one letter on the last line: A or B."
)


class EndpointError(Exception):
    """The endpoint cannot be used; the message says why and how to fix it."""


@dataclass(frozen=True)
class Principle:
    """A principle, its name in figures, and the rule that an answer which keeps it matches."""

    name: str
    text: str
    rule: re.Pattern[str] | None = None

    def kept(self, answer: str) -> bool | None:
        """Return whether an answer keeps the rule; None if there is none."""
        return None if self.rule is None else self.rule.search(answer) is not None


class Endpoint:
    """A served model that answers one question at a time."""

    def __init__(self, url: str, key: str, model: str, max_tokens: int, timeout: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise EndpointError(f"{URL} is no address. Set it to that of the endpoint, e.g. http://127.0.0.1:8000/v1")
        if not re.fullmatch(r"[!-~]*", key):
            raise EndpointError(f"{KEY} has a character that no header takes, such as a line's end. Set it again")
        self._url, self._key = f"{url.rstrip('/')}/chat/completions", key
        self._body = {"model": model, "max_tokens": max_tokens, "temperature": 0.0}
        # no redirect is followed, as it might take the key elsewhere
        self._client = httpx.Client(headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=timeout)

    def ask(self, question: str) -> str | None:
        """Return the reply; None if it is empty or was cut."""
        failure = ""
        for wait in WAITS_S:
            time.sleep(wait)
            try:
                reply = self._client.post(
                    self._url, json={**self._body, "messages": [{"role": "user", "content": question}]}
                )
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                failure = f"{type(error).__name__}: {error}"
                continue
            if reply.status_code == 200:
                return self._read(reply)
            failure = f"status {reply.status_code}: {reply.text[:200]}"
            if reply.status_code not in (408, 425, 429) and reply.status_code < 500:
                break
        raise self._error(failure)

    def _read(self, reply: httpx.Response) -> str | None:
        try:
            choice = reply.json()["choices"][0]
            text, end = choice["message"]["content"], choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError):
            raise self._error(f"its reply is no chat completion: {reply.text[:200]}") from None
        return text if isinstance(text, str) and text.strip() and end != "length" else None

    def _error(self, failure: str) -> EndpointError:
        said = failure.replace(self._key, "(the key)") if self._key else failure
        return EndpointError(f"{self._url} failed: {said}. Check that it is up, {URL}, {KEY} and --model")


def principles_of(file: Path) -> list[Principle]:
    """Return the principles of a text file, each with the rule on the line below it."""
    found: list[Principle] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith("rule:"):
            found.append(Principle(f"principle_{len(found) + 1}", line.strip()))
        elif not found or found[-1].rule is not None:
            raise ValueError(f"{file}, line {number}: a rule belongs below its principle. Write the principle above it")
        else:
            try:
                found[-1] = replace(found[-1], rule=re.compile(line.removeprefix("rule:").strip()))
            except re.error as error:
                raise ValueError(f"{file}, line {number}: no regular expression ({error}). Correct it") from None
    if not found:
        raise ValueError(f"{file} has no principle. Write one a line")
    return found


def drawn(principles: Sequence[Principle], count: int, *names: object) -> list[Principle]:
    """Return principles for a row, each drawn from all; they depend on the seed and the row alone."""
    return random.Random(repr(names)).choices(principles, k=count)


def text_of(turns: Sequence[dict[str, str]]) -> str:
    """Return a prompt as text: of a single turn its content."""
    return turns[0]["content"] if len(turns) == 1 else "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)


def revision_of(reply: str | None) -> str | None:
    """Return the revision in a reply; None unless it has exactly one, with text that a table accepts."""
    found = re.findall(r"<revision>(.*?)</revision>", reply or "", re.DOTALL)
    text = found[0].strip() if len(found) == 1 else ""
    return text if text and not re.search(r"[\x00-\x08\x0e-\x1f\x7f]", text) else None


def verdict_of(reply: str | None) -> str | None:
    """Return A or B, if that is the last line of a reply."""
    last = (reply or "").strip().rpartition("\n")[2].strip(" .*()")
    return last if last in ("A", "B") else None


def revised(ask: Callable[[str], str | None], principles: Sequence[Principle], row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of chat with a sample revised by each principle in turn, or what became of it as `left_out`."""
    answer = revision = row["completion"][-1]["content"]
    critiques = []
    for principle in principles:
        parts = {"question": text_of(row["prompt"]), "answer": revision, "principle": principle.text}
        critique = ask(CRITIQUE.format(**parts))
        found = None if critique is None else revision_of(ask(REVISION.format(**parts, critique=critique)))
        if found is None:
            return {"left_out": "replies that cannot be read"}
        revision = found
        critiques.append(critique)
    made = {name: row[name] for name in ("split", "problem", "prompt")}
    named = [principle.text for principle in principles]
    return made | {"principles": named, "answer": answer, "critiques": critiques, "completion": revision}


def compared(ask: Callable[[str], str | None], principle: Principle, pair: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a row of pairs from two samples compared in both orders, or what became of them as `left_out`."""
    texts = [row["completion"][-1]["content"] for row in pair]
    shared = {"question": text_of(pair[0]["prompt"]), "principle": principle.text}
    forth, back = (
        verdict_of(ask(COMPARISON.format(**shared, first=texts[first], second=texts[1 - first]))) for first in (0, 1)
    )
    if forth is None or back is None:
        return {"left_out": "replies that cannot be read"}
    if forth == back:
        return {"left_out": "comparisons whose two orders disagree"}
    better = 0 if forth == "A" else 1
    made = {name: pair[0][name] for name in ("split", "problem", "prompt")}
    sides = {"chosen": texts[better], "rejected": texts[1 - better]}
    return made | {"principle": principle.text, **sides, "subset": principle.name}  # the table keeps `subset`


def samples_to_compare(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the samples of each prompt in twos; each sample is in one comparison at most."""
    for _, samples in groupby(rows, key=lambda row: (row["split"], row["problem"], json.dumps(row["prompt"]))):
        mine = list(samples)
        yield from zip(mine[0::2], mine[1::2], strict=False)


def all_of(work: Callable[[T], dict[str, Any]], tasks: Sequence[T], concurrency: int) -> list[dict[str, Any]]:
    """Return the result of each task in order; the first failure ends them all."""
    pool = ThreadPoolExecutor(concurrency)
    try:
        return list(pool.map(work, tasks))
    finally:
        pool.shutdown(cancel_futures=True)


def report(action: str, rows: Sequence[dict[str, Any]], principles: Sequence[Principle]) -> Iterator[str]:
    """Yield the lines to print: some rows, and how far they agree with the rules."""
    for row in rows[:SHOWN]:
        yield json.dumps({name: row[name] for name in row if name not in ("split", "problem")}, ensure_ascii=False)
    for principle in principles:
        if principle.rule is None:
            continue
        mine = [row for row in rows if principle.text in row.get("principles", [row.get("principle")])]
        if action == "revise":
            before, after = (sum(bool(principle.kept(row[name])) for row in mine) for name in ("answer", "completion"))
            yield f"{principle.name}: its rule is kept by {before} of {len(mine)} answers, {after} of their revisions"
        else:
            sides = [(principle.kept(row["chosen"]), principle.kept(row["rejected"])) for row in mine]
            differ = [bool(chosen) for chosen, rejected in sides if chosen != rejected]
            yield f"{principle.name}: agrees with its rule in {sum(differ)} of {len(differ)} comparisons"
            yield f"{principle.name}: in {len(mine) - len(differ)} both answers keep its rule, or none does"


def main() -> None:
    """Ask the endpoint about each sample, and write the rows that its replies give."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("revise", "compare"))
    parser.add_argument("samples", type=Path, metavar="FEEDBACK.parquet")
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    parser.add_argument("--model", required=True, help="its name at the endpoint")
    parser.add_argument("--principles", type=Path, default=PRINCIPLES, metavar="FILE")
    parser.add_argument("--revisions", type=int, default=2, help="of each sample, one after another")
    parser.add_argument("--seed", type=int, default=0, help="draws the principle of each revision and comparison")
    parser.add_argument("--max-tokens", type=int, default=1024, help="longest reply")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that one request may take")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at a time")
    given = parser.parse_args()
    try:
        principles = principles_of(given.principles)
        url, key = os.environ.get(URL, ""), os.environ.get(KEY, "").strip()
        endpoint = Endpoint(url, key, given.model, given.max_tokens, given.timeout)
        samples = pl.read_parquet(given.samples).rows(named=True)
        ask, seed = endpoint.ask, given.seed
        if given.action == "revise":
            rows = all_of(
                lambda row: revised(ask, drawn(principles, given.revisions, seed, row["id"]), row),
                samples,
                given.concurrency,
            )
        else:
            rows = all_of(
                lambda pair: compared(ask, drawn(principles, 1, seed, pair[0]["id"], pair[1]["id"])[0], pair),
                list(samples_to_compare(samples)),
                given.concurrency,
            )
    except (EndpointError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    made = [row for row in rows if "left_out" not in row]
    print(*report(given.action, made, principles), sep="\n")
    print(f"{len(made)} of {len(rows)} rows made")
    for reason, count in sorted(Counter(row["left_out"] for row in rows if "left_out" in row).items()):
        print(f"left out: {count} {reason}")
    if not made:
        sys.exit(f"error: no reply of {given.model} gave a row. Use a model that can follow the form of the reply")
    given.out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made), encoding="utf-8")


if __name__ == "__main__":
    main()
