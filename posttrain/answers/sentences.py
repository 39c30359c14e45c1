"""The value that a sentence gives: "so the total is 18 dollars, because ..."."""

from __future__ import annotations

import re

from posttrain.answers.denials import CONDITION, is_denied
from posttrain.answers.nodes import Unreadable
from posttrain.answers.tokens import tokens
from posttrain.answers.units import unit_of

ANSWER = re.compile(
    r"\b(?:answers?|ans)\b(?:\s{1,3}(?:to|for|of)\s{1,3}(?:the|this|your)\s{1,3}"
    r"(?:(?:given|original|above|whole|math|word|entire|actual|main)\s{1,3})?(?!part|first|second|next|other|previous|last)[a-z]{1,20}"
    r"(?:\sof\s(?:how|what|which|the)\b[a-z '-]{1,60}?(?=\s(?:is|equals)\b))?)?"
    r"(?:,?\s(?:i|we|you|you're|looking|for|then|here|now|therefore|that|in|get|got|found|obtain|want|need|"
    r"[a-z]{2,12}s)\b){0,4},?(?:\s?\([a-z ]{1,30}\))?"
    r"[ \t]{0,3}[*_]{0,3}[ \t]{0,3}"
    r"(?:(?:is|are|was|equals|will be|would be|must be|should be|comes out to|turns out to be|comes out (?:as|"
    r"at)|works out to(?: be)?|"
    r"(?:must|should|would|will) (?:then|therefore|thus) be)\b"
    r"|[:=]|\s[—–]\s|[—–]\s|->|=>|→|⇒|\\to\b|\n)",
    re.IGNORECASE,
)
"""What stands before an answer: the answer is, Answer:, final answer."""
_CUE = re.compile(
    r"\A(?:(?:and so|so|thus|therefore|hence|then|finally|it follows that|in (?:total|conclusion|summary|all)|overall|"
    r"altogether|we (?:get|have|obtain|find|conclude)(?: that)?|this (?:gives|means|yields)(?: us| that)?|giving|"
    r"which (?:gives|is))\b\s*[,:]?\s*){1,4}",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?:is|are|equals|gives|get|have|obtain|becomes|costs?|earns?|makes|has|pays|needs)\b|:(?=\s)", re.IGNORECASE
)
_REASON = re.compile(
    r"[,;(]?\s{0,3}\b(?:because|since|as (?:required|desired|expected|stated|above|shown|claimed|asked|both|we|"
    r"it|there)|"
    r"(?:rather than|instead of|and not|not) [$\\(]{0,3}-?\d[\d.,]{0,20})(?:\b|\s)|;\s{1,3}(?=[a-z]{2,20}\s)|"
    r",\s(?:as|given that)\s(?=[\d$\\(])"
    r"(?![^\n]*\b(?:or|if|and|answer|solution|also|another|second|other than)\b)"
)
"""Why, and what not: it may hold other numbers."""
_REMARK = re.compile(
    r"(?:[,;(]?\s{0,3}\b(?:which (?:is|means|matches|agrees)|(?:when )?rounded (?:to|up|down)|to (?:two|three|"
    r"one|the nearest))\b"
    r"|,\s{1,3}(?:the|a|an|just|exactly|who|obtained|found|computed|being)\s|\s[—–]\s(?=[A-Za-z]{1,20}\s)|"
    r"\sso (?:we|that|this|it)\b|:\s{1,3}(?!or\b|and\b|if\b)(?=[a-z]{2,20}\s))"
    r"(?![^\n]*(?:\d|\b(?:or|if|not|but|than|except|plus|times|wrong|incorrect|doubled|halved|tripled|negative|no|"
    r"hundred|thousand|million|billion)\b))"
    r"|(?:,|\s[—–-]|\s\() ?(?:which|that) is (?:[\w$,.]{1,20} ){0,4}(?:times|of|plus|minus|divided by|multiplied by) "
    r"(?:the )?\$?\d[\d.,]{0,20}\)?\.?\Z"
)
_ASIDE = re.compile(
    r"(?<=[\d%}$)*a-z])\s(?:for|in|at|on|after|during|with|by|from) (?:the|a|an|each|all|his|her|their|this|"
    r"that|our|we)\b"
    r"(?![^\n]*(?:\d|\b(?:negative|minus|thousands?|millions?|billions?|factor|power|base|opposite|denominator|root|"
    r"hundreds?|tens?|digits?|below|debt|or|not|but|if|than|sign|per|exponent|percent|half|dozens?|wrong|units?)\b))"
    r"[a-z ,'-]*\.?\Z"
)
"""Where, when and for what: it says nothing about the value."""
_SENTENCE = re.compile(r"(?<=[.!?])(?<!\bi\.e\.)(?<!\be\.g\.)(?:\*\*|\$)?\s+(?=[A-Z*\"(\\$0-9#])")
_NUMBER = re.compile(r"[$€£]?-?(?<![\w.,])\d(?:[\d,]*\d)?(?:\.\d+)?(?:/\d+)?(?![\d/:]|[.,]\d)")
_IN_UNIT = re.compile(r"\bin ([A-Za-z]+)\)?\s*(?:is|are|was|equals)?[\s*:=]*\Z")
_GIVES = re.compile(
    r"\b(?:is|are|was|were|has|have|had|sold|made|makes|needs?|needed|gets?|got|earn(?:s|ed)?|costs?|pa(?:ys|id)|spent|"
    r"travels?|travell?ed|drives?|drove|walks?|walked|runs?|ran|reads?|saves?|saved|weighs?|uses?|used|eats?|scored?|"
    r"scores|sells?|contains?|holds?|produces?|collected|requires?|lasts?|covers?|wins?|won|left|remain|"
    r"spends|receive[ds]?|takes|took|gives|gave|bought|ate|found|totals?|equals|exactly|a total of)\s\Z",
    re.IGNORECASE,
)
_CHANGING = re.compile(
    r"(?:or|and|to|over|out|of|point|plus|minus|times|squared|cubed|fewer|less|more|too|short|below|above|per|percentage|"
    r"th|st|nd|rd|x|by|divided|mod|choose|half|halves|thirds|quarters|fold|late|early|off)\Z",
    re.IGNORECASE,
)


def first_sentence(line: str) -> tuple[str, int]:
    """Return the first sentence of a line without the reason for it, and where it ends."""
    first = _SENTENCE.split(line)[0] if line else line
    cue = _CUE.match(first)
    said = list(ANSWER.finditer(first))
    begin = max(said[-1].end() if said else 0, cue.end() if cue else 0, 1)
    reason = _REASON.search(first, begin) or _REMARK.search(first, begin) or _ASIDE.search(first, begin)
    return (first[: reason.start()], reason.end()) if reason else (first, len(first))


def last_sentence(line: str) -> str:
    """Return the last sentence of a line."""
    return _SENTENCE.split(line)[-1].strip()


def value_of(sentence: str) -> str:
    """Return the value of a sentence, without the words that introduce it."""
    text = _CUE.sub("", unstarred(sentence))
    if said := list(ANSWER.finditer(text)):
        text = text[said[-1].end() :]
    if words(text) > 2 and (value := _only_number(text)):
        return value
    return unstarred(text)


def words(text: str) -> int:
    """Return how many words a text has, of two letters or more; commands of LaTeX do not count."""
    return len(re.findall(r"[A-Za-z]{2,}", re.sub(r"\\\w+", "", text)))


def value_after_verb(sentence: str) -> str:
    """Return the value that a sentence ends with: the total is 18."""
    rest = _CUE.sub("", sentence)
    verbs = list(_VERB.finditer(rest))
    if not verbs or not re.search(r"[A-Za-z]{2,}", rest[: verbs[-1].start()]):
        return value_of(rest)
    before = rest[: verbs[-1].start()]
    if re.search(r"(?i)\banswer", before) or CONDITION.search(before) or is_denied(re.sub(r"\\\w+", "", rest)):
        raise Unreadable("the answer is denied, or one of several")
    return with_unit(before, value_of(rest[verbs[-1].end() :]))


def with_unit(before: str, value: str) -> str:
    """Return a number with the unit that is said before it: the length in km is 5."""
    found = _IN_UNIT.search(before)
    if not found or not re.fullmatch(r"[\s$*]*-?\d[\d.,/]*[\s.$*]*", value):
        return value
    try:
        unit = unit_of(tokens(f"1 {found[1]}")[1:])[1]
    except Unreadable:
        return value
    is_known = unit is not None and not unit.dimensions[0][0].startswith("W:")
    return f"{value.rstrip(' .')} {found[1]}" if is_known else value


def unstarred(text: str) -> str:
    """Without the stars of bold type that are at one end only."""
    text = text.strip()
    for sign in ("**", "*", "`", "__"):
        if text.count(sign) % 2 and not re.search(rf"\w\s?{re.escape(sign)}\s?\w", text):
            text = re.sub(rf"{re.escape(sign)}([.,;:!]?)\Z|\A{re.escape(sign)}", r"\1", text).strip()
    return text


def _only_number(sentence: str) -> str | None:
    """Return the number of a sentence that has one only, with the words after it that are its unit."""
    numbers = list(_NUMBER.finditer(sentence))
    if len(numbers) != 1 or re.search(r"[\\{}=<>+*^]", sentence) or is_denied(sentence):
        return None
    (number,) = numbers
    before, after = sentence[: number.start()], sentence[number.end() :]
    if not _GIVES.search(before):
        return None
    found = re.match(r"%|(?:\s?[A-Za-z²³°]{1,20}(?=[\s.,!]|\Z)){1,3}", after)
    following = found[0].split() if found else []
    if following and _CHANGING.match(following[0]):
        return None
    for many in range(len(following), 0, -1):
        unit = " ".join(following[:many])
        try:
            unit_of(tokens(f"1 {unit}" if after[:1].isspace() else f"1{unit}")[1:])
        except Unreadable:
            continue
        return f"{number[0]} {unit}"
    return number[0]
