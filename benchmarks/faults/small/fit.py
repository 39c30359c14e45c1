"""fit: a weight that follows the table in steps, with the checkpoints of the library."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from posttrain.scale import SCALE
from safetensors.torch import save_file

from posttrain.data.parquet import decode
from posttrain.files import write_json
from posttrain.measure.phases import phase
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.pipeline.workspace import metrics_path, model_path
from posttrain.train.checkpoint import CheckpointData

EVERY = 5
PAUSE_S = 0.04


def main(run: str) -> None:
    params = read_yaml("params.yaml")["fit"]["runs"][run]
    table = Path(f"data/{params['data']}.parquet")
    with phase("load"):
        numbers = decode(table)["number"].to_list()
    checkpoints = Checkpoints(f"fit@{run}", params, [table])
    saved = checkpoints.resume(lambda found: found) or CheckpointData(0, {"weight": torch.zeros(64)}, {})
    print(f"fit begins at step {saved.step}", flush=True)
    weight = saved.tensors["weight"]
    for step in range(saved.step + 1, params["steps"] + 1):
        weight = weight * params["rate"] + SCALE * numbers[step % len(numbers)]
        time.sleep(PAUSE_S)
        if step % EVERY == 0:
            checkpoints.save(CheckpointData(step, {"weight": weight}, {}))
    name = f"fit@{run}"
    model_path(name).mkdir(parents=True, exist_ok=True)
    save_file({"weight": weight}, str(model_path(name) / "model.safetensors"))
    write_json(model_path(name) / "config.json", {"rate": params["rate"]})
    write_json(metrics_path(name), {"score": round(float(weight.mean()), 4)})
    checkpoints.finish(metrics_path(name))


if __name__ == "__main__":
    run_named_stage(main)
