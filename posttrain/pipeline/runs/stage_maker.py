"""The maker of a stage's checkpoints: the code that its run can load."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from posttrain.measure.provenance import Maker, hardware
from posttrain.pipeline.lock import code_manifest
from posttrain.pipeline.lock.code_digest import Outlines
from posttrain.pipeline.params.stage_table import stage_of
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.workspace import PARAMS_FILE

_OUTLINES: Final = Outlines()


def stage_maker(name: str) -> Maker:
    """Return the maker of a checkpoint that the run would save now. `name` is e.g. `online@grpo`."""
    settings = read_yaml(PARAMS_FILE) if Path(PARAMS_FILE).is_file() else {}
    stage = stage_of(settings, name.replace("@", "/")).replace("/", "@", 1)
    library = code_manifest.Library(_OUTLINES)
    used = library.code(stage, settings)
    library.outlines.keep()
    return {**used, "cpu": hardware()}
