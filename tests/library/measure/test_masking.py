"""Secrets of the environment are hidden."""

from __future__ import annotations

import pytest

from posttrain.measure.masking import HIDDEN, HeldBack, _secrets, is_secret, masked, secret_variables


@pytest.fixture(autouse=True)
def _no_secrets_of_before(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("MY_API_KEY", "abcdefgh12")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    monkeypatch.setenv("MY_URL", "http://me:p%40ssw0rd@host/")
    _secrets.cache_clear()
    yield
    _secrets.cache_clear()


def test_names_of_secrets() -> None:
    assert all(
        is_secret(name, "x") for name in ("HF_TOKEN", "OPENAI_API_KEY", "PGPASSWORD", "MYSQL_PWD", "DATABASE_URL")
    )
    assert not any(is_secret(name, "x") for name in ("PATH", "OLDPWD", "KEYBOARD", "TOKENIZER"))
    assert (
        is_secret("URL", "http://a:b@c") and not is_secret("URL", "http://a@c") and not is_secret("URL", "http://[@x")
    )
    assert secret_variables({"A_KEY": "1", "B": "2"}) == {"A_KEY": "1"}


def test_masked() -> None:
    assert masked("key abcdefgh12 and abc") == f"key {HIDDEN} and abc"
    assert masked("the password p@ssw0rd, also p%40ssw0rd") == f"the password {HIDDEN}, also {HIDDEN}"


def test_a_secret_in_pieces() -> None:
    held = HeldBack()
    assert held.feed("see abcd") == "see " and held.feed("efgh12!") == f"{HIDDEN}!"
    assert held.feed("xab") == "x" and held.rest() == "ab" and held.rest() == ""
