"""The user's own text among the outputs, and the remotes that a push would send it to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.pipeline.lineage import user_text as module
from posttrain.pipeline.lineage.user_text import cache_folder, push_notes, remotes, user_text

SETTINGS: dict[str, Any] = {
    "data": {
        "files": {"mine": {"path": "my/data"}, "added": {"path": "my/added"}},
        "tasks": {"toy": {"task": "two_step"}},
        "filters": {"kept": {"data": "chosen/chat"}, "chosen": {"data": "mine/chat"}, "other": {"data": "toy/chat"}},
    },
    "online": {
        "runs": {
            "a": {"data": "mine/prompts"},
            "b": {"data": "toy/prompts"},
            "c": {"data": "mine/p", "rollouts": "none"},
        }
    },
    "external": {"rollouts": {"theirs": {}}},
    "evaluate": {
        "settings": {"data": "mine/prompts"},
        "policies": {"sft": "sft/a"},
        "runs": {"text": {"data": "kept/chat"}, "hidden": {"data": "kept/chat", "completions": "none"}},
    },
}
HELD = [
    "my/data", "my/added", "data/chosen", "data/kept", "data/mine", "rollouts/online/a", "rollouts/external/theirs",
    "results/sft/rollouts.parquet", "report/report.html", "results/text/rollouts.parquet",
]  # fmt: skip


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (
        *HELD,
        "data/toy",
        "data/other",
        "rollouts/online/b",
        "rollouts/online/c",
        "results/hidden/rollouts.parquet",
    ):
        file = Path(name) if "." in name else Path(name, "a.bin")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(500_000))
    Path("my/data.dvc").touch()
    Path("my/added/a.bin.dvc").touch()


def configure(text: str) -> None:
    Path(".dvc").mkdir(exist_ok=True)
    Path(".dvc/config").write_text(text)


def test_what_holds_the_users_text() -> None:
    assert user_text(SETTINGS) == [Path(name) for name in HELD]
    hidden = {**SETTINGS["evaluate"], "settings": {"data": "mine/prompts", "completions": "none"}}
    assert user_text({**SETTINGS, "evaluate": hidden}) == [Path(name) for name in (*HELD[:7], HELD[-1])]
    assert user_text({"data": {"tasks": {"toy": {}}}}) == []


def test_remotes_are_listed_without_passwords() -> None:
    assert remotes() == {} and module._config() == {}
    configure(
        "[core]\n    remote = second\n['remote \"first\"']\n    url = https://me:secret@host/a\n"
        "['remote \"second\"']\n    url = s3://bucket/b\n"
    )
    assert list(remotes().items()) == [("second", "s3://bucket/b"), ("first", "https://host/a")]
    assert module._config()["core"]["remote"] == "second"
    assert module._public("ssh://user@host/x") == "ssh://host/x" and module._public("/a@b") == "/a@b"


def test_a_push_is_noted() -> None:
    assert list(push_notes(SETTINGS)) == []
    configure("['remote \"store\"']\n    url = s3://bucket/b\n")
    (line,) = push_notes(SETTINGS)
    assert line.startswith(
        "note: `dvc push` sends your own text to the remote 'store' (s3://bucket/b): my/data (500 kB), "
    )
    assert "rollouts/online/a (500 kB) and 4 more, and the models" in line
    assert list(push_notes({})) == []


def test_the_cache(tmp_path: Path) -> None:
    assert cache_folder() == Path(".dvc/cache")
    configure(f"[cache]\n    dir = {tmp_path}/shared\n")
    assert cache_folder() == Path("shared")
    configure("[cache]\n    dir = /elsewhere\n")
    assert cache_folder() == Path("/elsewhere")


def test_names_and_sizes() -> None:
    assert module._run_of("mine/prompts") == "mine" and module._run_of(None) == "None"
    assert module._size(Path("data/mine")) == module._size(Path("data/mine/a.bin")) == 500_000
