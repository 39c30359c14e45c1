"""The pipeline on top of the library: params.yaml, DVC stages, tables, records and commands.

Importing any part tells the library what it cannot know itself: the settings file, names of secrets, folders.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from posttrain.errors import ParamsError
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE, cache_path, main_root
from posttrain.settings.host import HOST
from posttrain.settings.plain import texts_in


def names_in_params() -> Iterator[str]:
    """Yield every text in params.yaml. Keys of judges, and options of the user's rewards, can name variables."""
    try:
        yield from texts_in(read_yaml(PARAMS_FILE) if Path(PARAMS_FILE).is_file() else {})
    except (ParamsError, ModuleNotFoundError):  # reported by what needs the file, or YAML's package
        return


EXPLAINED: Final = "`posttrain params` explains every key"
FIXES: Final = {
    "settings": EXPLAINED,
    "model missing": "Run the stage that makes it (dvc repro), or get it with `dvc pull`",
    "base missing": "Run `dvc repro`, or `dvc pull {base}`",
    "base changed": "Run `dvc repro`, which trains it again on this one",
    "reward": "Fix the reward; `posttrain reward test` shows the traceback",
    "teacher": "Sample it instead: data.samples.NAME.policy: TEACHER with tables: [chat], then sft on NAME/chat",
    "worker": "Read what it printed above; `posttrain check` imports the same modules",
}
"""Topic of a library error -> the command that fixes it here."""

HOST.settings_file, HOST.secret_names, HOST.cache, HOST.root = PARAMS_FILE, names_in_params, cache_path, main_root
HOST.fixes = FIXES
