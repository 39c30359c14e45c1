"""What TRL's sides share: settings, rows in their order, and the meter."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.speed.case import BETAS, CLIP, LEARNING_RATE, STOP, Case, prompts, reward, tokenizer
from benchmarks.speed.meter import Meter, Report

COMMON: dict[str, Any] = {
    "learning_rate": LEARNING_RATE,
    "lr_scheduler_type": "constant",
    "adam_beta1": BETAS[0],
    "adam_beta2": BETAS[1],
    "max_grad_norm": CLIP,
    "weight_decay": 0.0,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "logging_steps": 1,
    "seed": 0,
}
"""The same mathematics for all sides; nothing here makes TRL slower."""


def common(case: Case) -> dict[str, Any]:
    """Return what all of TRL's sides are given on the case's device."""
    return {**COMMON, "use_cpu": case.device == "cpu"}


def near_defaults(case: Case) -> dict[str, Any]:
    """Return TRL's defaults except recomputed layers, and on a CPU bf16, since both make TRL slower."""
    return {"bf16": case.device == "cuda", "gradient_checkpointing": False}


def tuned(case: Case) -> dict[str, Any]:
    """Return the same with Liger's kernels on a GPU. A GPU without Liger is an error: that side would not be tuned."""
    if case.device == "cpu":
        return near_defaults(case)
    if not has_liger():
        raise LigerMissing
    return {**near_defaults(case), "use_liger_kernel": True}


def has_liger() -> bool:
    """Return whether Liger's kernels are installed."""
    return find_spec("liger_kernel") is not None


def unpadded(case: Case) -> dict[str, Any]:
    """Return the setting for rows without padding, where TRL has a kernel for them (SFT only: DPO ignores it)."""
    return {"padding_free": True} if flash(case) else {}


def flash(case: Case) -> str | None:
    """Return the newest FlashAttention of transformers on a GPU. Without it, rows side by side need a dense mask."""
    from transformers.utils import import_utils

    names = [f"flash_attention_{number}" for number in (4, 3, 2)] if case.device == "cuda" else []
    return next((name for name in names if getattr(import_utils, f"is_flash_attn_{name[-1]}_available")()), None)


def adapters() -> dict[str, Any]:
    """Return what makes a trainer train the same adapters as ours; the reference is then the model without them."""
    from peft import LoraConfig

    from benchmarks.speed.ours import ALPHA, RANK

    return {"peft_config": LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear")}


class TrlMissing(SystemExit):
    """Said once, with the fix."""

    def __init__(self) -> None:
        super().__init__("TRL is not installed, so its sides cannot run. Install it: pip install -e '.[trl]'")


class LigerMissing(SystemExit):
    """Liger is not installed. The error says how to install it."""

    def __init__(self) -> None:
        super().__init__(
            "Liger's kernels are not installed, so TRL's tuned sides cannot run on a GPU. Install them: "
            "pip install liger-kernel. Without them: the side trl_padded, which is TRL near its defaults"
        )


def require() -> None:
    """TRL is an optional extra."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    try:
        import trl  # noqa: F401
    except ImportError as error:
        raise TrlMissing from error


def fit(trainer: type[Any], settings: Any, meter: Meter, updates: int, **parts: Any) -> list[dict[str, float]]:
    """Train on the rows in their order and give back the log of every update."""
    made = in_order(trainer)(args=settings, callbacks=[clock(meter, updates)], **parts)
    made.train()
    return [row for row in made.state.log_history if "loss" in row]


def clock(meter: Meter, updates: int) -> Any:
    """Tells the meter when updates begin and when the last one is done."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            meter.update()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if state.global_step == updates:
                meter.end()

    return Clock()


def in_order(trainer: type[Any]) -> type[Any]:
    """Return the trainer, taking rows as they come, so that all sides see the same batches."""

    class InOrder(trainer):  # type: ignore[misc]
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset if dataset is None else dataset)

    return InOrder


def folder() -> str:
    """TRL wants a folder to write into."""
    return tempfile.mkdtemp(prefix="trl-")


def online(trainer: type[Any], config: type[Any], case: Case, over: dict[str, Any], **parts: Any) -> Report:
    """Return a policy trainer of TRL on its own samples: two updates a round."""
    from datasets import Dataset

    from benchmarks.speed.case import language_model

    words = tokenizer(case.shape)
    count = case.batch // case.group
    given = [words.decode(ids) for ids in prompts(case, count)]
    updates = case.warm + case.updates
    settings = config(
        output_dir=folder(), max_steps=updates, per_device_train_batch_size=case.batch // 2, steps_per_generation=2,
        num_generations=case.group, max_completion_length=case.longest_answer, shuffle_dataset=False,
        temperature=1.0, **{**common(case), **over},
    )  # fmt: skip
    meter = Meter(case.warm, case.device)

    def even(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [reward(ids if STOP not in ids else ids[: ids.index(STOP) + 1]) for ids in completion_ids]

    rows = list(repeated(given, updates))
    model = named(language_model(case.shape, case.device))
    words.save_pretrained(model.config._name_or_path)  # vLLM reads both from there
    made = trainer(
        model=model, args=settings, reward_funcs=even, processing_class=words,
        train_dataset=Dataset.from_dict({"prompt": rows}), callbacks=[clock(meter, updates)], **parts,
    )  # fmt: skip
    made.train()
    logs = [row for row in made.state.log_history if "loss" in row]
    counted = [row for row in logs[case.warm :] if "completions/mean_length" in row]
    return meter.report(
        case.batch * case.updates / 2,
        [row["loss"] for row in logs],
        length=sum(row["completions/mean_length"] for row in counted) / max(len(counted), 1),
        reward=sum(row["reward"] for row in counted) / max(len(counted), 1),
    )


def named(model: Any) -> Any:
    """Return the model with a folder of its own: TRL loads the reference from there."""
    path = folder()
    model.save_pretrained(path)
    model.config._name_or_path = path
    return model


def repeated(given: list[str], updates: int) -> Iterator[str]:
    """Yield every round asks the same prompts."""
    for _ in range(updates // 2):
        yield from given
