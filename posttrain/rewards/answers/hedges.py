"""The words around an answer that deny it, take it back or add another; and those that say nothing."""

from __future__ import annotations

import re

from posttrain.rewards.answers.tree import Unreadable

POLITE = re.compile(
    r"(?im)(?:(?<=[.!?\n}$*])|^)[ \t]*(?:\W{0,3})(?:please\s+)?(?:let me know|i hope|hope (?:this|that|it)|feel free|"
    r"(?:i'm |i am )?happy to|good luck|would you like|thank(?:s| you)|have a (?:great|nice|good)|"
    r"if you (?:have|need|'d|would)|is there anything|do you (?:have|want|need)|great (?:job|question)|don't hesitate)[^\n]*$"
)
"""Remarks to the reader after an answer."""
CLAUSE = re.compile(r"[.!?;:,\n](?=\s|\Z)|\b(?:so|therefore|hence|thus|but|then|because)\b", re.IGNORECASE)
_DENIED = re.compile(
    r"\b(?:not|never|neither|nor|cannot|rather than|instead of|anything but|unlike|except|excluding)\b(?:\s+\S+){0,3}\s*\Z"
    r"|n't(?:\s+\S+){0,3}\s*\Z"
    r"|(?:\bnot|n't) (?:true|correct|right|the case|the answer|sure|certain|think|believe|equal)\b"
    r"|\b(?:false|wrong\w*|incorrect\w*|mistaken\w*|tempting|doubt\w*|unlikely|impossible|maybe|perhaps|possibly|"
    r"might|may be|could be|either|guess\w*|unsure|unless|would have been|ignore|suppose|assum\w+ that)\b",
    re.IGNORECASE,
)
_CHANGED = re.compile(
    r"(?:\b(?:minus|negative|twice|double|triple|half|half of|times|plus|more than|less than|at least|at most|over|under|"
    r"square of|root of|about|approximately|around|roughly|almost|nearly|opposite of|reciprocal of|inverse of|between|"
    r"greater than|fewer than|up to|to|or|and)|(?<![=:,]\s)(?<![=:,])(?<!\A)[-+*/^<>≤≥±])[\s$*(\\]*\Z",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:wait|actually|correction|mistake|scratch that|wrong|incorrect|oops|hmm+|sorry|not right|rather|"
    r"should (?:be|have been)|on second thought|hold on|alternatively|otherwise|unless|not correct|"
    r"could (?:also|be)|might (?:also|be)|or (?:maybe|perhaps|possibly|else)|disregard|ignore|not sure|unsure|instead|"
    r"false|let me re|another (?:possible )?(?:answer|solution)|also (?:possible|acceptable)|is not|isn't)\b",
    re.IGNORECASE,
)
_ADDED = re.compile(
    r"\A(?:[\s$*)\]]|\\[)\]])*[,;]?\s*\(?(?:(?:or|and|and/or|either|maybe|perhaps|possibly|if|when|for|else|but|not|is not|isn't|"
    r"was|could|would|might|to|through|minus|plus|times|thousand|million|hundred|billion|trillion|dozen|divided|squared|"
    r"cubed)\b|[-+*/^=<>≤≥±!]|\\(?:pm|times|cdot|div|approx|ne|le|ge)\b)",
    re.IGNORECASE,
)
JOINED = re.compile(
    r"[\s$*\\,;().\[\]]*(?:(?:\b(?:or|and|also|maybe|perhaps|possibly|either|if|else|otherwise)\b|/|\bx\b|\by\b|=)"
    r"[\s$*\\,;().=]*)*\Z",
    re.IGNORECASE,
)
"""What may stand between two answers that are given together."""


def check_before(text: str) -> None:
    """Refuse an answer that the words before it deny or change."""
    clause = CLAUSE.split(re.sub(r"[\s$*(\[\\]+\Z", "", text[-200:]))[-1]
    if _DENIED.search(clause) or _CHANGED.search(clause):
        raise Unreadable("the words before the answer deny or change it")


def check_after(rest: str) -> None:
    """Refuse an answer that what follows takes back or adds to."""
    if _ADDED.match(rest.split("\n", maxsplit=1)[0]) or _TAKEN_BACK.search(rest[:2000]):
        raise Unreadable("the words after the answer take it back, or add another")


def is_taken_back(text: str) -> bool:
    """Whether a text corrects what was before it."""
    return bool(_TAKEN_BACK.search(text))


def is_denied(text: str) -> bool:
    """Whether a text denies something, or is not sure of it."""
    return bool(_DENIED.search(text) or re.search(r"(?i)\b(?:not|never|if|or)\b|n't\b", text))
