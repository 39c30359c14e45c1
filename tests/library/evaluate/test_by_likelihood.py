"""The likelihoods of texts, of options and of pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.evaluate.by_likelihood import measure_likelihood
from posttrain.evaluate.likelihood import Measured
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy
from posttrain.models.files.text import load_text
from posttrain.sampling.engines import SampledModel
from tests.library.models.tiny import plain_logps, tiny_folder

ASKED = [{"role": "user", "content": "1+1"}]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> SampledModel:
    folder: Path = tiny_folder(tmp_path_factory.mktemp("likelihood"))
    return SampledModel(load_policy(folder), folder, load_text(folder), Runtime(DeviceParams(device="cpu")))


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def measured(policy: SampledModel, rows: list[dict[str, Any]], kind: Any, reference: Any = None) -> Measured:
    found = measure_likelihood(policy, pl.DataFrame(rows), kind, reference=reference, seed=0, source="test")
    assert isinstance(found, Measured)
    return found


def likelihood(policy: SampledModel, text: str) -> float:
    (row,) = policy.text.exchanges([(ASKED, said(text))])
    return float(plain_logps(policy.policy, [list(row.prompt)], [list(row.rest)]).sum().detach())


PAIRS = [
    {"id": f"r{nth}", "prompt": ASKED, "chosen": said(good), "rejected": said("no"), "problem": "",
     "tools": None, "fields": None, "chat_template_kwargs": None}
    for nth, good in enumerate(("2", "12"))
]  # fmt: skip


def test_pairs_are_compared_by_their_likelihood(policy: SampledModel) -> None:
    margins = [likelihood(policy, good) - likelihood(policy, "no") for good in ("2", "12")]
    found = measured(policy, PAIRS, "pairs").metrics
    assert found["margin"] == pytest.approx(sum(margins) / 2, abs=1e-4)
    assert found["score"] == sum(margin > 0 for margin in margins) / 2
    for reference in (policy.policy, policy.folder):
        assert measured(policy, PAIRS, "pairs", reference).metrics["margin"] == pytest.approx(0, abs=1e-5)


def test_texts_have_bits_per_byte(policy: SampledModel) -> None:
    rows = [{"id": "r0", "text": "12+3=15"}, {"id": "r1", "text": "7+8=15"}]
    found = measured(policy, rows, "corpus").metrics
    assert found["bits_per_byte"] > 0 and "margin" not in found


def test_options_of_questions(policy: SampledModel) -> None:
    row = {"id": "r", "prompt": ASKED, "answer": "2", "info": json.dumps({"options": ["2", "no"]}), "task": "",
           "problem": "", "chat_template_kwargs": None}  # fmt: skip
    found = measured(policy, [row, {**row, "id": "r1"}], "prompts").metrics
    assert found["score"] == float(likelihood(policy, "2") > likelihood(policy, "no"))
