"""How another policy ranks the tokens of greedy answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posttrain.errors import DataError, PipelineError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.compare.token_shift import TILE, _answers, _settings, _summary, token_ranks
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.runs.evaluation import EvaluateParams, EvaluateRun
from posttrain.rollout import TokenRow
from tests.library.models.tiny import tiny_model
from tests.pipeline.report import workspace


def test_ranks_are_those_of_the_sorted_logits() -> None:
    """Of rows of several lengths, in more than one tile of positions, without the tokens that were not written."""
    model, draw = tiny_model(), torch.Generator().manual_seed(0)
    rows = []
    for length in (1, TILE + 9, 5):
        ids = torch.randint(97, (length + 3,), generator=draw).tolist()
        rows.append(TokenRow(ids[:3], ids[3:], [place % 3 != 1 for place in range(length)]))
    found, expected = token_ranks(model, rows, Runtime(DeviceParams())), []
    own = tiny_model()
    own.set_attn_implementation("eager")
    for row in rows:
        ids = [*row.prompt, *row.rest]
        with torch.no_grad():
            order = own(torch.tensor([ids])).logits[0].argsort(-1, descending=True)
        expected += [order[2 + place].tolist().index(row.rest[place]) for place in row.trained]
    assert found == expected and max(found) > 3


def test_shares_and_the_tokens_that_shifted_most() -> None:
    found = _summary("a", "b", 2, [0, 2, 3, 1, 0, 9, 50, 0], ["x", "y", "so", "y", "so", "so", "z", "y"])
    assert (found.unshifted, found.marginal, found.shifted) == (3 / 8, 2 / 8, 3 / 8)
    assert [tuple(token.values()) for token in found.tokens] == [("so", 2, 3), ("z", 1, 1)]
    assert "8 tokens of 2 greedy answers of a, as b ranks them" in str(found)
    assert "shifted most: 'so' 2 of 3; 'z' 1 of 1" in str(found)


def test_the_answers_and_the_settings_of_a_policy(finished: Path) -> None:
    file = finished / "params.yaml"
    own = "{policy: sft/main, data: a/prompts, reference: none, reward_model: none}"
    file.write_text(f"{file.read_text()}  runs: {{own: {own}}}\n")
    model, shared = _settings("grpo")
    assert model == "online/grpo" and shared == load(EvaluateParams, "evaluate.settings")
    assert _settings("own") == ("sft/main", load(EvaluateRun, "evaluate.runs.own"))
    with pytest.raises(PipelineError, match="evaluate has no policy 'gpro'"):
        _settings("gpro")
    rows = _answers("grpo")
    assert rows.height == 30 and rows["greedy"].all()
    workspace.rewritten(finished, "none")
    with pytest.raises(DataError, match="no greedy answers with tokens are stored"):
        _answers("grpo")
