"""A user's own objects by import path: found in the workspace, refused in one line elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.settings.user_code import is_import_path, load_object


@pytest.fixture(autouse=True)
def _workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "custom").mkdir()


def test_an_object_of_the_users_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "custom/own_terms.py").write_text("def soft(x):\n    return x + 1\n")
    assert load_object("own_terms:soft", "online.runs.a.surrogate")(1) == 2
    del sys.modules["own_terms"]


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("soft = 1", "missing:soft", "custom/missing.py not found. Write MODULE:NAME"),
        ("soft = 1", "own_a:sift", "own_a.py has no 'sift'. Did you mean 'soft'?"),
        (
            "soft = 1 +",
            "own_b:soft",
            "(params.yaml): custom/own_b.py line 1: this is not valid Python (invalid syntax). Fix",
        ),
        ("soft = 1", "../own_c:soft", "not an import path"),
        ("soft = 1", "json:loads", "custom/json.py not found"),
    ],
)
def test_what_cannot_be_loaded_is_refused(tmp_path: Path, text: str, path: str, said: str) -> None:
    (tmp_path / "custom" / path.partition(":")[0]).with_suffix(".py").write_text(text) if path.startswith(
        "own_"
    ) else None
    with pytest.raises(ParamsError) as caught:
        load_object(path, "online.runs.a.surrogate")
    assert said in str(caught.value)
    assert "online.runs.a.surrogate" in str(caught.value)
    sys.modules.pop(path.partition(":")[0], None) if path.startswith("own_") else None


def test_a_module_beside_params_yaml_has_to_be_moved(tmp_path: Path) -> None:
    (tmp_path / "own_d.py").write_text("soft = 1")
    with pytest.raises(ParamsError, match=r"custom/own_d.py not found. Move own_d.py to custom/"):
        load_object("own_d:soft", "online.runs.a.surrogate")


def test_a_name_of_the_standard_library_is_not_shadowed(tmp_path: Path) -> None:
    (tmp_path / "custom/json.py").write_text("loads = 1")
    with pytest.raises(ParamsError, match="belongs to"):
        load_object("json:loads", "x")


def test_import_paths_are_told_from_names() -> None:
    assert is_import_path("my_losses:soft") and is_import_path("own.losses:soft")
    assert not any(map(is_import_path, ("soft", "a:b:c", "../a:b", 3, "")))
