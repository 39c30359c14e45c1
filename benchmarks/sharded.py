"""What a sharded run costs beside its steps: bytes read and held at the start, and products per tile of its head.

python -m benchmarks.sharded [--processes 4] [--million 60]     prints a table (docs/processes.md)

A Qwen3 with random weights of the given size is written to a temporary folder. Each process reads what it reads and is
measured by Linux: bytes read from files, and the most resident memory that it gained.
"""

from __future__ import annotations

import stages  # noqa: F401  # first: it sets the instructions that torch may use

# isort: split

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MB = 1e6
VOCABULARY = 4096


def write_model(folder: Path, million: float) -> int:
    """Write a model of about so many weights. Return its bytes in float32."""
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    from posttrain.models.files.store import new_model, save_model
    from posttrain.text.bpe import BpeParams, train_tokenizer

    width = 512
    of_layer = 2 * width * width + 2 * width * width // 2 + 3 * width * 4 * width
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=max(round((million * 1e6) / of_layer), 1),
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, intermediate_size=4 * width,
        tie_word_embeddings=True,
    )  # fmt: skip
    tokens = folder / "tokenizer"
    train_tokenizer(["a b c d e f g"] * 20, BpeParams(vocabulary=300), tokens)
    model = new_model(config, 0)
    save_model(model, folder / "model", tokens)
    return sum(part.nbytes for part in model.parameters())


class Settings:
    """The settings of a run that affect its models."""

    micro_tokens, shards, divides_models, reference_moves, critic_start = 16_384, None, True, False, None

    def attach(self, start: Path) -> None:
        """Train all weights."""


def measure(rank: int, size: int, meeting: str, folder: str) -> dict[str, float]:
    """Return what this process reads and holds, and the products of its head in a step of one tile."""
    import torch

    from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
    from posttrain.distributed import world
    from posttrain.models.device import DeviceParams, Runtime
    from posttrain.rollout import TokenRow
    from posttrain.train.batch_sources import Example, collate
    from posttrain.train.model_set import ModelSet
    from posttrain.train.step import StepClosure

    if size > 1:
        world.connect(rank, size, meeting)
    runtime = Runtime(DeviceParams(device="cpu", precision="fp32", threads=1))
    objective = LikelihoodObjective(LikelihoodConfig())
    _import_all(Path(folder))
    from torch._dynamo import eval_frame  # FSDP loads torch's compiler, whose files are no part of the model

    del eval_frame
    before, read = _resident(), _read()
    with _most_resident() as most:
        models = ModelSet.load(runtime, Path(folder), objective.needs, Settings())
    found = {"read": (_read() - read) / MB, "held": (_resident() - before) / MB, "most": (most[0] - before) / MB}
    batch = collate([Example([TokenRow([row], [row + 2] * 40)]) for row in range(2 * size)])
    models.policy.train()
    closure = StepClosure(objective, models, batch.with_prepared(objective.prepare(batch.columns, {}).step))
    with _products() as products:
        closure()
    if size > 1:
        torch.distributed.barrier()
    return found | {"products": products.of_head}


def _import_all(folder: Path) -> None:
    """Import what a start imports, so that its memory and files are not measured."""
    import torch.distributed.fsdp  # noqa: F401

    from posttrain.models.files.loading import meta_model, model_class, prepared
    from posttrain.models.files.store import load_config

    config = load_config(folder)
    prepared(meta_model(model_class(config), config, "the model"))


def _products() -> Any:
    """Return a context that counts matrix products over the vocabulary."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        of_head = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            product = func.overloadpacket.__name__ in ("mm", "addmm", "addmm_", "bmm")
            if product and any(VOCABULARY in part.shape for part in args if hasattr(part, "shape")):
                self.of_head += 1
            return func(*args, **(kwargs or {}))

    return Products()


def _resident() -> int:
    """Return the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _read() -> int:
    """Return the bytes that this process has read from files and pipes."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


@contextmanager
def _most_resident() -> Iterator[list[int]]:
    """Yield a list with the most memory held within the context, looked at every 2 ms."""
    most, done = [_resident()], threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], _resident())

    thread = threading.Thread(target=look)
    thread.start()
    yield most
    done.set()
    thread.join()


def run(size: int, million: float) -> tuple[int, list[dict[str, float]]]:
    """Return the model's bytes in float32 and what each process measured."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        model_bytes = write_model(place, million)
        command = [sys.executable, "-m", "benchmarks.sharded", "--process"]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        words = [str(size), f"file://{place}/meeting", str(place / "model")]
        logs = [(place / f"{rank}.log").open("w+") for rank in range(size)]
        started = [
            subprocess.Popen(
                [*command, str(rank), *words], env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
            for rank, log in enumerate(logs)
        ]
        printed = [process.communicate()[0] for process in started]
        if any(process.returncode for process in started):
            raise SystemExit("".join((place / f"{rank}.log").read_text()[-2000:] for rank in range(size)))
    return model_bytes, [json.loads(text.splitlines()[-1]) for text in printed]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded", description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--million", type=float, default=60, help="weights of the model, in millions")
    parser.add_argument("--process", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.process:
        rank, size, meeting, folder = asked.process
        print(json.dumps(measure(int(rank), int(size), meeting, folder)))
        return
    model_bytes, found = run(asked.processes, asked.million)
    print(f"{asked.processes} processes, a model of {model_bytes / MB:.0f} MB in float32\n")
    print("| process | MB read | MB held | most MB held | products per tile |\n| --- | --- | --- | --- | --- |")
    for rank, row in enumerate(found):
        print(f"| {rank} | {row['read']:.0f} | {row['held']:.0f} | {row['most']:.0f} | {row['products']:.0f} |")


if __name__ == "__main__":
    main()
