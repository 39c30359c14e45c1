"""The log-probs of texts by a model that is served on the device."""

from __future__ import annotations

from pathlib import Path

import torch

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy
from posttrain.models.forward.forward import score_tokens
from posttrain.pipeline.serve.policy import Policy
from posttrain.rollout import TokenRow
from posttrain.text.packing import pack
from tests.library.models.tiny import tiny_folder


def test_a_text_is_scored_on_the_device(tmp_path: Path) -> None:
    folder, ids = tiny_folder(tmp_path), [3, 4, 5, 6, 7]
    policy, host = Policy(str(folder), threads=1), Runtime(DeviceParams(device="cpu"))
    found = policy.score(ids, 2)
    with torch.no_grad():
        model = load_policy(folder).to(host.device).eval()
        expected = score_tokens(model, pack([TokenRow(ids[:1], ids[1:])]))[0].tolist()
    assert [*found.text_logps[0]] == [4] and policy._device.type == "cuda"
    assert (
        max(abs(own[token] - logp) for own, token, logp in zip(found.text_logps, ids[1:], expected, strict=True)) < 0.05
    )
