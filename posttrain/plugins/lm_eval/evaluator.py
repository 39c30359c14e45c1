"""`evaluate.lm_eval`: run tasks of lm-evaluation-harness on a model, in a separate environment (docs/results.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl
from pydantic import Field, field_validator

from posttrain.errors import ParamsError
from posttrain.files import is_outside
from posttrain.measure.record import note
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.outside.evaluators import Evaluator, EvaluatorRun, documents_table, whole
from posttrain.pipeline.outside.tool import Tool
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.plugins.lm_eval import lm_eval_child
from posttrain.settings.params import did_you_mean
from posttrain.settings.plain import CUSTOM
from posttrain.text.chat import DATE

TOOL: Final = Tool("lm_eval", "lm-eval", "0.4.13", "lm-eval")
FIX: Final = "Read the end of its output; without a network, only tasks with data on this machine can run"


class LmEvalRun(EvaluatorRun):
    """`evaluate.lm_eval.NAME`: a model and the tasks to run on it."""

    tasks: list[str] = Field(min_length=1, description="names of lm-eval tasks or groups, or of your own YAML files")
    include: str | None = Field(None, description="a folder in custom/ with your own tasks and their data")
    chat: bool = Field(False, description="format prompts with the model's chat template")
    num_fewshot: int | None = Field(None, ge=0, description="examples per prompt; null: the task's default")
    limit: int | None = Field(None, ge=1, description="documents per task, from the start; null: all")
    batch: int = Field(8, ge=1, description="requests per batch")
    device: DeviceParams = Field(default_factory=DeviceParams)

    @field_validator("include", mode="after")
    @classmethod
    def _is_ours_to_track(cls, include: str | None) -> str | None:
        if include is not None and (is_outside(include, CUSTOM) or not include.startswith(f"{CUSTOM}/")):
            raise ValueError(f"give a folder in {CUSTOM}/, whose files count as the run's code")
        if include is not None and not Path(include).is_dir():
            raise ValueError("the folder does not exist")
        return include


def measured(run: LmEvalRun, model: Path, where: str) -> tuple[dict[str, float], pl.DataFrame]:
    """Return the metrics of the tasks, and a table with a row for each document."""
    runtime = Runtime(run.device)
    asked = {
        **run.model_dump(exclude={"policy", "evaluator", "device"}),
        "date": DATE,
        "device": str(runtime.device),
        "dtype": "bfloat16" if runtime.bf16 else "float32",
        "threads": run.device.threads,
        "deterministic": run.device.deterministic,
    }
    threads = {"OMP_NUM_THREADS": str(run.device.threads), "TOKENIZERS_PARALLELISM": "false"}
    with whole(model) as folder:
        answer = TOOL.answer(lm_eval_child, {**asked, "model": str(folder)}, where, FIX, **threads)
    if unknown := answer.get("unknown"):
        fix = did_you_mean(unknown[0], answer["known"]) if run.include else "Set the folder of your own task: include"
        raise ParamsError(what=f"{where}.tasks: lm-eval has no task '{unknown[0]}'", where=PARAMS_FILE, fix=fix)
    note(**{"lm_eval" if name == "lm_eval" else f"lm_eval_{name}": value for name, value in answer["versions"].items()})
    return answer["figures"], documents_table(answer["documents"])


LM_EVAL: Final = Evaluator(LmEvalRun, measured)
