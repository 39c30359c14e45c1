"""The page for DVC's plots, without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.report.plots_page import install, vegalite_5


def test_the_page_is_installed_for_this_clone(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no DVC project"):
        install(tmp_path)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    assert install(tmp_path) == tmp_path / ".dvc/plots_page.html"
    assert "plots_page.html" in (tmp_path / ".dvc/config.local").read_text()
    shown = (tmp_path / ".dvc/plots_page.html").read_text(encoding="utf-8")
    assert shown.startswith("<!DOCTYPE html>") and shown.endswith("</html>\n")
    assert "window.vegaEmbed" in shown and "{plot_divs}" in shown and "SCRIPTS" not in shown
    assert "<script src" not in shown


def test_the_version_of_vega_lite_is_dvcs() -> None:
    first, _, rest = vegalite_5().partition(".")
    assert first == "5" and all(part.isdecimal() for part in rest.split("."))
