"""The words around an answer that deny it, take it back or add another; and those that say nothing."""

from __future__ import annotations

import re

from posttrain.answers.nodes import Unreadable

_POLITE_STARTS = (
    "(?:let me know|i hope|hope (?:this|that|it)|feel free|(?:i'm |i am )?happy to|good luck|would you like|"
    "thank(?:s| you)|have a (?:great|nice|good)|if you (?:have|need|'d|would|want)|is there anything|"
    "if any(?:thing|one) is|any (?:other |more )?questions|do you (?:have|want|need)|great (?:job|question)|"
    "don't hesitate)"
)
POLITE = re.compile(
    rf"(?im)(?:(?<=[.!?\n}}$*])|^|\s[—–-])[ \t]*[ \t>*_(]{{0,3}}(?:please\s+)?{_POLITE_STARTS}\b"
    r"(?![^\n]*(?:\d|\b(?:wait|actually|but|instead|wrong|incorrect|answer is|not)\b))[^\n]*$"
)
"""Remarks to the reader after an answer."""
_CLOSING = re.compile(r"(?:\s{0,4}(?:<\|[a-z_]{1,20}\|>|</s>|<eos>|<end_of_turn>|[✅✔☑🎉😊👍🙂😀⭐🏆💯✨🎊\ufe0f]))\Z")
"""A token that ends a turn, or a sign of joy, at the end."""
_LONGEST_CLOSING = 32
CLAUSE = re.compile(r"[.!?;:,\n](?=\s|\Z)|\b(?:so|therefore|hence|thus|but|then|because)\b", re.IGNORECASE)
_DOUBT = (
    r"(?:false\w*|wrong\w*|incorrect\w*|mistaken\w*|mistake|tempting|doubt\w*|unlikely|impossible|maybe|perhaps|"
    r"possibly|might|may be|could be|either|guess\w*|unsure|unless|would have been|assum\w+ that|"
    r"misconception\w*|myth|nobody|no one|den(?:y|ies|ied)|hardly|"
    r"no (?:way|chance|means|circumstances?|case|longer|evidence|reason)|opinion|uncertain\w*|no idea|says|"
    r"said|wrote|claim\w*|trap|ignor\w+|pretend\w*|suppos\w+|imagine)"
)
_DENIED = re.compile(
    r"\b(?:not|never|neither|nor|cannot|rather than|instead of|anything but|unlike|unequal|except|excluding)\b"
    r"(?:\s+\S+){0,3}\s*\Z|n't(?:\s+\S+){0,3}\s*\Z"
    r"|(?:\bnot|n't) (?:true|correct|right|the case|the answer|sure|certain|think|believe|equal)\b"
    rf"|\b{_DOUBT}\b",
    re.IGNORECASE,
)
_CHANGES = (
    "(?:minus|negative|twice|double|triple|half|half of|times|plus|more than|less than|at least|at most|over|"
    "under|square of|root of|almost|nearly|opposite of|other than|apart from|aside from|reciprocal of|"
    "inverse of|between|greater than|fewer than|(?<!add )(?<!adds )up to|or)"
)
_CHANGED = re.compile(
    rf"(?:\b{_CHANGES}|(?<![=-])>|[-+/^<≤≥±×÷·√~%]|\w\s*\*)[\s$(\\]*\Z",
    re.IGNORECASE,
)
_EXAMPLE = re.compile(
    r"(?:\be\.g\.|\bexample|\binstance|\bformat(?: is)?|\btemplate|\b(?:all|anything|everything|none) but|"
    r"\b(?:write|put|give|enclose|box) (?:it|your)\b[^.!?\n]{0,60}|~~|<(?:del|s|strike)>|<!--)[\s:,$*`\"(]*\Z",
    re.IGNORECASE,
)
"""Directly before an answer that is only an example, or struck out."""
_TAKEN_BACK = re.compile(
    r"\b(?:wait|actually|correction|(?<!common )mistake|common mistake(?! is to\b)|scratch that|wrong|incorrect|oops|"
    r"hmm+|sorry|however|not right|or rather|no, rather|should (?:be|have been)|on second thought|hold on|"
    r"alternatively|otherwise|unless|not correct|could (?:also|be)|might (?:also|be)|may be|instead|false|"
    r"or (?:maybe|perhaps|possibly|else)|disregard|ignore|not sure|unsure|let me re|kidding|joking|joke|nope|"
    r"nah|i lied|a lie|opposite day|"
    r"(?:don't|do not) (?:believe|trust)|in fact|real answer|"
    r"recalculat\w*|try again|redo|my bad|another (?:possible )?(?:answer|solution)|"
    r"also (?:possible|acceptable)|is what|said|wrote|claim\w*|i meant?|make that|corrected|revised|"
    r"(?:edit|update|erratum)(?=\s?:)|off by|give or take|no(?=[,:.!]|\s*\Z)|(?<!margin of )error|is not|isn't)\b",
    re.IGNORECASE,
)
_CORRECTED = re.compile(
    r"\b(?:wait|actually|correction|mistake|scratch that|wrong|incorrect|oops|hmm+|sorry|no|not right|rather)\b",
    re.IGNORECASE,
)
_MAYBE = re.compile(r"\b(?:or|maybe|perhaps|possibly|alternatively|either|could|might|also)\b", re.IGNORECASE)
_REPLACED = re.compile(
    r"\b(?:it(?:'s| is)|should be|must be|i (?:now )?get|answer(?: is|:)|i (?:say|mean|choose|pick))"
    r" [*$(\\]{0,4}(-?\d[\d.,/]*)",
    re.IGNORECASE,
)
_ANOTHER = re.compile(
    r"(?m)^[ \t>*_$(\\\[]*(?:[A-Za-z']{1,12}[\s,:]+){0,3}(?:[A-Za-z]\s?=\s?)?[$\\(]{0,3}"
    r"(-?[\d.][\d.,/]*|(?i:one|two|three|four|five|six|seven|eight|nine|ten|zero))[\s$*)\\\].!]*$"
)
"""A line after an answer that holds little but a number."""
_FORMULA = re.compile(r"(?m)^[ \t>*_$(\\\[]*(?:[A-Za-z]\s?=\s?)?(\\(?:[dt]?frac|sqrt|pi)[^\n$A-Z]{0,40})[$*.\s]*$")
_CONCLUDED = re.compile(
    r"(?mi)^\W*(?:so|thus|hence|therefore|final\w*|the (?:total|result|value|sum|number))\b[^\n.!?]{0,60}"
    r"(?:\b(?:is|equals|are|be)\b|=)[\s$*(\\]*(-?\d[\d.,/]*)\W*$"
)
_CONTINUED = re.compile(r"[\s$*)\]]*\n[\s$]*(?:[+=/×·≠<]|\\(?:cdot|times))\s*[-\d\\$]")
"""Lines after an answer that give a formula, conclude another number, or continue a calculation."""
_BETWEEN = re.compile(
    r"\b(?:or|maybe|perhaps|possibly|alternatively|also|either|another|and|if|otherwise|else|depending|could|might)\b",
    re.IGNORECASE,
)
_ADDITIONS = (
    "(?:percent|mod|modulo|(?:out )?of(?=\\s+\\$?\\d)|fails?|"
    "or|and|and/or|either|maybe|perhaps|possibly|if|when|for|else|but|not|is not|isn't|was|where|could|would|"
    "might|to|through|minus|plus|times|thousand|million|hundred|billion|trillion|dozen|divided|squared|cubed)"
)
_ADDED = re.compile(
    rf"\A(?:[\s$*)\]]|\\[)\]])*+(?:\?|[,;]?\s*\(?(?:{_ADDITIONS}\b|[-+/=<>≤≥±](?!\s*\Z)|[–—](?=\s?\d)"
    r"|\^(?!\s*\{?\s*(?:\\circ|°))|\\(?:pm|times|cdot|div|approx|ne|le|ge)\b))",
    re.IGNORECASE,
)
JOINED = re.compile(
    r"[\s$*\\,;().\[\]]*(?:(?:\b(?:or|and|also|maybe|perhaps|possibly|either|if|else|otherwise)\b|/|\bx\b|\by\b|=)"
    r"[\s$*\\,;().=]*)*\Z",
    re.IGNORECASE,
)
"""What may stand between two answers that are given together."""
_OF = (
    "(?:of|check|previous|first|old|expected|than|half|twice|double|triple|times|minus|plus|negative|partial|"
    "intermediate|approximate|estimated|possible|another|alternative|other|second|initial|naive|intuitive|"
    "common|popular|usual)"
)
CONDITION = re.compile(
    rf"\b(?:not|never|if|unless|whether|what|wrote|said|claim\w*|would (?:say|think|be)|"
    rf"student'?s?|ground truth|say that|refuse\w*|none|says?|told|thinks|thought|believed|believes|heard|"
    rf"some (?:people|students|say)|people|hoped|wish\w*|supposed|far from|{_DOUBT})\b|n't\b"
    rf"|\b{_OF}\s+(?:(?:the|my|your|this|final|correct|right)\s+)*\Z",
    re.IGNORECASE,
)
"""Words before `the answer is` with which it is not said what the answer is."""

_DETERMINERS = re.compile(
    r"(?:(?:\b(?:the|my|our|this|final|correct|right|best|only|"
    r"most (?:appropriate|accurate|suitable)|exact|numerical|simplified|actual|complete|full|overall|required|"
    r"desired|resulting|and|so|short)\b|\W)\s{0,3}){0,8}\Z",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"(?:[^\n]*\b(?:we|i|you|this|it|which|that|one)\s(?:\w+ly\s|can\s|now\s|then\s|all\s)?(?:see|find|get|got|found|"
    r"know|have|had|obtain|conclude|deduce|gives?|means|shows?|implies|follows|yields?|"
    r"is (?:clear|easy to see|evident))(?:\s(?:us|me))?(?:\sthat)?"
    r"|in (?:total|all|decimals?|decimal form|conclusion|summary|the end|simplest form|lowest terms|other words)"
    r"|(?:by|from|using|since|given|(?:add|us|multiply|divid|subtract|plugg|putt|combin|solv|simplify|count|comput|summ|"
    r"substitut|evaluat)ing)\b[^\n]*|[^\n]*[\d$)\]}])?\Z",
    re.IGNORECASE,
)
"""What may stand before `the answer is` in its clause."""
_UNSURE = re.compile(
    r"\A\W*(?:if|unless|suppose|assuming|when)\b|\b(?:guess|unsure|uncertain|maybe|perhaps|possibly|not sure)\b",
    re.IGNORECASE,
)


_LEADING = re.compile(
    r"\b(?:answer|result|solution|total|sum|value|get|gives?|obtain|have|find|has|makes|leaves|is|are|equals|so|therefore|thus|hence|then|"
    r"finally|conclusion|conclude|follows|choose|pick|select|now)\W{0,4}\Z",
    re.IGNORECASE,
)
"""The end of a line that leads to the answer on the next one."""


def without_closing(text: str) -> str:
    """Return the text without tokens that end a turn and signs of joy at its end."""
    end = len(text)
    while found := _CLOSING.search(text, max(0, end - _LONGEST_CLOSING), end):
        end = found.start()
    return text[:end]


def check_opening(text: str) -> None:
    """Refuse `the answer is` after words that may deny it or say whose answer it is; only plain openings are known."""
    clause = CLAUSE.split(text[-120:])[-1]
    opening = re.split(r"[.!?][\"\u201d)*]+\s", clause.rpartition("\n")[2].replace("_", " "))[-1]
    opening = _DETERMINERS.sub("", opening).strip(" *#>-")
    sentence = re.split(r"[.!?\n](?=\s|\Z)", text[-120:])[-1]
    if _UNSURE.search(sentence) or CONDITION.search(clause) or not _OPENING.match(opening):
        raise Unreadable("the answer is denied, or depends on a condition")


_EXCLUDED = re.compile(
    r"\b(?:eliminat\w+|ruled? out|exclud\w+|anything|opposite|second best|bad|worst|least|other|"
    r"rejected?|discard(?:ed)?|skip|avoid|forget|previous|old|first try|attempt)\b",
    re.IGNORECASE,
)
_LABEL = re.compile(r"(?m)^\W*(?:[A-Za-z']+[ \t]+){0,4}[A-Za-z']+[ \t*_]{0,4}(?::[\s$*(\[\\]*|\n[\s$*(\[\\]*)\Z")
"""A few words on a line of their own, or with a colon, before an answer."""


def check_before(text: str) -> None:
    """Refuse an answer that the words before it deny or change."""
    text = re.sub(r"<answer>\s*\Z", "", re.sub(r"\\text\w*\s*\{([^{}]*)\}", r" \1 ", text[-400:]))
    plain = re.sub(r"(?m)^[ \t]*(?:>[ \t]?)+|^[ \t]*[-+*•][ \t]+", "", text[-200:])  # quotations and lists in markdown
    clause = CLAUSE.split(re.sub(r"[\s$*(\[\\]+\Z", "", plain))[-1]
    label = _LABEL.search(plain)
    words = re.sub(r"[\s$*(\[\\:]+\Z", "", label[0]) if label else ""
    if _DENIED.search(words) or _EXCLUDED.search(words) or _CHANGED.match(words.strip()):
        raise Unreadable("the words before the answer deny it")
    if _EXAMPLE.search(plain) or _DENIED.search(clause) or _CHANGED.search(clause):
        raise Unreadable("the words before the answer deny or change it")


_NAMED = re.compile(
    r"\b(?:answer|guess|option|choice|attempt|(?:result|solution)(?=\W*(?:is\W*)?\Z))s?\b", re.IGNORECASE
)


def check_line_before(line: str) -> None:
    """Refuse an answer alone on a line if the line before it does not lead to it: `Anything but:`."""
    line = line.lstrip(" *_#>$`\\[](").rstrip(" *_#$`\\[])\t")
    if _EXAMPLE.search(line) or re.search(r"(?<![=-])>\Z|[-+/^<≠≤≥±×÷·√~]\Z|\\(?:ne|neq|le|ge|pm)\Z", line):
        raise Unreadable("the line before the answer changes it")
    sentence = re.split(r"[.!?]\s", line)[-1]
    denied = bool(is_denied(sentence) or CONDITION.search(sentence) or _EXCLUDED.search(sentence))
    named = _NAMED.search(sentence)
    if named and not line.endswith((".", "!", "?")):
        denied = denied or not re.fullmatch(r"(?i)\W*(?:(?:is|be)\b\W*)?", sentence[named.end() :])
        check_opening(sentence[: named.start()])
    if line.endswith((".", "!", "?")):
        denied = denied or bool(re.match(r"(?i)(?:no|nope|nah)\b", sentence))
        refused = denied and len(sentence.split()) <= 4
    else:
        refused = denied or bool(re.search(r"[A-Za-z][:,;]?\Z", line) and not _LEADING.search(line))
    if refused:
        raise Unreadable("the line before the answer does not lead to it")


def _holds(answer: str, value: str) -> bool:
    """Return whether a value stands in an answer, not only as some of its digits."""
    return bool(re.search(rf"(?<![\d.]){re.escape(value.rstrip('.,'))}(?!\.?\d)", answer))


def check_after(rest: str, answer: str = "") -> None:
    """Refuse an answer that what follows takes back, adds to or replaces by another number."""
    rest = re.sub(r"\A[\s$]*</answer>", "", rest)
    if any(not _holds(answer, match[1]) for match in _REPLACED.finditer(rest[:2000])):
        raise Unreadable("the words after the answer give another number")
    later = rest[:2000].partition("\n")[2]
    if _CONTINUED.match(rest) or any(
        not _holds(answer, match[1])
        for pattern in (_ANOTHER, _FORMULA, _CONCLUDED)
        for match in pattern.finditer(later)
    ):
        raise Unreadable("a line after the answer gives another number")
    line = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", rest.split("\n", maxsplit=1)[0])
    line = re.sub(r"\A\s*\^\s*\{?\s*(?:\\circ|°)\s*\}?\s?[CF]?\b", "", line)
    number = re.fullmatch(r"[\s$*)\]]*[.!]?\s+(?:[A-Z]\w*[\s:,]+(?:\w+[\s:,]+)?)?[$\\(]*(-?\d[\d.,/]*)\W*", line)
    if number and not _holds(answer, number[1]):
        raise Unreadable("another number after the answer")
    if _ADDED.match(line) or _TAKEN_BACK.search(rest[:2000]):
        raise Unreadable("the words after the answer take it back, or add another")


def are_alternatives(between: str) -> bool:
    """Return whether two answers with this text between them are given side by side, not one after the other."""
    corrected = _CORRECTED.split(between)
    doubt = _MAYBE if len(corrected) > 1 else _BETWEEN
    return not re.search(r"[A-Za-z]{2,}", between) or bool(doubt.search(corrected[-1]))


def is_denied(text: str) -> bool:
    """Return whether a text denies something, or is not sure of it."""
    return bool(_DENIED.search(text) or re.search(r"(?i)\b(?:not|never|if|or)\b|n't\b", text))
