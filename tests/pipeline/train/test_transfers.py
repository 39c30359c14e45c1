"""How often an update waits for the device: a fixed number of times, however many micro-batches, tokens and metrics.

Without a GPU the device is `meta`: its tensors hold no data, so whatever needs to look at them fails, but for the few
reads that are counted here. With a GPU the same reads are counted, and CUDA refuses every other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_model, load_scorer
from posttrain.rollout import token_rows
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.tiny import random_rows, tiny_folder
from tests.pipeline.train.test_training import settings_of

READS = {"item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__"}
DEVICE = "cuda" if torch.cuda.is_available() else "meta"
PER_UPDATE = ["tolist"]
"""The step's metrics in one piece with the gradient's norm, which decides whether the step is taken."""


class Reads(TorchFunctionMode):
    """Counts what is read from the device; what has no data reads as ones."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if tensor is None or tensor.device.type == "cpu" or name not in READS:
            return func(*args, **(kwargs or {}))
        self.seen.append(name)
        if tensor.device.type == "meta":
            return getattr(torch.ones(tensor.shape, dtype=tensor.dtype), name)()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch.cuda.set_sync_debug_mode("error")


@contextmanager
def reads() -> Iterator[list[str]]:
    """What is read from the device inside; anything else that waits for it fails."""
    mode = Reads()
    if DEVICE == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        with mode:
            yield mode.seen
    finally:
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def slow_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused step refuses a device without data; the one in its place looks at nothing either."""
    if DEVICE == "meta":
        plain = partial(torch.optim.AdamW, foreach=True)
        monkeypatch.setattr(torch.optim, "AdamW", lambda groups, fused, **knobs: plain(groups, **knobs))


def objective_of(name: str) -> Any:
    if name == "sft":
        return LikelihoodObjective(LikelihoodConfig())
    if name in PREFERENCE_ROWS:
        return PreferenceObjective(PREFERENCE_ROWS[name].settings())
    return settings_of(name).objective()


def models_of(folder: Path, needs: frozenset[str], micro_tokens: int) -> ModelSet:
    """Models on the device, as the needs call for."""
    device = Runtime(DeviceParams(device="cpu"))
    device.device = torch.device(DEVICE)
    return ModelSet(
        load_model(folder).to(DEVICE),
        device,
        load_model(folder).to(DEVICE),
        load_scorer(folder).to(DEVICE) if "value" in needs else None,
        micro_tokens=micro_tokens,
    )


def problem(folder: Path, name: str, rows: int, micro_tokens: int) -> StepClosure:
    """One prepared step of so many rows, all columns at hand."""
    objective = objective_of(name)
    prompts, completions = random_rows(rows)
    prompts = [prompts[i - i % 2] for i in range(rows)]  # a pair answers one prompt
    columns: dict[str, torch.Tensor] = {
        "reward": torch.arange(rows) % 3 / 2,
        "truncated": torch.zeros(rows, dtype=torch.bool),
        "group": torch.arange(rows) // 4,
        "side": 1.0 - 2.0 * (torch.arange(rows) % 2),
        "label": 1.0 - 2.0 * (torch.arange(rows) % 2),
        "margin": torch.zeros(rows),
    }
    tokens = sum(len(ids) for ids in completions)
    fixed = {kind: torch.full((tokens,), -1.0) for kind in ("old_logp", "ref_logp", "step_start_logp", "old_value")}
    pairs = torch.arange(rows) // 2 if "side" in objective.needs else None
    batch = make_batch(token_rows(prompts, completions), columns, fixed, pairs)
    prepared = objective.prepare(batch.columns, objective.initial_state())
    models = models_of(folder, objective.needs, micro_tokens)
    return StepClosure(objective, models, batch.with_prepared(prepared.step), state=prepared.state)


@pytest.mark.slow
@pytest.mark.usefixtures("slow_adam")
@pytest.mark.parametrize("name", ["sft", "dpo", "orpo", "grpo", "gspo", "ppo"])
def test_an_update_waits_once_whatever_its_size(name: str, folder: Path) -> None:
    seen, micros = {}, []
    for rows, micro_tokens in ((8, 10**6), (8, 64), (32, 64)):
        step = problem(folder, name, rows, micro_tokens)
        trained = {name: (module, 1e-3) for name, module in step.models.trained.items()}
        update = AdamW(trained, OptimizerParams(lr=1e-3), 10)
        with reads() as found:
            update.step(step, 0.0)
        micros.append(sum(1 for _ in step.micro_batches()))
        seen[rows, micro_tokens] = found
    assert micros[0] == 1 and micros[1] > 1 and micros[2] > 2 * micros[1], "the sizes do not differ"
    assert seen == dict.fromkeys(seen, PER_UPDATE)


@pytest.mark.slow
def test_scoring_a_batch_waits_once_for_each_column(folder: Path) -> None:
    for micro_tokens in (10**6, 64):
        models = models_of(folder, frozenset({"value"}), micro_tokens)
        batch = make_batch(token_rows(*random_rows(16)))
        with reads() as found:
            filled = models.add_scored_columns(batch, frozenset({"ref_logp", "step_start_logp", "value"}))
        assert found == ["cpu"] * 3
        assert {part.device.type for part in filled.columns.tokens.values()} == {"cpu"}


@pytest.mark.slow
def test_a_needless_look_is_seen(folder: Path) -> None:
    """The counter itself: what a metric that asks for its value costs, and a choice by a mask."""
    step = problem(folder, "sft", 8, 64)
    with reads() as found:
        values = torch.ones(3, device=DEVICE)
        float(values.sum())
        bool(values.any())
    assert found == ["__float__", "__bool__"]
    with pytest.raises((NotImplementedError, RuntimeError)), reads():
        values[values > 0]
    looking = replace(step, objective=Looking(step.objective))
    with reads() as found:
        looking()
    assert len(found) > len(PER_UPDATE)


class Looking:
    """An objective that asks for the value of its loss in every micro-batch."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def loss(self, micro: Any, state: Any) -> Any:
        loss = self._inner.loss(micro, state)
        loss.total.detach().item()
        return loss
