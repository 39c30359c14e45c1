"""Prompts with instructions, drawn from a seed, and for each prompt a demonstration that follows all instructions."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from posttrain.rewards.instruction_checks import Instruction, followed, said

TOPICS: Final = (
    "a river", "a small town", "the night sky", "a garden", "a long walk", "bread", "a library", "winter", "a market",
    "a wooden bridge", "the sea", "a bicycle", "a forest", "rain", "a school", "a mountain", "a train", "music", "tea",
    "a lake",
)  # fmt: skip
ASKED: Final = ("Write about {}.", "Describe {}.", "Tell me about {}.", "Write a short text about {}.")
WORDS: Final = (
    "light",
    "water",
    "quiet",
    "people",
    "morning",
    "stone",
    "green",
    "old",
    "slow",
    "wind",
    "friend",
    "road",
)
BEGINS: Final = ("Let me tell you", "Here is what I know", "Some say")
ENDS: Final = ("that is all.", "what do you think?", "thank you for reading.")
SENTENCES: Final = (
    "It is {0} there in the {1}.", "You can see the {0} and the {1}.", "Many find it {0} and {1}.",
    "The {0} is near the {1}.", "I like the {0} more than the {1}.",
)  # fmt: skip
EXCLUSIVE: Final = (
    {"at_least", "at_most"}, {"lowercase", "uppercase"}, {"include", "repeat", "avoid"}, {"quotes", "begins", "json"},
    {"quotes", "ends", "json"}, {"json", "bullets", "title"}, {"json", "lowercase", "uppercase"},
    {"json", "at_least", "at_most"}, {"json", "no_commas"}, {"bullets", "quotes"}, {"bullets", "begins"},
    {"title", "begins"}, {"title", "quotes"}, {"bullets", "at_most"}, {"repeat", "at_most"}, {"repeat", "bullets"},
)  # fmt: skip
"""Kinds of which one prompt has at most one."""
TRIES: Final = 20
KINDS: Final = (
    "at_least", "at_most", "include", "avoid", "repeat", "lowercase", "uppercase", "no_commas", "bullets", "ends",
    "begins", "quotes", "title", "json",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A prompt. Problems with the same key are the same."""

    key: str
    question: str
    topic: str
    instructions: tuple[Instruction, ...]


def draw_problem(rng: random.Random, most: int) -> Problem:
    """Draw a topic and one to `most` instructions that can be followed together."""
    topic, wanted, kinds = rng.choice(TOPICS), rng.randint(1, most), list[str]()
    for kind in rng.sample(KINDS, len(KINDS)):
        if len(kinds) < wanted and not any(kind in group and group & {*kinds} for group in EXCLUSIVE):
            kinds.append(kind)
    instructions = tuple({"kind": kind, **_options(kind, rng)} for kind in kinds)
    question = " ".join([rng.choice(ASKED).format(topic), *map(said, instructions)])
    return Problem(json.dumps([topic, instructions], sort_keys=True), question, topic, instructions)


def _options(kind: str, rng: random.Random) -> dict[str, Any]:
    match kind:
        case "at_least":
            return {"count": rng.randrange(10, 31, 5)}
        case "at_most":
            return {"count": rng.randrange(20, 41, 5)}
        case "include" | "avoid":
            return {"word": rng.choice(WORDS)}
        case "repeat":
            return {"word": rng.choice(WORDS), "count": rng.randint(2, 3)}
        case "bullets":
            return {"count": rng.randint(2, 4)}
        case "begins":
            return {"phrase": rng.choice(BEGINS)}
        case "ends":
            return {"phrase": rng.choice(ENDS)}
    return {}


def demonstration(problem: Problem, rng: random.Random) -> str:
    """Write a text that follows all instructions of a problem."""
    options = {one["kind"]: one for one in problem.instructions}
    banned = options.get("avoid", {}).get("word")
    words = [word for word in WORDS if word != banned]
    wanted = [options[kind]["word"] for kind in ("include", "repeat") if kind in options]
    wanted *= options.get("repeat", {}).get("count", 1)
    count = options.get("bullets", {}).get("count", max(1, len(wanted)))
    least = options.get("at_least", {}).get("count", 0)
    for _ in range(TRIES):
        lines = [_sentence(rng, words, wanted[index : index + 1]) for index in range(max(count, len(wanted)))]
        while "bullets" not in options and sum(len(line.split()) for line in lines) < least:
            lines.append(_sentence(rng, words, []))
        text = _framed(problem, options, lines)
        if all(followed(one, text) for one in problem.instructions):
            return text
        if "bullets" in options:  # too few words in so many points: longer points
            words = [f"{word} and {other}" for word, other in zip(words, words[1:] + words[:1], strict=True)]
    raise AssertionError(f"no text follows {problem.instructions}")


def _sentence(rng: random.Random, words: Sequence[str], wanted: Sequence[str]) -> str:
    first, second = rng.sample(list(words), 2)
    return rng.choice(SENTENCES).format(*wanted, *([first, second][len(wanted) :]))


def _framed(problem: Problem, options: dict[str, Instruction], lines: list[str]) -> str:
    """Return the sentences in the form that the instructions ask for."""
    if "json" in options:
        return json.dumps({"topic": problem.topic, "text": " ".join(lines)})
    first = (
        [f"<<{problem.topic}>>"]
        if "title" in options
        else [options["begins"]["phrase"] + ":"]
        if "begins" in options
        else []
    )
    last = [options["ends"]["phrase"].capitalize()] if "ends" in options else []
    points = [f"- {line}" for line in lines] if "bullets" in options else [" ".join(lines)]
    text = "\n".join([*first, *points, *last]) if "bullets" in options else " ".join([*first, *points, *last])
    text = text.lower() if "lowercase" in options else text.upper() if "uppercase" in options else text
    return f'"{text}"' if "quotes" in options else text
