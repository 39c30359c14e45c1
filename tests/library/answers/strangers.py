"""Cases by people who had not read the parser: a JSON object in each line, with its prompt and its class."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.rewards.correct import CorrectOptions, correct
from posttrain.rollout import Score
from tests.library.models.tiny import rollout_of

CASES = Path(__file__).parent / "strangers.jsonl"
SECOND = Path(__file__).parent / "second_stranger.jsonl"
THIRD = Path(__file__).parent / "third_writer.jsonl"
ATTACKER = Path(__file__).parent / "attacker.jsonl"
FOURTH = Path(__file__).parent / "fourth_writer.jsonl"


@dataclass(frozen=True)
class Verdict:
    """A case, whether `correct` calls it right, and how long that took."""

    case: dict[str, Any]
    said: bool
    score: Score
    seconds: float

    @property
    def is_wrong(self) -> bool:
        """Whether the verdict is not the case's own."""
        return self.said is not self.case["right"]


def verdicts(path: Path = CASES) -> list[Verdict]:
    """The verdict of each case of a file."""
    return [verdict(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def verdict(case: dict[str, Any]) -> Verdict:
    """The verdict of a case; unmarked ones are read with the option that they need."""
    given = {"answer": case["kind"]} | ({} if case["marked"] else {"unmarked": True})
    given |= {"choices": "ABCDEFGHIJ"} if case["kind"] == "choice" else {}
    given = {"answer": "numeric", "after": "####"} if case["kind"] == "numeric" else given
    rollout = rollout_of(case["completion"], case["gold"])
    prompt = replace(rollout.prompt, messages=[{"role": "user", "content": case["prompt"]}])
    started = time.process_time()
    (score,) = correct.score_fn(CorrectOptions(**given), None)([replace(rollout, prompt=prompt)])  # type: ignore[arg-type]
    assert isinstance(score, Score)
    return Verdict(case, score.value == 1.0, score, time.process_time() - started)


def shares(found: Iterable[Verdict]) -> tuple[int, int, int, int]:
    """Wrong answers, those accepted, right answers, those missed."""
    cases = list(found)
    wrong, right = ([one for one in cases if one.case["right"] == label] for label in (False, True))
    return len(wrong), sum(one.said for one in wrong), len(right), sum(not one.said for one in right)


def table(found: Sequence[Verdict], *, every: bool = True) -> list[str]:
    """Shares by class, marked and unmarked apart, and answers per second; not `every`: classes with wrong verdicts."""
    lines = ["| class | marked | wrong | accepted | right | missed |", "|---|---|---|---|---|---|"]
    classes = sorted({(one.case["marked"], one.case["class"]) for one in found}, reverse=True)
    for marked in (True, False):
        own = [name for is_marked, name in classes if is_marked == marked]
        for name in [*sorted(own), "all"] if own else []:
            cases = [one for one in found if one.case["marked"] == marked and name in (one.case["class"], "all")]
            wrong, accepted, right, missed = shares(cases)
            if not every and name != "all" and not accepted + missed:
                continue
            cells = [_share(accepted, wrong), str(right), _share(missed, right)]
            lines.append(f"| {name} | {'yes' if marked else 'no'} | {wrong} | {' | '.join(cells)} |")
    seconds = sum(one.seconds for one in found)
    return [*lines, "", f"{len(found) / seconds:.0f} answers per second on one core."]


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "-"
