"""The answers to planned questions as text, as plain data and as rows of a page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from posttrain.measure.text_table import text_table
from posttrain.pipeline.compare.paired import Score
from posttrain.pipeline.compare.planned import Planned, Question
from posttrain.pipeline.compare.text import score_title

TITLES = ("question", "difference", "interval", "p", "verdict", "seeds", "pairs")


def planned_text(answers: Planned, score: Score, named: str | None = None) -> str:
    """Return the answers for the terminal. `named`: the compared metric."""
    metric = score_title(score, named)
    parts = [f"{metric} on the same {answers.prompts} held-out prompts, {answers.trainings} trainings"]
    parts += ["\n".join([about, *text_table([TITLES, *rows], left=(0, 4))]) for about, rows in tables(answers, metric)]
    return "\n\n".join([*parts, *(f"note: {note}" for note in answers.notes), answered(answers)])


def answered(answers: Planned) -> str:
    """Return the answers in one line: what is better, which questions are open, and whether more seeds would help."""
    paired = [one for one in answers.questions if one.finding is not None]
    clear = [one for one in paired if one.same or one.falls or (one.finding and one.finding.significant)]
    said = [f"{one.text}: {one.verdict}." for one in clear]
    unknown = [f"'{one.text}'" for one in paired if one not in clear]
    said += [f"Cannot tell {' and '.join(unknown)}."] * bool(unknown)
    said += [f"No answer to '{one.text}': {one.why_not}." for one in answers.questions if one.finding is None]
    single = any(one.finding and not one.finding.over_seeds and not one.same for one in paired)
    said += ["One seed does not judge a setting."] * single
    return " ".join([*said, *["More seeds make the answers clearer (docs/results.md)."] * bool(unknown or single)])


def tables(answers: Planned, metric: str) -> list[tuple[str, list[list[str]]]]:
    """Return up to three titled tables: questions over several seeds, with one seed, and without an answer."""
    several = [one for one in answers.questions if one.finding is not None and one.finding.over_seeds]
    single = [one for one in answers.questions if one.finding is not None and not one.finding.over_seeds]
    unknown = [one for one in answers.questions if one.finding is None]
    how = "averaged over all other settings; trainings are paired by seed and other settings, on the same prompts"
    tests = f"{len(several)} planned question{'s' * (len(several) != 1)} (Holm)"
    heads = (
        (f"{metric}, {how}. The intervals cover other prompts and seeds. They are corrected for {tests}", several),
        (
            f"{metric}, {how}. One seed: the intervals cover other prompts, not other seeds. They are not corrected",
            single,
        ),
        ("No answer", unknown),
    )
    return [(head, [_row(one) for one in questions]) for head, questions in heads if questions]


def _row(question: Question) -> list[str]:
    finding = question.finding
    if finding is None:
        return [question.text, "-", "-", "-", question.verdict, "0", "0"]
    interval = f"[{finding.low:+z.3f}, {finding.high:+z.3f}]"
    counts = [str(question.seeds), str(question.pairs)]
    return [question.text, f"{finding.mean:+z.3f}", interval, p_text(finding.p_value), question.verdict, *counts]


def p_text(p_value: float) -> str:
    """Return a p as text."""
    return f"{p_value:.3f}" if p_value >= 0.001 else "<.001"


def planned_data(answers: Planned) -> dict[str, Any]:
    """Return the answers as plain data."""
    return {
        "prompts": answers.prompts,
        "trainings": answers.trainings,
        "questions": [_question_data(one) for one in answers.questions],
        "notes": answers.notes,
        "conclusion": answered(answers),
    }


def _question_data(question: Question) -> dict[str, Any]:
    measured: dict[str, Any] = asdict(question.finding) if question.finding else {}
    return {
        "question": question.text,
        "factor": question.factor,
        "level": question.level,
        "against": question.against,
        **measured,
        "corrected": bool(question.finding and question.finding.over_seeds),
        "seeds": question.seeds,
        "pairs": question.pairs,
        "replicates": question.replicates,
        "must_not_fall": [asdict(fall) for fall in question.falls],
        "verdict": question.verdict,
    }
