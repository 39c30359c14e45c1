r"""Find the final answer of a completion: the last in \boxed{}, after ####, after "the answer is" or in <answer>."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Literal

from posttrain.answers.boxes import Mark, groups, in_context
from posttrain.answers.following import REASON, are_known, may_follow
from posttrain.answers.nodes import Unreadable

Form = Literal["auto", "boxed", "hashes", "answer_is", "tags", "whole"]
Fits = Callable[[str], bool]
"""Returns whether a text is an answer by itself."""
TAIL = 20_000
"""The number of characters at the end of a completion that are searched."""
LONGEST = 1600
"""Maximum number of characters of a line that is read as an answer."""
MOST_CUTS = 24
MOST_SAID = 8
"""Maximum number of words of the prompt in a sentence that holds an answer."""
MOST_MARKS = 8
"""Maximum number of marks of each kind; the last marks are used."""
_IS = r"[*_\"]{0,3}(?:\s?[:：=＝]|\s(?:is|are|was|be|equals|[—–-])(?!\w)|\s?(?:->|=>|→|⇒|\\to\b))"
_SAID = re.compile(
    r"\b(?:answers?|ans|(?:correct|right|best|final|my)\s(?:option|choice))\b"
    rf"(?:[ ,][a-z'’, ]{{0,50}}?(?:\([a-z ]{{1,30}}\))?)??{_IS}"
    r"|^\W{0,8}(?:the\s)?(?:final\s|correct\s)?answer\W{0,6}\n",
    re.IGNORECASE | re.MULTILINE,
)
"""Phrases before an answer, in English. In other languages, a verb at the end may deny the words before it."""
_SAID_WITH = ("ans", "option", "choice")
"""Each phrase contains one of these. A text without them is not searched, which takes most of the time."""
_LINES: dict[Literal["hashes", "answer_is"], re.Pattern[str]] = {"hashes": re.compile(r"#{4,}"), "answer_is": _SAID}
_TAG = re.compile(r"<answer>(?P<text>[^<]{0,2000}(?:<(?!/?answer>)[^<]{0,2000}){0,20})</answer>", re.IGNORECASE)
_BETWEEN = re.compile(
    r"[\s:：、]*(?:\*\*(?=\s))?[\s:：]*(?:(?<=\n)[-*•]\s+)?"
    r"(?:(?:therefore|thus|then|hence|simply|indeed|exactly|just|equal to|given by|also|donc)\b[\s,:]*)?",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"(?:\b(?:(?:false|wrong(?:ly)?|mistake|misconception|tempt\w*|no way|(?<!no )doubt|not true|not the case|not sure|"
    r"(?:cannot|can['’]t|not) be)\b[^.!?\n]{0,30}\b(?:that|to write)|(?:wrong|incorrect)"
    r"(?:\s(?:answer|result|value|solution|option|choice|guess|would|could|be|is|was))*|anything but|"
    r"(?:less|more|greater|smaller|fewer|larger|other|rather) than|(?:different|far) from|except|close to|almost|"
    r"nearly|not|never|cannot|nicht|pas|no|не)|n['’]t|不\w{0,2}|ではなく)"
    r"(?:\s(?:be|equal|the|my|our|a|final|correct|die|la|le|das))*(?:\\\w+\s?\{)?[\s$*_:(\[\\{}<>]{0,12}\Z",
    re.IGNORECASE,
)
"""Text directly before a mark that negates its answer."""
_WRONG = re.compile(
    r"[\s$).\]*_]{0,6}(?:</answer>)?\s?(?:\b(?:is|was|ist|est|es)\s)?"
    r"(?:\b(?:not|wrong|incorrect|false|falsch|faux|incorrecto|неверно)\b|(?:is|was)n['’]t\b|不对|错"
    r"|,?\s?(?:(?:which|that|it|is|was|would|be|must|can|could|an?|the|common|clearly|seems|to)\s){1,5}"
    r"(?:wrong|incorrect|false|mistake)\b|(?:cannot|can['’]t|could not|must not)\sbe\b)"
    r"|[^\w\n]{0,8}\s{0,3}(?:(?:hmm+|no|oh)\W{1,3})?(?:wait|actually|scratch that|correction|oops)\b",
    re.IGNORECASE,
)
"""Text directly after a mark that revokes its answer."""
_HEDGE = re.compile(
    r"\b(?:or|not|cannot|but|if|unless|maybe|perhaps|possibly|either|neither|nor|squared|cubed|oder|nicht|ou|pas|или|не)\b"
    r"|n['’]t\b|[或不]",
    re.IGNORECASE,
)
_STEP = re.compile(r"\**\s*\d{1,2}[.)]\s+\**[^\W\d]")
_OTHER = re.compile(r"\s*[,(]?\s*(?:and not|not|rather than|instead of)\s")
_SENTENCE = re.compile(r"(?:(?<=[.!?])(?<!\bi\.e\.)(?<!\be\.g\.)[*_\"$)]{0,3}\s+(?=[A-ZÀ-Я*\"(\\$0-9#])|(?<=[。！]))")
_ENDING = re.compile(
    r"\s{0,3}(?:</answer>.*|#{4,}|です。?|である。?|だ。?|입니다\.?|이다\.?|<\|[a-z_]{1,20}\|>|</s>)\Z", re.DOTALL
)
_INVISIBLE = re.compile("[\u200b\u200c\u2060\ufeff\u00ad]")
_LEAD = re.compile(
    r"\A(?:exactly|still|only|just|precisely|a total of|by|a|an|there (?:are|is|were|will be|remain))\s+(?=[$\\\d(-])",
    re.IGNORECASE,
)
"""Words before a value that change nothing."""
_YES = re.compile(r"(yes|no|true|false)\s*[,.;:—–-]\s", re.IGNORECASE)
_BLANKS = frozenset({"answer", "your answer", "final answer", "...", "\\ldots", "\\dots", "n", "number"})


@lru_cache(maxsize=512)
def reads(text: str) -> bool:
    """Tell whether a whole text is an answer."""
    from posttrain.answers.equal import why_unreadable

    return why_unreadable(text) is None


def final_answer(
    text: str, form: Form = "auto", *, truncated: bool = False, unmarked: bool = False, fits: Fits = reads,
    question: str | None = None,
) -> str:  # fmt: skip
    """Return the last marked answer, as much of its line as fits.

    Raise Unreadable if there is none or several differ. `question`: the words of the prompt may follow a value; None:
    all words but operations.
    """
    text = spoken(text).strip()
    if not text:
        raise Unreadable("it is empty")
    if form == "whole":
        return text[: LONGEST + 1]
    marks = sorted(_marks(text, form), key=lambda mark: mark.start)
    for place in reversed(range(len(marks))):
        answer = _answer(text, marks, place, fits, question)
        if answer is None:
            continue
        if truncated and marks[place].end >= len(text) and marks[place].kind not in ("boxed", "tags"):
            raise Unreadable("it is truncated in its answer")
        return answer.strip()
    if form == "auto" and len(text) <= LONGEST and "\n" not in text and fits(text):
        return text
    if unmarked and form == "auto" and not marks:
        return _last_value(text, fits)
    wanted = f" in the form {form}" if form != "auto" else "; `unmarked: true` reads text without a mark"
    raise Unreadable(f"it has no marked answer{wanted}")


def after_mark(text: str, mark: str, fits: Fits = reads, question: str | None = None) -> str:
    """Return the answer after the last custom mark: the rest of its line, or the next line."""
    _, last_mark, rest = text.rpartition(mark)
    if not last_mark:
        raise Unreadable(f"it does not have `{mark} ANSWER`")
    return _value(rest[:TAIL].strip().partition("\n")[0], fits, question)


def gold_answer(answer: str) -> str:
    """Return the gold answer, which may be in boxes or after ####."""
    return final_answer(answer) if re.search(r"\\(?:boxed|fbox)\b|####", answer) else answer.strip()


def spoken(text: str) -> str:
    """Return the end of a text without its thoughts."""
    text = _INVISIBLE.sub("", text)
    _, closed, rest = text.rpartition("</think>")
    if not closed and "<think>" in text:
        raise Unreadable("its thoughts do not end")
    return rest[-TAIL:]


def _marks(text: str, form: Form) -> Iterator[Mark]:
    """Return the last marks of each kind."""
    boxed = groups(text)
    if not boxed and re.search(r"\\(?:boxed|fbox)\b", text):
        raise Unreadable("a box without an end")
    if form in ("auto", "boxed"):
        yield from boxed[-MOST_MARKS:]
    if form in ("auto", "tags"):
        for tag in deque(_TAG.finditer(text), MOST_MARKS):
            yield Mark(tag["text"], tag.start(), tag.end(), "tags")
    folded = text.casefold()
    has = {"hashes": "####" in text, "answer_is": any(part in folded for part in _SAID_WITH)}
    for kind, pattern in _LINES.items():
        for mark in deque(pattern.finditer(text), MOST_MARKS) if form in ("auto", kind) and has[kind] else ():
            if not _HEDGE.search(mark[0]) and not any(box.start < mark.start() < box.end for box in boxed):
                yield _of_line(text, mark, kind)


def _of_line(text: str, mark: re.Match[str], kind: Literal["hashes", "answer_is"]) -> Mark:
    """Return a mark with the rest of its line, the next line, or a formula on its own lines."""
    between = _BETWEEN.match(text, mark.end())
    begin = between.end() if between else mark.end()
    closing = {"$$": "$$", "\\[": "\\]"}.get(text[begin : begin + 2], "\n")
    end = text.find(closing, begin + 2)
    end = len(text) if end < 0 else end
    return Mark(text[begin + 2 * (closing != "\n") : end], mark.start(), end, kind)


def _answer(text: str, marks: list[Mark], place: int, fits: Fits, question: str | None) -> str | None:
    """Return the answer of a mark; None if it is part of a sentence about something else."""
    mark = marks[place]
    is_heading = place > 0 and text[mark.end :].strip() and not re.search(r"[\d$\\]", mark.text)
    if mark.kind == "hashes" and (is_heading or not mark.text.strip() or _STEP.match(mark.text)):
        return None
    if _NOT.search(text[max(0, mark.start - 60) : mark.start]) or _WRONG.match(text[mark.end : mark.end + 40]):
        raise Unreadable("the words next to the answer deny it")
    for other in marks[:place]:
        between = text[other.end : mark.start]
        rival = other.kind == mark.kind and mark.kind != "answer_is" and other.text.strip() != mark.text.strip()
        in_one_sentence = not re.search(r"\w", between) or ("\n" not in between and not _SENTENCE.search(between))
        if rival and in_one_sentence and other.text.strip(" #"):
            raise Unreadable("two different answers side by side")
    if mark.kind == "boxed":
        return in_context(text, mark)
    if mark.kind == "tags" and re.match(r"[^\W_]", text[mark.end :]):
        raise Unreadable("letters or digits directly after </answer>")
    if mark.kind == "tags":
        if not groups(mark.text) and (fits(mark.text) or len(mark.text) > LONGEST):
            return mark.text
        value = _value(mark.text, fits, question)
        return value if fits(value) else _number_of(mark.text, question) or value
    answer = _value(mark.text, fits, question)
    place_after = text.find(answer, mark.start) + len(answer)
    if place_after >= len(answer) and _WRONG.match(text[place_after : place_after + 40]):
        raise Unreadable("the words after the answer take it back")
    after_box = any(other.kind != "answer_is" for other in marks[:place]) and answer[:1].islower()
    about = place > 0 and not re.search(r"[\d$\\]", answer) and (after_box or not fits(answer))
    return None if about else answer


def _value(line: str, fits: Fits, question: str | None) -> str:
    """Return the answer at the start of a line: as much of its first sentence as fits."""
    if boxed := groups(line):
        return in_context(line, boxed[-1])
    line = _plain(line)
    if line.lower().strip(" .*$_[]<>") in _BLANKS:
        raise Unreadable("the answer is left blank")
    line = line[list(_SAID.finditer(line))[-1].end() :] if _SAID.search(line) else line
    if fits(line):
        return line
    first = _SENTENCE.split(line[: LONGEST + 1])[0].strip()
    if fits(first):
        return first
    if (word := _YES.match(first)) and fits(word[1]):
        return word[1]
    first = _LEAD.sub("", first, count=1)
    if fits(first):
        return first
    for cut in _cuts(first):
        head, rest = first[:cut], first[cut:]
        doubted = _HEDGE.search(_OTHER.sub(" ", rest, count=1)) and not REASON.match(rest)
        if may_follow(rest, question) and not doubted and fits(head):
            return head
    return _number_of(first, question) or first


def _number_of(sentence: str, question: str | None) -> str | None:
    """The only number of a sentence that has only words of the prompt: `The sister is 50 years old`."""
    words = [word.lower() for word in re.findall(r"[^\W\d_]+", sentence)]
    return _only_number(sentence, 1) if question is not None and are_known(words, question, MOST_SAID) else None


def _plain(line: str) -> str:
    """Return a line without markdown and without trailing exclamation and end marks."""
    line = _ENDING.sub("", line.strip()).replace("`", "")
    line = re.sub(r"(?<![\w*])\*([$\d.,/]+)\*(?![\w*])", r"\1", line)
    line = line.replace("**", "") if line.count("**") % 2 == 0 else line
    end = len(line)
    while end and line[end - 1] != "°" and unicodedata.category(line[end - 1]) in ("So", "Cf", "Mn", "Sk", "Zs"):
        end -= 1
    line = line[:end]
    return re.sub(r"[*_]+([.!。]?)\Z|(?<=\$)!\Z", r"\1", line.strip("*_ \t"))


def _cuts(text: str) -> list[int]:
    """Return the last places between words or before signs, outside of formulas and brackets."""
    places, level, formula = [], 0, False
    for place, sign in enumerate(text):
        if sign == "$":
            formula = not formula
        level += (sign in "({[") - (sign in ")}]")
        if place and level - (sign in "({[") <= 0 and not (formula and sign != "$") and sign in " ,;:(—–。，、":
            places.append(place)
    return places[: -MOST_CUTS - 1 : -1]


def _last_value(text: str, fits: Fits) -> str:
    """Return the value at the end of the last sentence, or its only number."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    sentence = _SENTENCE.split(lines[-1][-LONGEST:])[-1].strip() if lines else ""
    if _HEDGE.search(sentence):
        raise Unreadable("a last sentence with words of doubt")
    starts = [0, *(space.end() for space in re.finditer(r"[\s:=]\s*", sentence))][-MOST_CUTS:]
    values = [sentence[sentence.rfind("=") + 1 :], *(sentence[start:] for start in starts)]
    values = [_plain(value) for value in values]
    candidates = [value for value in values if re.search(r"[\d\\$]", value)], [_only_number(sentence)], values[1:]
    for value in (value for some in candidates for value in some):
        if value and fits(value):
            return value
    raise Unreadable("it has no mark, and its last sentence does not end with a value")


def _only_number(sentence: str, least: int = 3) -> str | None:
    """Return the number of a sentence with at least so many words and only one number; else None."""
    numbers = re.findall(r"(?<![\w.,/^])-?\$?\d(?:[\d,]*\d)?(?:\.\d+)?%?(?![\w/^]|[.,]\d)", sentence)
    plain = len(numbers) == 1 and not re.search(r"[\\=<>+*^/?]|\d.*[^\d,.]\d", sentence) and not _HEDGE.search(sentence)
    return numbers[0] if plain and len(re.findall(r"[^\W\d]{2,}", sentence)) >= least else None
