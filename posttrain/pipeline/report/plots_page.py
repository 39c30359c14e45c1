"""Make `dvc plots show` work without a network, with a page template that contains vega's scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from posttrain.errors import PipelineError

PAGE = Path(".dvc") / "plots_page.html"

# DVC's plots call the global vegaEmbed.
GLOBALS = "window.vegaEmbed = vegaEmbed; window.vega = vega; window.vegaLite = vegaLite;"

# DVC replaces {refresh_tag} and {plot_divs}; leaving {scripts} out is what keeps its CDN links away.
TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{refresh_tag}
<title>Plots</title>
<style>body { font-family: sans-serif; margin: 1rem } table { border-spacing: 15px }</style>
<script>(function () {
SCRIPTS
})();</script>
</head>
<body>
{plot_divs}
</body>
</html>
"""


def page() -> str:
    """Return the whole page with vega, vega-lite and vega-embed inside."""
    import vl_convert

    scripts = vl_convert.javascript_bundle(GLOBALS, vl_version=vegalite_5())
    for mark in ("</script", "<!--", "{plot_divs}", "{refresh_tag}", "{scripts}"):
        if mark in scripts:
            raise PipelineError(
                what=f"the scripts contain '{mark}', which would break the page",
                where="vl-convert-python",
                fix="Install the version in constraints.txt",
            )
    return TEMPLATE.replace("SCRIPTS", scripts)


def install(root: Path) -> Path:
    """Write the page under `root` and set it in DVC's local settings, which git does not track."""
    if not (root / ".dvc").is_dir():
        raise PipelineError(what="no DVC project", where=str(root), fix="Run from the project's root folder")
    target = root / PAGE
    fresh = target.with_suffix(f".{os.getpid()}")
    fresh.write_text(page(), encoding="utf-8")
    fresh.replace(target)
    # DVC resolves the path against .dvc. In .dvc/config, which git shares, it would break plots where no page is made.
    settings = [sys.executable, "-m", "dvc", "config", "--local", "plots.html_template", target.name]
    subprocess.run(settings, cwd=root, check=True)
    return target


def vegalite_5() -> str:
    """Return the script of vega-lite 5, because DVC's plot templates need this version."""
    import vl_convert

    versions = [tuple(int(part) for part in version.split(".")) for version in vl_convert.get_vegalite_versions()]
    return ".".join(str(part) for part in max(version for version in versions if version[0] == 5))


if __name__ == "__main__":
    install(Path.cwd())
