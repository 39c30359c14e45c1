"""Check the texts that users read by the rules of plain English: `python -m docs.make.english`.

Two rules are gates in CI (`GATES`). The others are hints for a person: `python -m docs.make.english --hints` prints
them, and a hint may be wrong.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from docs.make.texts import Text, texts

GATES: Final = {
    "is no X: write 'is not a X'": re.compile(
        r"(?<!here )(?<!here's )\b(?:is|are|was|were) no (?!longer\b|more\b)(?=\w)"
    ),
    "a number without its leading zero": re.compile(r"(?:^|[\s(\[,])[-+]?\.\d"),
    "a number of five or more digits without commas": re.compile(r"(?<![\w.,/:@#=-])\d{5,}(?![\w.:/-])"),
}
"""What is wrong -> its pattern. Code between backquotes is not read."""
HINTS: Final = {
    "the subject comes first": re.compile(r"^(?:Of|From|To a|By) (?!course|default)"),
    "things that say, know, name or take": re.compile(
        r"\b(?:says|knows|names|takes) (?:what|how|which|whether|those)\b"
    ),
    "those, ones, what: repeat the noun": re.compile(r"\b(?:those (?:of|that|which)|ones\b|the one (?:of|that))"),
    "a clause is the subject": re.compile(r"^(?:What|How|Whether|Which) [^?]*$"),
    "the field's noun is 'number' or 'metric'": re.compile(r"\bfigures?\b"),
    "say who refuses": re.compile(r"\b(?:is|are) (?:refused|left out|taken|passed over)\b"),
    "'also' is not 'even'": re.compile(r", also (?:if|of|with|where|when|before|after)\b"),
    "a comparison in symbols": re.compile(r"\bis (?:more|less) than\b"),
    "say what is computed": re.compile(r"^Return (?:what|how|which|where|that)\b"),
    "a name that holds nothing": re.compile(r"\b(?:of its own|of one's own|of yours|of theirs)\b"),
}
CODE: Final = re.compile(r"`[^`]*`|https?://\S+")


def hits(read: Iterable[Text], rules: Mapping[str, re.Pattern[str]]) -> Iterator[tuple[str, Text]]:
    """Yield (rule, text) for every text that breaks a rule."""
    for text in read:
        bare = CODE.sub("`x`", text.text)
        yield from ((rule, text) for rule, pattern in rules.items() if pattern.search(bare))


def main() -> int:
    """Print the hits. Return 1 if a gate has some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hints", action="store_true", help="print hits of the other rules too; they may be wrong")
    arguments, read = parser.parse_args(), list(texts())
    found = list(hits(read, GATES))
    for rule, text in [*found, *(hits(read, HINTS) if arguments.hints else ())]:
        print(f"{text.file}:{text.line}: {rule}: {text.text:.160}")
    kinds = Counter(text.kind for text in read)
    counted = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    print(f"{len(read):,} texts read ({counted}), {len(found)} faults")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
