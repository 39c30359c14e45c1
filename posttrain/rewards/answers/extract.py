r"""Finds the final answer in a completion: in \boxed{}, after ####, after "the answer is", in <answer> tags, alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from posttrain.rewards.answers.hedges import (
    CLAUSE,
    JOINED,
    POLITE,
    check_after,
    check_before,
    is_denied,
    is_taken_back,
)
from posttrain.rewards.answers.tree import Unreadable

Form = Literal["auto", "boxed", "hashes", "answer_is", "tags", "whole"]
TAIL = 20_000
"""Characters at the end of a completion in which its answer is looked for."""
SHORT = 400
"""Characters of a line that may be an answer with a few words around it."""
LONGEST_BOX = 2000
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_ANSWER = re.compile(
    r"\b(?:answer|ans)\b(?:\s+(?:to|for|of)\s+(?:the|this|your)\s+(?:\w+\s+)?\w+)?(?:\s*\([a-z ]{1,30}\))?[ \t]*"
    r"[*_]{0,3}[ \t]*(?:(?:is|are|was|equals|will be|would be|must be|should be|comes out to|turns out to be)\b"
    r"|[:=]|->|→|\\to\b|\n)",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\b(?:not|never|wrong|incorrect|false|if|unless|whether|what|check|previous|first|old|wrote|said|claims?|claimed|"
    r"student'?s?|ground truth|expected)\b|n't\b",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"[\s:*_]*(?:(?:therefore|thus|simply|indeed|exactly|then|hence|clearly|just|also|equal to|given by|that)\b"
    r"[\s,:*]*){0,3}",
    re.IGNORECASE,
)
_CUE = re.compile(
    r"\A(?:(?:and so|so|thus|therefore|hence|then|finally|it follows that|in (?:total|conclusion|summary|all)|overall|"
    r"altogether|we (?:get|have|obtain|find|conclude)(?: that)?|this (?:gives|means|yields)(?: us| that)?|giving|"
    r"which (?:gives|is))\b\s*[,:]?\s*)+",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?:is|are|equals|gives|get|have|obtain|was|becomes|costs?|earns?|makes|has|pays|needs)\b|:(?=\s)", re.IGNORECASE
)
_REASON = re.compile(
    r"[,;(]?\s*\b(?:because|since|as (?:required|desired|expected)|which (?:is|means|matches|agrees))\b"
)
_HEADING = re.compile(r"(?:the\s+)?(?:final\s+)?answer\s*(?:is)?[:*_\s]*", re.IGNORECASE)
_FENCE = re.compile(r"\s*(?:```\w*|\$\$|\\\[|\\\]|-{3,})\s*")
_BULLET = re.compile(r"(?:[-*+•]|\d+[.)])\s+")
_BARE = re.compile(r"\s*[-+$*`]{0,4}\d[\d,./]*%?[*`$.]{0,4}\s*")
_SENTENCE = re.compile(r"(?<=[.!?])(?:\*\*|\$)?\s+(?=[A-Z*\"(\\$0-9#])")
_PLACEHOLDERS = frozenset({"", "answer", "your answer", "...", "\\ldots", "\\dots", "final answer", "n"})


@dataclass(frozen=True)
class Found:
    """A final answer and where it stands."""

    text: str
    start: int
    end: int


def final_answer(text: str, form: Form = "auto", *, truncated: bool = False) -> str:
    """The final answer of a completion; unreadable if it has none, or more than one."""
    text = POLITE.sub("", spoken(text)).rstrip()
    if not text:
        raise Unreadable("it is empty")
    found = FORMS[form](text)
    if found is None:
        raise Unreadable(f"it has no final answer{'' if form == 'auto' else f' in the form {form}'}")
    if truncated and found.end >= len(text) and text[-1:] not in "}>":
        raise Unreadable("it is truncated in its answer")
    return found.text.strip()


def after_mark(text: str, mark: str) -> str:
    """The answer after the last mark: the rest of its line, or the next line."""
    _, found, rest = text.rpartition(mark)
    if not found:
        raise Unreadable(f"it does not have `{mark} ANSWER`")
    rest = POLITE.sub("", rest[:TAIL]).strip()
    answer = _cleaned(rest, 0, _line_end(rest, 0))
    check_after(rest[answer.end :])
    return answer.text


def gold_answer(answer: str) -> str:
    """The gold answer, which may stand in a box or after ####."""
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    boxes = _boxes(answer)
    return boxes[-1].text.strip() if boxes else answer.strip()


def spoken(text: str) -> str:
    """The end of a text, without its thoughts."""
    _, closed, rest = text.rpartition("</think>")
    if not closed and "<think>" in text:
        raise Unreadable("its thoughts do not end")
    return rest[-TAIL:]


def _auto(text: str) -> Found | None:
    """The last answer in any form."""
    marked = [one for one in (_boxed(text), _hashes(text), _tags(text)) if one is not None]
    last = max(marked, key=lambda one: one.end, default=None)
    said = _answer_is(text, last.end if last else 0)
    if said is not None and len(re.findall(r"[A-Za-z]{2,}", re.sub(r"\\\w+", "", said.text))) > 6:
        said = None  # "Answer: first we add ..."
    return said or last or _last_line(text)


def _boxes(text: str) -> list[Found]:
    r"""Every \boxed{...} with braces that match; the inner one of a box in a box."""
    found: list[Found] = []
    for mark in _BOX.finditer(text):
        level, place = 1, mark.end()
        while place < len(text) and place - mark.end() < LONGEST_BOX and level:
            sign = text[place]
            place += 2 if sign == "\\" else 1
            level += (sign == "{") - (sign == "}")
        if level:
            raise Unreadable("a box without an end")
        if found and found[-1].end > mark.start():
            found.pop()
        found.append(Found(text[mark.end() : place - 1], mark.start(), place))
    return found


def _boxed(text: str) -> Found | None:
    """The last box, with those that are given together with it."""
    boxes = _boxes(text)
    if not boxes:
        if re.search(r"\\(?:boxed|fbox)\b", text):
            raise Unreadable("a box without an end")
        return None
    last = boxes[-1]
    if last.text.strip().lower() in _PLACEHOLDERS:
        raise Unreadable("the last box is empty")
    joined = [last]
    for one in reversed(boxes[:-1]):
        between = text[one.end : joined[0].start]
        if "\n\n" in between or not JOINED.match(between):
            break
        joined.insert(0, one)
    if len({one.text.strip() for one in joined}) > 1:
        return Found(" or ".join(one.text.strip() for one in joined), joined[0].start, last.end)
    start = text.rfind("\n", 0, last.start) + 1
    others = [one for one in boxes[:-1] if one.start >= start and one.text.strip() != last.text.strip()]
    if others and not is_taken_back(text[others[-1].end : last.start]):
        raise Unreadable("two boxes on one line")
    check_before(text[: last.start])
    check_after(text[last.end :])
    return last


def _hashes(text: str) -> Found | None:
    start = text.rfind("####")
    if start < 0:
        return None
    start += len("####")
    if "####" in text[text.rfind("\n", 0, start) + 1 : start - len("####")].rstrip("#"):
        raise Unreadable("two answers on one line")
    heading = _HEADING.match(text[start:].lstrip())
    if heading:
        start += len(text[start:]) - len(text[start:].lstrip()) + heading.end()
    elif re.match(r"\s*step\b", text[start:], re.IGNORECASE):
        return None
    start += len(text[start:]) - len(text[start:].lstrip())
    found = _cleaned(text, start, _line_end(text, start))
    check_after(text[found.end :])
    return found


def _tags(text: str) -> Found | None:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    inner = text[start + len("<answer>") : end]
    boxed = _boxed(inner)
    return Found(boxed.text if boxed else inner, start, end + len("</answer>"))


def _answer_is(text: str, begin: int = 0) -> Found | None:
    """What follows the last `answer is`, from a place on."""
    marks = list(_ANSWER.finditer(text, begin))
    if not marks:
        return None
    mark = marks[-1]
    clause = CLAUSE.split(text[max(0, mark.start() - 60) : mark.start()])[-1]
    if _CONDITION.search(clause):
        raise Unreadable("the answer is denied, or depends on a condition")
    lead = _LEAD.match(text, mark.end())
    start = lead.end() if lead else mark.end()
    end = _line_end(text, start)
    for opening, closing in (("$$", "$$"), ("\\[", "\\]")):
        if text[start:end].strip() == opening:  # a formula on lines of its own
            stop = text.find(closing, end)
            end = stop + len(closing) if stop > 0 else end
    found = _cleaned(text, start, end)
    check_after(text[found.end :])
    return found


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _cleaned(text: str, start: int, end: int) -> Found:
    """The answer at the beginning of a line, without remarks after it."""
    line = text[start:end]
    if box := _boxed(line):
        return Found(box.text, start + box.start, start + box.end)
    begin = start + len(line) - len(line.lstrip())
    first = _SENTENCE.split(line.strip())[0]
    reason = _REASON.search(first)
    first = first[: reason.start()] if reason else first
    return Found(_unstarred(first), begin, begin + len(first))


def _unstarred(text: str) -> str:
    """Without the stars of bold type that are at one end only."""
    text = text.strip()
    for sign in ("**", "*", "`", "__"):
        if text.count(sign) % 2 and not re.search(rf"\w\s*{re.escape(sign)}\s*\w", text):
            text = re.sub(rf"{re.escape(sign)}([.,;:!]?)\Z|\A{re.escape(sign)}", r"\1", text).strip()
    return text


def _last_line(text: str) -> Found | None:
    """The last line: an answer alone, or the end of a sentence that says what it is."""
    lines = [one for one in text.splitlines() if one.strip() and not _FENCE.fullmatch(one)]
    if not lines or len(lines[-1]) > SHORT:
        return None
    line = lines[-1].strip()
    bullet = _BULLET.match(line)
    if bullet and len(lines) > 1:
        line = line[bullet.end() :]
        if not re.search(r"[A-Za-z]{2,} [A-Za-z]{2,}", line):
            raise Unreadable("the last line is one of a list")
    if _BARE.fullmatch(line) and any(_BARE.fullmatch(one) for one in lines[-30:-1]):
        raise Unreadable("several lines with a number alone")
    return Found(_said(_SENTENCE.split(line)[-1].strip()), len(text) - 1, len(text))


def _said(sentence: str) -> str:
    """The value that a sentence ends with."""
    rest = _CUE.sub("", sentence)
    verbs = list(_VERB.finditer(rest))
    if not verbs or not re.search(r"[A-Za-z]{2,}", rest[: verbs[-1].start()]):
        return rest
    if is_denied(re.sub(r"\\\w+", "", rest)):
        raise Unreadable("the answer is denied, or one of several")
    return _unstarred(rest[verbs[-1].end() :])


def _whole(text: str) -> Found | None:
    return Found(text, 0, len(text)) if len(text) <= SHORT * 4 else None


FORMS: dict[Form, Callable[[str], Found | None]] = {
    "auto": _auto,
    "boxed": _boxed,
    "hashes": _hashes,
    "answer_is": _answer_is,
    "tags": _tags,
    "whole": _whole,
}
