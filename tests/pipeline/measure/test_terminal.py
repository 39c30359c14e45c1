"""Streams that foreign text goes through: nothing in it acts on a terminal, ends a run, or shows a secret in pieces."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import polars as pl
import pytest

from benchmarks.faults.hostile import KEPT, PLACES, TEXTS, bad, cell
from posttrain.isolation.library import library_environment
from posttrain.measure import masking
from posttrain.measure.terminal import ACTIVE, Coded, SafeStream, escaped, escaped_json, in_red
from posttrain.rollout import Score

SECRETS = (
    "OPENAI_KEY", "PGPASSWORD", "MYSQL_PWD", "GITHUB_PAT", "DATABASE_URL", "POSTTRAIN_WEBHOOK", "POSTTRAIN_SERVE_KEY",
    "openai_api_key", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PREFECT_API_AUTH_STRING",
)  # fmt: skip
PLAIN = ("PATH", "OLDPWD", "PWD", "LANG", "SSH_AUTH_SOCK", "GIT_ASKPASS", "KEYMAP", "MONKEY")


@pytest.fixture(autouse=True)
def known_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Secrets are read once per process."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if masking.is_secret(name, os.environ[name])]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MY_TOKEN", "hf_abcdefgh")
    monkeypatch.setenv("MY_OTHER_TOKEN", "hf_abcdefgh-longer")
    monkeypatch.setenv("MY_KEY", "first line\nsecond line")
    masking._secrets.cache_clear()
    yield
    masking._secrets.cache_clear()


def shown(*pieces: str) -> str:
    stream = io.StringIO()
    safe = SafeStream(stream)
    for piece in pieces:
        safe.write(piece)
        safe.flush()
    safe.finish()
    return stream.getvalue()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_hostile_text_is_written_as_it_is(text: str) -> None:
    assert not ACTIVE.search(shown(f"before {text} after\n").replace("\n", ""))
    assert text not in shown(text) and "before" in shown(f"before {text}\n")
    assert json.loads(escaped_json(json.dumps({"text": text}, ensure_ascii=False))) == {"text": text}
    assert escaped_json(json.dumps(text, ensure_ascii=False)).encode()


def test_half_a_character_in_a_reason_can_be_stored() -> None:
    score = Score(0.0, "error", "HTTP 400: \ud83d", "\udcff")
    assert (score.reason, score.answer) == ("HTTP 400: \\ud83d", "\\udcff")
    assert pl.DataFrame({"reason": [score.reason]}).height == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_no_place_lets_a_text_through(place: Callable[[Path], Mapping[str, str]], tmp_path: Path) -> None:
    for name, said in place(tmp_path).items():
        cells = [cell(number, text, said) for number, text in enumerate(TEXTS.values())]
        assert name in KEPT or not bad(cells), (name, cells)
        assert set(cells) != {"not there"}, name


def test_ordinary_text_stays() -> None:
    for text in ("a\tb\n", "grün é ∑ 日本語\n", "👩‍👩‍👧\n", "نص عربي\n"):
        assert shown(text) == text
    assert shown("a\r\nb\n") == "a\nb\n"


def test_a_carriage_return_redraws_a_line_of_its_own_only() -> None:
    assert shown("\r 10%", "\r 20%", "\n") == "\r 10%\r 20%\n", "as progress bars of libraries do"
    assert shown("error: ", "\rall is well\n") == "error: \\rall is well\n"
    assert shown("error: bad\rall is well\n") == "error: bad\\rall is well\n"
    assert shown("step 1", Coded("\r\x1b[2Kstep 2\n")) == "step 1\r\x1b[2Kstep 2\n", "codes of our own stay"


def test_an_encoding_without_a_character_gets_its_escape() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii", write_through=True)
    SafeStream(stream).write("grün\n")
    assert raw.getvalue() == b"gr\\xfcn\n"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_secret_in_pieces_or_lines_is_hidden(size: int) -> None:
    for text in ("key hf_abcdefgh end\n", "key hf_abcdefgh-longer end\n", "first line\nsecond line\n", "hf_abcdefgh"):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        found = shown(*pieces)
        assert "***" in found and not any(part in found for part in ("abcdefgh", "first line", "second line", "longer"))
    assert shown(*"hf_abcdef", "\n") == "hf_abcdef\n", "what only begins like a secret is written"


@pytest.mark.parametrize("name", SECRETS)
def test_names_of_secrets(name: str) -> None:
    assert masking.is_secret(name, "value-of-it")


@pytest.mark.parametrize("name", PLAIN)
def test_names_of_other_variables(name: str) -> None:
    assert not masking.is_secret(name, "value-of-it")


def test_a_url_with_a_password_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_STORE", "postgres://me:pass%20word1@host/db")
    masking._secrets.cache_clear()
    assert masking.masked("postgres://me:pass%20word1@host/db pass word1 pass%20word1") == "*** *** ***"


STAGE_WITH_DVC = """
import sys
from posttrain.measure.stage_log import start_log
from posttrain.measure.terminal import make_streams_safe

make_streams_safe()
start_log("online@grpo")
import dvc.repo
print("HTTP 400: " + sys.argv[1], file=sys.stderr)
print("the run goes on")
"""


@pytest.mark.parametrize("name", ["OSC 52", "OSC of another kind"])
def test_an_osc_sequence_does_not_end_a_stage_that_has_imported_dvc(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-c", STAGE_WITH_DVC, TEXTS[name]]
    done = subprocess.run(
        command, cwd=tmp_path, env=library_environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0 and done.stdout == "the run goes on\n", done.stderr
    log = (tmp_path / "logs/online@grpo.log").read_text(encoding="utf-8")
    assert f"HTTP 400: {escaped(TEXTS[name])}\n" in done.stderr and escaped(TEXTS[name]) in log


@pytest.mark.parametrize(
    ("terminal", "env", "red"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (False, {}, False),
    ],
)
def test_an_error_is_red_on_a_terminal_that_shows_colours(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, env: dict[str, str], red: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    shown = in_red("error: a \x1b[2J", "error:")
    assert shown == ("\x1b[1;31merror:\x1b[0m a \\x1b[2J" if red else "error: a \x1b[2J")
    assert isinstance(shown, Coded) == red, "a plain text is escaped by the stream"
