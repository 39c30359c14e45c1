"""What a program tells the library, and the defaults of one that tells nothing."""

from __future__ import annotations

from pathlib import Path

from posttrain.settings.host import Host


def test_fix() -> None:
    host = Host(fixes={"reward": "Run `reward test`"})
    assert host.fix("reward", "Try it") == "Run `reward test`" and host.fix("other", "Try it") == "Try it"


def test_defaults() -> None:
    host = Host()
    assert (host.settings_file, tuple(host.secret_names()), host.cache(), host.root()) == ("settings", (), None, Path())
