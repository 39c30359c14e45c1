"""Steps that the processes of a run take together. Several processes: tests/pipeline/processes/test_sampling.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.distributed import world
from posttrain.models.forward.forward import score_tokens
from posttrain.rollout import TokenRow
from posttrain.sampling.vllm.together import announce, follow, probe_logps
from posttrain.text.packing import pack
from tests.library.models.tiny import tiny_model


def test_the_others_do_what_is_announced_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    def gathered(value: Any) -> list[Any]:
        if value is not None:
            said.append(value)
            return [value]
        return [said.pop(0)]

    monkeypatch.setattr(world, "gathered", gathered)
    announce("whole", dtype=torch.bfloat16)
    announce("frozen", dtype=torch.float32)
    announce("lora")
    announce("probe", prompt=[1, 2], ids=[3])
    announce("done")
    announce("probe", prompt=[1], ids=[2])
    assert said[0] == ["whole", "bfloat16", [], []]
    follow(tiny_model())
    assert [step for step, *_ in said] == ["probe"], "what comes after the end is left"


@torch.no_grad()
def test_a_sample_is_scored_without_dropout_and_the_model_stays_in_training() -> None:
    model = tiny_model().train()
    found = probe_logps(model, [1, 2], [3, 4])
    assert model.training
    assert torch.equal(found, score_tokens(model.eval(), pack([TokenRow([1, 2], [3, 4])]))[0])
