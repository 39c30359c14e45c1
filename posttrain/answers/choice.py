"""The letter that a completion chooses."""

from __future__ import annotations

import re

from posttrain.answers.boxes import touches
from posttrain.answers.denials import (
    CLAUSE,
    CONDITION,
    POLITE,
    check_before,
    check_line_before,
    check_opening,
    is_denied,
)
from posttrain.answers.extract import Form, final_answer, spoken
from posttrain.answers.nodes import Unreadable
from posttrain.answers.sentences import last_sentence

_LETTER = re.compile(
    r"[\s*_$\"'`:]{0,8}(?:(?:option|choice|letter|answer)\b[\s*_:]{0,4})?"
    r"(?:\\boxed\{|[\s*_$\"'`({\[]|\\\(){0,8}(?P<letter>[A-Za-z])"
    r"(?![A-Za-z0-9'’^]|_(?!_))(?P<close>(?:[)}\]*$\"'`_]|\\\)){0,8})",
    re.IGNORECASE,
)
_FONT = re.compile(r"\\(?:text\w*|math\w+)\s?\{([^{}]{0,80})\}")
_REASONS = re.compile(r"[*_#\s]{0,6}(?:explanation|reason(?:ing)?|because|justification|rationale)\b", re.IGNORECASE)
_NOT_THAT = re.compile(
    r"\W*(?:(?:is|are)\s+)?(?:not(?!\W{0,3}(?-i:[A-Z])\b)|wrong|incorrect|false|fails?|or so|maybe|perhaps|probably)\b",
    re.IGNORECASE,
)
_DASH = re.compile(r"\s[-–—]\s(?=[A-Za-z][a-z]+\s|[a-z]{2,}\.?\Z)")
_OF_THE_QUESTION = r"(?:\s{1,3}(?:to|for|of)\s{1,3}(?:the|this|your)\s{1,3}(?:\w{1,20}\s{1,3})?\w{1,20})?"
_MARKS = [
    (
        rf"\b(?:answer|option|choice)\b{_OF_THE_QUESTION}[ \t]{{0,3}}[*_\"']{{0,3}}[ \t]{{0,3}}"
        r"(?:(?:is|would be|must be|should be|will be)\b|[:=]|\s[-–—]\s|->|→|\n)[\s*_:]{0,6}"
        r"(?:(?:therefore|thus|clearly|then|hence)\b[\s,:]{0,3})?"
    ),
    r"\b(?:must|has to) be\b|\b(?:choose|pick|select|go with|going with)\b",
    r"\bcorrect (?:one )?is\b",
    r"(?:^|[.!?]\s{1,3})(?:so|therefore|thus|hence)[,:]?(?=\s{1,3}\W{0,4}(?:option\s|choice\s)?\(?\*{0,2}[A-Z]\b)",
    r"####|<answer>|\\(?:boxed|fbox)\s?\{",
]
_SAID = re.compile("|".join(_MARKS), re.IGNORECASE | re.MULTILINE)
_IS_RIGHT = re.compile(
    r"(?:\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s{1,3})?[*($\"]{0,4}\b(?P<letter>[A-Z])\b[*)$\"]{0,4}\s{1,3}"
    r"(?:is|must be|should be)"
    r"\s{1,3}(?:the\s|therefore\s|my\s)?(?:final\s|only\s)?(?:correct|right|best|answer)\b"
    r"(?=\s?(?:choice|option|answer|one|letter)?\s?(?:\Z|[^\w\s]|\n|because\b|since\b|as\b))"
)
_ENDING = re.compile(
    r"\b(?i:is|be|it's|leaves|only|option|choice|letter|say|with|for|hence|so|therefore|thus|ist|lautet|correct|solution|"
    r"result|matches)[:,]?\s{1,3}[(*$\"'\\{]{0,4}(?P<letter>[A-Z])[)*$\"'}.!]{0,5}\Z"
)
_DENIED = re.compile(
    r"\b(?:not|never|neither|nor|wrong|incorrect|if|unless|either|maybe|perhaps|might|could|seems?|probably|"
    r"eliminate|rule out|guess|previous|first thought|tempting)\b|n't\b",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:wait|actually|correction|mistake|scratch that|oops|hmm|on second thought|changed? my mind|hold on|"
    r"disregard|alternatively|not sure|unsure|could also be|might also be|or maybe|or perhaps|is also|otherwise|"
    r"(?:that|this|it|which)(?:'s| is| was) (?:wrong|incorrect|false|a lie)|it isn't|i lied|nah|nope|joke|"
    r"kidding|opposite|ignore (?:that|this|it)|(?:don't|do not) (?:believe|trust)|i guess|said nobody|"
    r"unless|but|however|depends|although|so is|equally|or \W{0,3}[A-Z])\b|\bno[,.]",
    re.IGNORECASE,
)
_EXPLAINED = re.compile(
    r"\s{0,4}(?:\Z|[.:,;)\]\n<}$*]|[-–—]\s|\((?=\w{2})|\b(?:because|since|as|for)\b|"
    r"is (?:the )?(?:correct|right|best)\b|####)",
    re.IGNORECASE,
)
_I = re.compile(
    r"(?:\b(?:i|we|let'?s|let us|to|must|should|so|therefore|thus|hence)"
    r"(?:'d|'ll| would| will| can| have to| must| should)?"
    r"|^|[.!?:,]|\b(?:it|this|that|answer|option|choice|one|letter|solution))\W{0,4}\Z",
    re.IGNORECASE,
)
"""Before `choose` and `must be`: who chooses, and what it is."""
_UNCLEAR = re.compile(
    r"\b(?:answer|option|choice)s?\s(?:that|which|to|i|you|we|he|she|they)\b|\bof the (?:answer|option|choice)s\b|"
    r"(?:\A|\blet's )\W*say\b",
    re.IGNORECASE,
)
"""On a last line that ends with a letter, what makes it unclear whether that is the answer."""
_PURPOSE = re.compile(
    r"\A\W*(?:to|for|in order to|if)\b.*\b(?:wrong|incorrect|fail\w*|lose|mistake|false|trick\w*)\b", re.IGNORECASE
)
"""A purpose that is not to be right: to lose, choose B."""
_NAMED = re.compile(
    r"(?:\b(?:answer|option|choice|letter|solution|it|say|mean|meant|pick|choose|select|with|so|thus|therefore|is|be|final|"
    r"correct|right|best|also|and|or)\b|[:;=|/&>→,]|\\to|\\rightarrow)[\s:*_$\"'({\[\\]{0,6}\Z",
    re.IGNORECASE,
)
"""Before a letter that is given as an answer."""
_AS_GOOD = re.compile(
    r"[)*\]}$.]{0,3}\s{1,3}(?:is|would be|could be|works|fits|too|as well|it is)\b"
    r"(?!\s(?:not|wrong|incorrect|false|too|a|an|the one|never)\b)",
    re.IGNORECASE,
)
"""After a letter that is right as well."""
_REFUTED = re.compile(
    r"\b(?:not|wrong|incorrect|false|fails?|never|neither|nor|cannot|rather than|instead of|unlike|too(?=\s\w)|"
    r"rules?|ruled|eliminat\w+|exclud\w+|ignores?|distractors?)\b|n't\b",
    re.IGNORECASE,
)


def chosen(text: str, choices: str, form: Form = "auto", *, truncated: bool = False) -> str:
    """Return the last letter that a completion gives as its answer; unreadable if it gives none, or several."""
    if form != "auto":
        return _alone(final_answer(text, form, truncated=truncated), choices)
    text = _FONT.sub(r"\1", POLITE.sub("", spoken(text).strip()).strip())
    phrases = list(_SAID.finditer(text))
    marks = [phrase.end() for phrase in phrases]
    starts = {phrase.end(): phrase.start() for phrase in phrases}
    places = [(end, found) for end in marks if (found := _LETTER.match(text, end)) and _is_choice(found, choices, text)]
    right = [match for match in _IS_RIGHT.finditer(text) if match["letter"] in choices]
    if right and (not places or right[-1].start() > places[-1][1].start("letter")):
        return _checked(text, right[-1].start(), right[-1].end(), right[-1]["letter"], choices)
    if places:
        mark, found = places[-1]
        if marks[-1] != mark and re.match(r"\s*\W{0,4}(?:\w+\W{0,3}){0,3}\s*$", text[marks[-1] :].split("\n")[0]):
            raise Unreadable("its last answer is none of the choices")
        line = text.rfind("\n", 0, mark) + 1
        others = [at for at, match in places[:-1] if at > line and match["letter"].upper() != found["letter"].upper()]
        if others and not _TAKEN_BACK.search(text[others[-1] : mark]):
            raise Unreadable("several choices on one line")
        _check_mark(text, starts[mark], mark, found)
        return _checked(text, mark, found.end(), found["letter"], choices)
    if marks and not text[marks[-1] :].strip(" *}\n"):
        raise Unreadable("its answer is empty")
    lines = text.splitlines()
    if any(re.match(r"\W{0,4}[A-J][).:]\s", text_line) for text_line in lines[-20:-1]):
        raise Unreadable("it ends with the list of choices")
    last = lines[-1].strip() if lines else ""
    above = [text_line for text_line in lines[:-1] if text_line.strip()]
    if above and len(last.split()) <= 3:
        check_line_before(above[-1])
        other = re.search(rf"(?:\A|\bis|\bbe|:)[\s*($]*([{choices}])[)*$.\s]*\Z", above[-1])
        if other and not re.search(rf"(?i)\b{other[1]}\b", last):
            raise Unreadable("two choices")
    ending = _ENDING.search(last[-200:])
    if ending and _UNCLEAR.search(last):
        raise Unreadable("words between `answer` and the letter that are not understood")
    if ending and ending["letter"] in choices and not is_denied(last):
        return _checked(last[-200:], ending.start(), len(last), ending["letter"], choices)
    if len(lines) > 1 and _REASONS.match(next(text_line for text_line in lines[1:] if text_line.strip())):
        letter = _alone(lines[0].strip(), choices)
        return _checked(text, 0, len(lines[0]), letter, choices)
    sentence = last_sentence(last)
    return _alone(
        sentence if re.fullmatch(r"\W{0,4}[(*]\W{0,4}[A-Z]\W{1,8}", sentence) and not is_denied(last) else last, choices
    )


def _is_choice(found: re.Match[str], choices: str, text: str) -> bool:
    letter = found["letter"]
    if letter.upper() not in choices:
        return False
    closed = bool(re.search(r"[)}\]$*]", found["close"]))
    if letter.islower() and not closed and text[found.end() :].strip(" .\n"):
        return False
    return closed or bool(_EXPLAINED.match(text, found.end())) or bool(_other(text[found.end() :], choices))


def _check_mark(text: str, start: int, end: int, found: re.Match[str]) -> None:
    """Refuse a mark after words that may deny it, and a box or tag that is a part of something."""
    before, mark = text[:start], text[start:end].lower()
    if mark.startswith(("\\", "#", "<")):
        check_before(before)
        after = text[found.end() :] if "}" in found["close"] else ""
        if mark.startswith("\\") and touches(before, after):
            raise Unreadable("the box holds only a part of the answer")
        closing = re.match(r"[^\n<]{0,80}</answer>(?P<rest>[^\n]*)", text[found.end() :])
        if closing and re.search(r"[\w?]", closing["rest"]):
            raise Unreadable("words after the tag on the same line")
    elif re.match(r"choose|pick|select|go|must|has", mark):
        sentence = re.split(r"[.!?\n]", before[-120:])[-1]
        if not _I.search(before[-80:]) or _PURPOSE.search(sentence):
            raise Unreadable("somebody else's choice")
    elif re.match(r"\W*(?:so|therefore|thus|hence)", mark):
        if re.search(r"(?i)\b(?:both|either|neither)\b[^.!?\n]*\Z", before[-120:]):
            raise Unreadable("several choices before the answer")
    elif re.match(r"answer|option|choice|correct", mark):
        check_opening(before[-120:])


def _check_others(rest: str, letter: str, choices: str) -> None:
    """Refuse another letter after the answer, unless it is refuted or part of an explanation."""
    for place, sentence in enumerate(re.split(r"(?<=[.!?])\s|\n", rest[:4000])):
        if re.fullmatch(r"\W*[b-hj-z]\W*", sentence) and sentence.strip("().*_$ ") != letter.lower():
            raise Unreadable("another choice after the answer")
        for match in re.finditer(rf"(?<![\w'’^]|\\)[{choices}](?![\w'’^])", sentence):
            before, after = sentence[: match.start()], sentence[match.end() :]
            if match[0] == letter.upper() or (
                match[0] in "AI" and re.match(r"\s[a-z]", after) and not _AS_GOOD.match(after)
            ):
                continue
            begins = place or re.match(r"\W*(?:(?:then|later|now|next|finally)\b|\Z)", before)
            alone = begins and len(before.split()) <= 3 and not re.search(r"\w", after)
            if (alone or _NAMED.search(before) or _AS_GOOD.match(after)) and not _REFUTED.search(sentence):
                raise Unreadable("another choice after the answer")


def _other(rest: str, choices: str) -> re.Match[str] | None:
    """Another choice in addition to the first."""
    between = r"(?:,|/|&|\bor\b|\band\b|and/or)?[\s*($]{0,4}(?:or\s|and\s)?(?:\\boxed\{)?[\s*($]{0,4}"
    return re.match(rf"[\s*)}}$\]]{{0,6}}{between}[{choices}](?![\w'’])", rest)


def _checked(text: str, begin: int, end: int, letter: str, choices: str) -> str:
    clause = CLAUSE.split(text[max(0, begin - 80) : begin])[-1]
    if re.match(r"(?i)\W*if\b", re.split(r"[.!?\n]", text[max(0, begin - 80) : begin])[-1]):
        raise Unreadable("the choice depends on a condition")
    if _DENIED.search(clause) or CONDITION.search(clause):
        raise Unreadable("the choice is denied, or depends on a condition")
    rest = text[end:]
    if _other(rest.split("\n")[0], choices) or _NOT_THAT.match(rest):
        raise Unreadable("several choices, or a choice that is denied")
    if _TAKEN_BACK.search(rest):
        raise Unreadable("the choice is taken back")
    _check_others(rest, letter, choices)
    return letter.upper()


def _alone(text: str, choices: str) -> str:
    """Return the letter of a text that is only a letter, or a letter with what it stands for."""
    text = text.strip()
    found = _LETTER.match(text)
    if not found or found["letter"].upper() not in choices:
        raise Unreadable(f"it chooses none of {choices}")
    rest = text[found.end() :]
    closed = ")" in found["close"]
    dash = found["letter"].isupper() and _DASH.match(rest)
    if not re.fullmatch(r"[\s.:)*}$]*", rest) and not (closed or dash or re.match(r"\s*[.:)]\s", rest)):
        raise Unreadable("words after the letter")
    if _DENIED.search(rest.split("\n")[0]):
        raise Unreadable("the choice is denied, or depends on a condition")
    if found["letter"].islower() and not closed and rest.strip(" ."):
        raise Unreadable("words after the letter")
    return _checked(text, 0, found.end(), found["letter"], choices)
