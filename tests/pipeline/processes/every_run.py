"""Small runs of every kind by this process and others, from their newest checkpoint up to a step.

    python -m tests.pipeline.processes.every_run RANK SIZE RENDEZVOUS WORKSPACE START END OUT RUN ...

The first process writes OUT/RUN.safetensors: the trained weights and the state of the update, whole.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from posttrain.distributed import world
from posttrain.models.sharding import full
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.train.loop import training_loop
from posttrain.train.metrics import CsvRecorder
from tests.pipeline.train.test_training import make_run


def main() -> None:
    rank, size, meeting, place, start, end, out, *names = sys.argv[1:]
    if int(size) > 1:
        world.connect(int(rank), int(size), meeting)
    torch.set_num_threads(1)
    for name in names:
        run = make_run(Path(start), name, Path(place) / f"teacher-{rank}")
        last = run.source.steps if end == "all" else int(end)
        training_loop(run, Checkpoints(name, {}, []), CsvRecorder(Path(place) / f"{name}.csv"), last)
        tensors = {key: full(part.detach()) for key, part in run.models.trained_parameters().items()}
        tensors |= {f"update.{key}": full(part) for key, part in run.update.state_dict().items()}
        if world.is_rank_zero():
            Path(out).mkdir(parents=True, exist_ok=True)
            save_file({key: part.contiguous().clone() for key, part in tensors.items()}, f"{out}/{name}.safetensors")
    world.wait_for_all()


if __name__ == "__main__":
    main()
