"""Hostile texts in all that prints or stores text: python -m benchmarks.faults.hostile writes docs/reports/hostile.md.

A text goes through a command, a stage or a file, between marks; what comes out between them is looked at byte by byte.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks import ROOT
from posttrain.isolation.library import library_environment

PAGE: Final = ROOT / "docs/reports/hostile.md"
TEXTS: Final[Mapping[str, str]] = {
    "OSC 52": "\x1b]52;c;aGFja2Vk\x07",
    "OSC of another kind": "\x1b]abc;title\x07",
    "OSC 8": "\x1b]8;;http://127.0.0.1/\x1b\\link\x1b]8;;\x1b\\",
    "CSI": "\x1b[2J\x1b[1;1H\x1b[8mhidden\x1b[0m",
    "C1": "\x9d52;c;aGFja2Vk\x9c\x9b2J",
    "carriage return": "bad\rgood\x1b[K",
    "backspace": "no\x08\x08ok\x7f",
    "bidi": "\u202eevil\u202c \u2066x\u2069 \u200f\u061c",
    "surrogate": "half \ud83d of a pair \udcff",
    "null": "a\x00b",
    "Unicode line ends": "a\u2028b\u2029c\x85d\x0be\x0cf",
}
"""What a terminal executes, hides, reverses or cannot print."""
ACTIVE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Written anew, so that the page does not judge the library by its own pattern."""
Said = dict[str, str]
"""Place -> all that came out of it."""


def marked(number: int, text: str) -> str:
    """Return a text between marks."""
    return f"<{number}|{text}|{number}>"


def cell(number: int, text: str, said: str) -> str:
    """Return what came out of a place: escaped, removed, or as it is."""
    found = re.search(rf"<{number}\|(.*?)\|{number}>", said, re.DOTALL)
    if found is None:
        begun = re.search(rf"<{number}\|(.*)", said)
        if begun is None:
            return "not there"
        return f"ACTIVE {begun[1]!r}" if ACTIVE.search(begun[1]) else "escaped, cut"
    shown = found[1]
    if shown == text:
        return "as it is"
    if not ACTIVE.search(shown):
        return "escaped" if "\\" in shown or "&#" in shown else "removed"
    return f"ACTIVE {shown!r}"


PRINTS: Final = """
import json, sys
from posttrain.measure.stage_log import start_log
from posttrain.measure.terminal import make_streams_safe
if sys.argv[1] == "stage":
    start_log("online@a")
    import dvc.repo
make_streams_safe()
for text in json.loads(sys.stdin.read()):
    print("said", text)
    print("said", text, file=sys.stderr)
"""


def _ran(words: list[str], folder: Path, given: str = "") -> tuple[str, str]:
    """Run Python with these words; returns what it printed to stdout and to stderr."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env={**library_environment(), "COLUMNS": "100000"}, check=False,
        input=given.encode(), capture_output=True, timeout=300,
    )  # fmt: skip
    return tuple(part.decode("utf-8", "surrogatepass") for part in (done.stdout, done.stderr))  # type: ignore[return-value]


def printed(folder: Path) -> Said:
    """What a stage and a worker process print, and the stage's log."""
    given = json.dumps([marked(*pair) for pair in enumerate(TEXTS.values())])
    stage, worker = (_ran(["-c", PRINTS, kind], folder, given) for kind in ("stage", "worker"))
    log = (folder / "logs/online@a.log").read_text(encoding="utf-8")
    return {"a stage, stdout": stage[0], "a stage, stderr": stage[1], "logs/STAGE.log": log,
            "a reward's worker, stdout": worker[0], "a reward's worker, stderr": worker[1]}  # fmt: skip


def arguments(folder: Path) -> Said:
    """Errors of commands that repeat an argument; null and half a pair cannot be one."""
    usable = [(number, text.replace("\x00", "").replace("\ud83d", "")) for number, text in enumerate(TEXTS.values())]
    words = ["-m", "posttrain", "show", "".join(marked(*pair) for pair in usable)]
    plain, as_json = _ran(words, folder), _ran([*words, "--json"], folder)
    return {"an unknown argument, stderr": plain[1], "an unknown argument, --json": as_json[0]}


def settings(folder: Path) -> Said:
    """What `check` says of a path in params.yaml."""
    text = "".join(marked(*pair) for pair in enumerate(TEXTS.values()) if not {"\ud83d", "\x00"} & {*pair[1]})
    given = {"data": {"files": {"mine": {"path": text, "chat": {"path": "rows.jsonl"}}}}}
    (folder / "params.yaml").write_text(json.dumps(given), encoding="utf-8")
    plain, as_json = (_ran(["-m", "posttrain", "check", *more], folder) for more in ([], ["--json"]))
    return {"check of params.yaml": plain[1], "check --json": as_json[0]}


ANSWERS: Final = """
import json, sys
from posttrain import __main__ as program
from posttrain.pipeline.commands import line
given = json.loads(sys.stdin.read())
sys.argv = ["posttrain", *sys.argv[1:]]
line.run = lambda arguments: line.as_json(given) if arguments.json else "\\n".join(given)
program.main()
"""
"""A command whose answer is these texts: all answers leave by `main`."""


def answers(folder: Path) -> Said:
    """The answers of commands that show texts of rows, models and runs."""
    given = json.dumps([marked(*pair) for pair in enumerate(TEXTS.values())])
    found = {}
    for words in (["why", "grpo.score"], ["where", "x"], ["status"], ["show", "results"], ["replay", "online/grpo"]):
        for more in ([], ["--json"]):
            name = " ".join(["the answer of", *words, *more])
            found[name] = _ran(["-c", ANSWERS, *words, *more], folder, given)[0]
    return found


def rows(folder: Path) -> Said:
    """A stage that rejects rows: its error, its log and the file of its failure."""
    (folder / "my").mkdir()
    with (folder / "my/rows.jsonl").open("w", encoding="utf-8") as file:
        for pair in enumerate(TEXTS.values()):
            file.write(json.dumps({"messages": [{"role": marked(*pair), "content": "b"}]}) + "\n")
    given = {"data": {"files": {"mine": {"path": "my", "chat": {"path": "rows.jsonl"}}}}}
    (folder / "params.yaml").write_text(json.dumps(given), encoding="utf-8")
    out, err = _ran(["-m", "stages.data_files", "mine"], folder)
    log = (folder / "logs/data_files@mine.log").read_text(encoding="utf-8")
    failure = (folder / ".dvc/tmp/failures/data_files@mine.txt").read_text(encoding="utf-8")
    return {"a stage's error about rows": out + err, "its log": log, ".dvc/tmp/failures/STAGE.txt": failure}


def flow_lines(folder: Path) -> Said:
    """Lines of a stage as a flow writes them to the terminal, and to Prefect's logs and messages."""
    from flows.process import Lines

    del folder
    found = list[str]()
    lines = Lines(found.append)
    lines.feed("\n".join(marked(*pair) for pair in enumerate(TEXTS.values())).encode("utf-8", "backslashreplace"))
    lines.close()
    return {"a flow's log (a child's own bytes)": "\n".join(found)}


def webhook(folder: Path) -> Said:
    """The message of a failed flow."""
    from flows.notify import message

    del folder
    text = "\n".join(marked(*pair) for pair in enumerate(TEXTS.values()))
    sent = json.dumps(message("pipeline", "run", "1", "Failed", text))
    return {"a webhook's message": json.loads(sent)["message"]}


def pages(folder: Path) -> Said:
    """HTML of `preview --html`, and the data in a report's page."""
    from posttrain.pipeline.commands.preview.page import page
    from posttrain.pipeline.report.page import embedded

    del folder
    given = [marked(*pair) for pair in enumerate(TEXTS.values())]
    html = page("rows", ["a fact"], [("a row", [("", [(text, True) for text in given])])])
    shown = str(html).replace("&lt;", "<").replace("&gt;", ">")
    return {
        "preview --html": shown,
        "the report's data": embedded(given).replace("\\u003c", "<").replace("\\u003e", ">"),
    }


def templates(folder: Path) -> Said:
    """What a chat template raises, as a command prints it."""
    program = (
        "import sys, json\nfrom posttrain.measure.terminal import make_streams_safe\nmake_streams_safe()\n"
        "from posttrain.text.template_worker import render\nfor text in json.loads(sys.stdin.read()):\n"
        "    turns = [{'role': 'user', 'content': text}]\n"
        "    asked = {'messages': turns, 'tools': None}\n"
        "    print(render('{{ raise_exception(messages[0].content) }}', '2024-07-26', asked)['error'])\n"
    )
    given = json.dumps([marked(*pair) for pair in enumerate(TEXTS.values())])
    return {"raise_exception of a template": _ran(["-c", program], folder, given)[0]}


def judges(folder: Path) -> Said:
    """The reason of a judge's HTTP 400, as it is stored with a rollout; streams escape it where it is printed."""
    from benchmarks.faults.replies import Hostile, asked, serving

    del folder
    found = {
        name: Hostile(400, json.dumps({"error": {"message": marked(number, text)}}).encode(), {})
        for number, (name, text) in enumerate(TEXTS.items())
    }
    with serving(found) as url:
        said = [asked("judge", f"{url}/{number}")["outcome"] for number in range(len(found))]
    return {"a judge's reason in a rollout's row": "\n".join(said)}


PLACES: Final[tuple[Callable[[Path], Said], ...]] = (
    printed, arguments, answers, settings, rows, flow_lines, webhook, pages, templates, judges,
)  # fmt: skip
KEPT: Final = {
    "a judge's reason in a rollout's row": "the table holds what was said; whatever prints it escapes it",
}
"""Places where a text stays as it is, and why that is right."""


def outcomes(places: tuple[Callable[[Path], Said], ...] = PLACES) -> dict[str, list[str]]:
    """Return the cells of each place, one for each text."""
    found = dict[str, list[str]]()
    for place in places:
        with tempfile.TemporaryDirectory() as folder:
            for name, said in place(Path(folder)).items():
                cells = [cell(number, text, said) for number, text in enumerate(TEXTS.values())]
                found[name] = ["as it is" if name in KEPT and bad([one]) else one for one in cells]
    return found


HEAD: Final = """# Hostile texts, replies and files

Written by `python -m benchmarks.faults.hostile` (5 to 15 minutes); do not edit.

## Texts

Each text goes through everything that prints or stores text. *escaped*: as `\\x1b`, or as JSON's or HTML's escape.
*removed*: the code is gone. *not there*: the place does not show this text: no argument of a process can hold a null or
half a surrogate pair, and errors list ten rows.
"""


def main() -> None:
    """Write the page."""
    from benchmarks.faults import large, replies

    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    found = outcomes()
    lines = [HEAD, "| place | " + " | ".join(TEXTS) + " |", "|---" * (len(TEXTS) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in found.items()]
    lines += ["", *(f"{name}: {why}." for name, why in KEPT.items())]
    lines += ["", "## Replies", "", "To a client with `timeout: 2` and 2 GB of address space.", "", *replies.table()]
    lines += ["", "## Files", "", "Each read under `ulimit -v 8000000`.", "", *large.table()]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if wrong := _wrong(found):
        raise SystemExit(f"not escaped: {wrong}")


def _wrong(found: Mapping[str, list[str]]) -> list[Any]:
    return [(name, cells) for name, cells in found.items() if name not in KEPT and bad(cells)]


def bad(cells: list[str]) -> bool:
    """Return whether a text came out as it is."""
    return any(text == "as it is" or text.startswith("ACTIVE") for text in cells)


if __name__ == "__main__":
    main()
