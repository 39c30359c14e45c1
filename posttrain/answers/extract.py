r"""Finds the final answer in a completion: in \boxed{}, after ####, after "the answer is", in <answer> tags, alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from posttrain.answers.boxes import Found, boxed, boxes, given_together
from posttrain.answers.denials import (
    POLITE,
    are_alternatives,
    check_after,
    check_before,
    check_line_before,
    check_opening,
    without_closing,
)
from posttrain.answers.nodes import Unreadable
from posttrain.answers.sentences import (
    ANSWER,
    first_sentence,
    last_sentence,
    value_after_verb,
    value_of,
    with_unit,
    words,
)

Form = Literal["auto", "boxed", "hashes", "answer_is", "tags", "whole"]
TAIL = 20_000
"""Characters at the end of a completion in which its answer is looked for."""
SHORT = 400
"""Characters of a line that may be an answer with a few words around it."""
MOST_WORDS = 6
"""In an answer; more are an explanation."""
_LEAD = re.compile(
    r"[\s:,*_]*+(?:(?:therefore|thus|simply|indeed|exactly|then|hence|clearly|just|also|precisely|obviously|"
    r"of course|still|now|always|definitely|surely|certainly|equal to|given by|that)\b"
    r"[\s,:*]*+){0,3}",
    re.IGNORECASE,
)
_NOT_BUT = re.compile(r"not [$\\(]{0,3}-?\d[\d.,/]{0,20}[$\\)]{0,3},? but (?:rather )?", re.IGNORECASE)
_REVERSED = re.compile(
    r"(?:^|[.!?]\s)(?P<value>[^\n]{1,80}?)\s{1,3}(?:[—–-]\s?that(?:'s| is)|is) (?:the|my|our) (?:final |"
    r"correct )?answer"
    r"(?:\s(?!another|other|different|part|first|second|previous|only|if|or|wrong)[a-z]{1,12}){0,4}\W*\Z",
    re.MULTILINE,
)
_HEADING = re.compile(r"[*_]{0,3}(?:the\s)?(?:final\s)?answer\b\s{0,3}(?:is\b)?[:*_\s]{0,8}", re.IGNORECASE)
_EXPLANATIONS = re.compile(
    r"\s*[*_]{0,3}(?:explanations?|steps?\b.*|solution|check|verification|reasoning|notes?|conclusion|summary|remarks?|"
    r"why|method|working|details|proof|calculation)[*_:. ]*\Z",
    re.IGNORECASE,
)
_CLOSED_HEADING = re.compile(r"[^\n#]*\w[^\n#]*#{4,}\s*\Z")
_STEP = re.compile(r"[*_\s]*(?:step\s)?\d{1,2}[.):]\s+[*_]*[A-Z][^.!?]*\Z", re.IGNORECASE)
"""A heading over a step: 1. Understand the problem."""
_FENCE = re.compile(r"\s*(?:```\w*|\$\$|\\\[|\\\]|-{3,})\s*")
_BULLET = re.compile(r"(?:[-*+•]|\d+[.)])\s+")
_ASSIGNED = re.compile(r"\W{0,4}([A-Za-z])\s?=\s?-?[\d.,/]+\W{0,4}")
_BARE = re.compile(r"\s*[-+$*`]{0,4}\d[\d,./]*%?[*`$.]{0,4}\s*")


def final_answer(text: str, form: Form = "auto", *, truncated: bool = False) -> str:
    """Return the final answer of a completion; unreadable if it has none, or more than one."""
    text = _closed(spoken(text).strip())
    if not text:
        raise Unreadable("it is empty")
    found = FORMS[form](text)
    if found is None:
        raise Unreadable(f"it has no final answer{'' if form == 'auto' else f' in the form {form}'}")
    if truncated and found.end >= len(text) and text[-1:] not in "}>":
        raise Unreadable("it is truncated in its answer")
    return found.text.strip()


def _closed(text: str) -> str:
    """Return the text without polite remarks and signs of joy at its end."""
    return without_closing(POLITE.sub("", without_closing(text)).rstrip()).rstrip()


def after_mark(text: str, mark: str) -> str:
    """Return the answer after the last mark: the rest of its line, or the next line."""
    _, found, rest = text.rpartition(mark)
    if not found:
        raise Unreadable(f"it does not have `{mark} ANSWER`")
    rest = _closed(rest[:TAIL].strip()).lstrip()
    answer = _cleaned(rest, 0, _line_end(rest, 0))
    _check_rest(rest[answer.end :], answer.text)
    return answer.text


def gold_answer(answer: str) -> str:
    """Return the gold answer, which may stand in a box or after ####."""
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    found = boxes(answer)
    return given_together(answer, found).text.strip() if found else answer.strip()


def spoken(text: str) -> str:
    """Return the end of a text, without its thoughts."""
    _, closed, rest = text.rpartition("</think>")
    if not closed and "<think>" in text:
        raise Unreadable("its thoughts do not end")
    return rest[-TAIL:]


def _auto(text: str) -> Found | None:
    """Return the last answer in any form."""
    marked = [found for found in (boxed(text), _hashes(text), _tags(text)) if found is not None]
    last = max(marked, key=lambda found: found.end, default=None)
    said = _answer_is(text, last.end if last else 0)
    if said is not None and words(said.text) > MOST_WORDS and not said.text.startswith("all "):
        said = None  # "Answer: first we add ..."
    return said or last or _last_line(text)


def _hashes(text: str) -> Found | None:
    """Return what follows the last ####, unless it is a heading over an explanation."""
    places = [mark.end() for mark in re.finditer("#{4,}", text)]
    if len(places) > 1 and _CLOSED_HEADING.match(text[places[-2] : _line_end(text, places[-1])]):
        text, places = text[: places[-1]].rstrip("#") + text[places[-1] :], places[:-1]  # #### 18 ####
    while places and _EXPLANATIONS.match(text[places[-1] : _line_end(text, places[-1])]):
        places.pop()
    if not places:
        return None
    start = places[-1]
    check_before(re.sub(r"(?:<answer>\s*)?#+\Z", "", text[:start]))
    earlier = [place for place in places[:-1] if text.find("\n", place, start) < 0]
    if earlier and are_alternatives(text[earlier[-1] : start].strip("# ")):
        raise Unreadable("two answers on one line")
    start = _after(r"[\s:]*+", text, start)
    start = _after(_HEADING, text, start)
    if _STEP.match(text[start : _line_end(text, start)]):
        raise Unreadable("a heading with a number")
    found = _cleaned(text, start, _line_end(text, start))
    _check_rest(text[found.end :], found.text)
    return found


def _after(pattern: str | re.Pattern[str], text: str, place: int) -> int:
    """Return the place after what the pattern matches here."""
    found = re.compile(pattern).match(text, place)
    return found.end() if found else place


def _tags(text: str) -> Found | None:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    inner = text[start + len("<answer>") : end]
    box = boxed(inner)
    check_before(text[:start])
    before, after = text[:start].rpartition("</answer>"), text[end + len("</answer>") :]
    if before[1] and "\n" not in before[2] and are_alternatives(before[2]):
        raise Unreadable("two answers on one line")
    if re.match(r"[^\n]*[\w?]", after) or "<answer>" in after:
        raise Unreadable("more after the tag")
    check_after(after, inner)
    return Found(box.text if box else inner, start, end + len("</answer>"))


def _answer_is(text: str, begin: int = 0) -> Found | None:
    """Return what follows the last `answer is`, from a place on."""
    backwards = _REVERSED.search(text, max(begin, len(text) - SHORT))
    if backwards:
        check_before(backwards["value"])
        value = re.split(r"\b(?:so|hence|thus|therefore)\b,?", backwards["value"])[-1]
        return Found(value_of(value), backwards.start("value"), len(text))
    marks = list(ANSWER.finditer(text, begin))
    if not marks:
        return None
    check_opening(text[max(0, marks[-1].start() - 120) : marks[-1].start()])
    start = _after(_LEAD, text, marks[-1].end())
    start = _after(_NOT_BUT, text, start)
    end = _line_end(text, start)
    for opening, closing in (("$$", "$$"), ("\\[", "\\]")):
        if text[start:end].strip() == opening:  # a formula on lines of its own
            stop = text.find(closing, end)
            end = stop + len(closing) if stop > 0 else end
    found = _cleaned(text, start, end)
    _check_rest(text[found.end :], found.text)
    return replace(found, text=with_unit(marks[-1][0], found.text))


def _check_rest(rest: str, answer: str) -> None:
    """Refuse an answer that what follows takes back, and one of several numbers on lines of their own."""
    check_after(rest, answer)
    if any(_BARE.fullmatch(splitline) for splitline in rest[:2000].splitlines()):
        raise Unreadable("another number on a line of its own after the answer")


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _cleaned(text: str, start: int, end: int) -> Found:
    """Return the answer at the beginning of a line, without remarks after it."""
    line = text[start:end]
    if box := boxed(line):
        return Found(box.text, start + box.start, start + box.end)
    begin = start + len(line) - len(line.lstrip())
    if text[:start].rstrip(" *_#").endswith("\n") and re.match(r"[*_\s]*\d{1,2}[.)]\s+[*_]*[A-Za-z]{2}", line):
        raise Unreadable("a list of steps")
    first, stop = first_sentence(line.strip())
    return Found(value_of(first), begin, begin + stop)


def _last_line(text: str) -> Found | None:
    """Return the last line: an answer alone, or the end of a sentence that says what it is."""
    lines = [splitline for splitline in text.splitlines() if splitline.strip() and not _FENCE.fullmatch(splitline)]
    if not lines or len(lines[-1]) > SHORT:
        return None
    line = lines[-1].strip()
    bullet = _BULLET.match(line)
    if bullet and len(lines) > 1:
        line = line[bullet.end() :]
        if not re.search(r"[A-Za-z]{2,} [A-Za-z]{2,}", line):
            raise Unreadable("the last line is one of a list")
    if _BARE.fullmatch(line) and any(_BARE.fullmatch(splitline) for splitline in lines[-30:-1]):
        raise Unreadable("several lines with a number alone")
    if len(lines) > 1 and words(line) <= 3:
        check_line_before(lines[-2])
    last_two = lines[-2:]
    if len(last_two) == 2 and any(map(_BARE.fullmatch, last_two)) and any(map(_ASSIGNED.fullmatch, last_two)):
        raise Unreadable("two lines with values")
    names = [_ASSIGNED.fullmatch(splitline) for splitline in lines[-2:]]
    if len({name[1] for name in names if name}) > 1:
        raise Unreadable("values of several variables")
    return Found(value_after_verb(last_sentence(line)), len(text) - 1, len(text))


def _whole(text: str) -> Found | None:
    return Found(text, 0, len(text)) if len(text) <= SHORT * 4 else None


FORMS: dict[Form, Callable[[str], Found | None]] = {
    "auto": _auto,
    "boxed": boxed,
    "hashes": _hashes,
    "answer_is": _answer_is,
    "tags": _tags,
    "whole": _whole,
}
