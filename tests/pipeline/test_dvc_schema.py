"""dvc.yaml as DVC's extension for VS Code reads it: by the schema of github.com/iterative/dvcyaml-schema.

dvcyaml_schema.json is schema.json of its commit f563c18 (Apache License 2.0, Iterative, Inc.), unchanged.
"""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft7Validator

from posttrain.pipeline.params.yaml_files import read_yaml
from tests.workspace import ROOT

SCHEMA = Draft7Validator(json.loads(Path(__file__).with_name("dvcyaml_schema.json").read_text(encoding="utf-8")))


def test_dvc_yaml_passes_the_official_schema() -> None:
    graph = read_yaml(ROOT / "dvc.yaml")
    assert [error.message for error in SCHEMA.iter_errors(graph)] == []
    graph["stages"]["sft"]["do"]["outputs"] = []
    assert not SCHEMA.is_valid(graph)
