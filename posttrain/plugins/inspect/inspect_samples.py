"""Read the samples in Inspect's logs (.eval and .json) with Inspect's reader, in a separate environment.

A log becomes a round. Its epochs become the samples of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from posttrain.errors import DataError
from posttrain.pipeline.outside.rollouts.sampled import Sampled, turns_of
from posttrain.plugins.inspect import inspect_samples_child
from posttrain.plugins.inspect.inspect_logs import TOOL
from posttrain.rollout import Score

_SUFFIXES: Final = (".eval", ".json")


def read(folder: Path) -> Iterator[Sampled]:
    """Yield the samples of each log, ordered by file name, which begins with the time."""
    files = sorted(str(file) for file in folder.rglob("*") if file.suffix in _SUFFIXES)
    read = (
        TOOL.answer(inspect_samples_child, {"files": files}, str(folder), "Read the end of its output") if files else {}
    )
    if "fault" in read:
        what = f"Inspect cannot read it ({read['fault']})"
        raise DataError(what=what, where=read["file"], fix="Remove it; the folder may only contain Inspect logs")
    for number, log in enumerate(read.get("logs", ())):
        file = Path(log["file"])
        for sample in sorted(log["samples"], key=lambda sample: (str(sample["id"]), sample["epoch"])):
            row = f"{sample['id']}, epoch {sample['epoch']}"
            yield Sampled(
                group=(number, sample["id"]), round=number, prompt=turns_of(sample["prompt"], "prompt", file, row),
                completion=sample["completion"], finish=sample["finish"], length=sample["length"] or None,
                scores={name: Score(*score) for name, score in sample["scores"].items()},
                version=log["model"], info={"target": sample["target"], **sample["info"]}, task=log["task"],
            )  # fmt: skip
