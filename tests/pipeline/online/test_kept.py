"""Policies sampled with top_p or top_k: log-probs are over the tokens that were left to sample from, everywhere."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import posttrain
from posttrain.api.own_model import our_attention
from posttrain.errors import DataError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy
from posttrain.models.forward.forward import score_tokens
from posttrain.models.forward.logp import loss_tiles, plain_token_logp, token_logp
from posttrain.online.stored import LoggedSource, logged_rollouts
from posttrain.pipeline.runs.stored_rollouts import StoredRollouts
from posttrain.pipeline.tables.store import read_table
from posttrain.rollout import Kept, Prompt, Rollout, TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Completion, KeptSampling, Request, SamplingParams, generate_rollouts
from posttrain.text.chat import ChatText
from posttrain.text.packing import pack
from posttrain.text.stops import Stops
from posttrain.train.step import Batch, make_batch
from tests.library.models.tiny import HEADS, random_head, random_rows, tiny_folder, tiny_model
from tests.workspace import ROOT

RUNTIME = Runtime(DeviceParams(device="cpu", precision="fp32", threads=1))
STOPS = Stops((5, 9), lambda ids: " ".join(map(str, ids)))
TRUNCATED: list[dict[str, Any]] = [{"top_k": 5}, {"top_p": 0.7}, {"top_p": 0.8, "top_k": 9, "temperature": 0.6}]
REQUESTS = [Request(prompt, str(nth)) for nth, prompt in enumerate(random_rows(12)[0])]


def sampled(params: SamplingParams, model: Any) -> list[Completion]:
    return LocalSampler(model, STOPS, RUNTIME).generate(REQUESTS, params, 7)


def split(kept: Kept) -> list[list[int]]:
    return [part.tolist() for part in torch.split(kept.ids, kept.counts.tolist())]


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("settings", TRUNCATED)
def test_the_trainer_computes_the_samplers_log_probs(settings: dict[str, Any], rows: int) -> None:
    model = tiny_model()
    params = KeptSampling(max_tokens=12, rows=rows, **settings)
    done = sampled(params, model)
    plain = sampled(SamplingParams(**params.model_dump()), model)
    assert [one.ids for one in done] == [one.ids for one in plain], "what is kept changes no sample"
    assert all(one.kept is None for one in plain)
    for one in done:
        assert one.kept is not None and len(one.ids) == len(one.logps) == one.kept.counts.numel()
        assert all(token in ids for token, ids in zip(one.ids, split(one.kept), strict=True))
        assert int(one.kept.counts.max()) <= settings.get("top_k", 97)
    packed = pack([TokenRow(asked.ids, one.ids, kept=one.kept) for asked, one in zip(REQUESTS, done, strict=True)])
    with torch.no_grad():
        logp, _ = score_tokens(model, packed, params.temperature)
        full, _ = score_tokens(model, replace(packed, kept=None), params.temperature)
    expected = torch.tensor([value for one in done for value in one.logps])
    torch.testing.assert_close(logp, expected, rtol=0, atol=2e-5)
    assert (logp - full).max() > 0.01, "they are not those of all tokens"


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_is_that_of_a_dense_masked_softmax(
    temperature: float, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_BYTES", 4 * 53 * 5)
    monkeypatch.setattr("posttrain.models.forward.logp.TILE_TOKENS", 1)
    torch.manual_seed(0)
    hidden = torch.randn(17, 8, dtype=torch.float64, requires_grad=True)
    head, parts = random_head(kind)
    target, slope = torch.randint(0, 53, (17,)), torch.randn(2, 17, dtype=torch.float64)
    mask = (torch.rand(17, 53) < 0.2).scatter(1, target[:, None], value=True)
    whole = [4, 11]  # of these tokens nothing was left out
    counts = mask.sum(1, dtype=torch.int32)
    counts[whole] = 0
    listed = mask.clone()
    listed[whole] = False
    kept = Kept(listed.nonzero()[:, 1].int(), counts)
    mask[whole] = True

    def dense() -> tuple[torch.Tensor, torch.Tensor]:
        weight, bias = head.weight_VD, head.bias_V
        z = head.scale * (hidden @ weight.T + (0 if bias is None else bias))
        z = (z if head.cap is None else head.cap * torch.tanh(z / head.cap)) / temperature
        p = z.exp() * mask / (z.exp() * mask).sum(1, keepdim=True)
        entropy = -torch.where(mask, p * torch.where(mask, p, torch.ones_like(p)).log(), torch.zeros_like(p)).sum(1)
        return p.gather(1, target[:, None]).squeeze(1).log(), entropy

    def gradients(logp: torch.Tensor, entropy: torch.Tensor) -> list[torch.Tensor]:
        loss = (slope[0] * logp).sum() + (slope[1] * entropy).sum()
        return [logp, entropy, *torch.autograd.grad(loss, (hidden, *parts))]

    expected = gradients(*dense())
    for function in (token_logp, plain_token_logp):
        found = gradients(*function(hidden, head, target, temperature, kept))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    grad = torch.empty(17, 8, dtype=torch.float64)
    for tile in loss_tiles(hidden.detach(), head, target, temperature, kept):
        grad[tile.part] = tile.backward(
            (slope[0, tile.part] * tile.logp).sum() + (slope[1, tile.part] * tile.entropy).sum()
        )
    for one, other in zip([grad, *(part.grad for part in parts)], expected[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_a_batch_in_a_checkpoint_keeps_them() -> None:
    prompts, rests = random_rows(4)
    sets = [Kept(torch.tensor(ids, dtype=torch.int32), torch.ones(len(ids), dtype=torch.int32)) for ids in rests]
    rows = [TokenRow(*pair, kept=kept) for *pair, kept in zip(prompts, rests, [*sets[:3], None], strict=True)]
    again = Batch.from_tensors(make_batch(rows).select([3, 1, 0]).tensors())
    found = [split(row.kept) for row in again.rows if row.kept]
    assert found[1:] == [[[token] for token in rests[nth]] for nth in (1, 0)]
    assert found[0] == [[] for _ in rests[3]], "a row of which nothing was left out"
    assert "kept.ids" not in make_batch([replace(row, kept=None) for row in rows]).tensors()


PROMPTS = [{"prompt": f"{a}+1", "answer": str(a + 1)} for a in range(12)]
HELDOUT = [f"{a}+2" for a in range(20)]


def settings_of(settings: dict[str, Any], **rollout: Any) -> dict[str, Any]:
    sizes = {"rounds": 3, "prompts": 4, "group_size": 4, "minibatches": 2, **rollout}
    sampling = {"max_tokens": 6, **settings}
    return {
        "rollout": {**sizes, "sampling": sampling},
        "optimizer": {"lr": 5e-3},
        "checkpoint_every": 1,
        "patience": None,
    }


def even_tokens(rollouts: Sequence[Rollout]) -> list[float]:
    return [sum(token % 2 == 0 for token in rollout.row.rest) / len(rollout.row.rest) for rollout in rollouts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_folder(tmp_path_factory.mktemp("kept"))


def trained(
    folder: Path, settings: dict[str, Any], algorithm: str = "grpo", **options: Any
) -> tuple[Any, list[dict[str, float]]]:
    model, tokenizer = posttrain.load_model(folder)
    history = posttrain.train_online(model, tokenizer, PROMPTS, even_tokens, algorithm, settings=settings, **options)
    return model, history


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"top_k": 5}, {"top_p": 0.7}])
@pytest.mark.parametrize("algorithm", ["grpo", "dapo"])
def test_a_policy_sampled_from_some_tokens_learns(folder: Path, settings: dict[str, Any], algorithm: str) -> None:
    def score(model: Any) -> float:
        tokenizer = posttrain.load_model(folder)[1]
        text = ChatText(tokenizer, "tokenizer", [])
        asked = [Prompt(one, [{"role": "user", "content": one}], ()) for one in HELDOUT]
        asked = [replace(prompt, ids=text.prompt(prompt.messages)) for prompt in asked]
        sampler, params = LocalSampler(model, text.stops, RUNTIME), SamplingParams(max_tokens=6, **settings)
        with our_attention(model):
            rewards = even_tokens(generate_rollouts(sampler, text, asked, params, 3, samples=4))
        return sum(rewards) / len(rewards)

    before = score(posttrain.load_model(folder)[0])
    model, history = trained(folder, settings_of(settings, rounds=20), algorithm)
    assert score(model) > before + 0.1
    assert max(row["sampler_gap_max"] for row in history if "sampler_gap_max" in row) < 1e-3


def test_the_reference_and_the_penalty_are_over_the_same_tokens(folder: Path) -> None:
    """At the first step the policy is its reference, and the ratio and the KL say so."""
    settings = settings_of({"top_k": 3}) | {"kl": {"type": "loss", "beta": 0.1}, "correction": {"type": "truncate"}}
    _, history = trained(folder, settings)
    first = history[0]
    assert abs(first["kl_k1"]) < 1e-5 and first["ratio"] == pytest.approx(1, abs=1e-4)
    assert first["correction"] == pytest.approx(1, abs=1e-3)
    assert history[-1]["kl_k3"] > 1e-4


def test_stored_rollouts_have_them_and_others_have_no_such_columns(folder: Path, tmp_path: Path) -> None:
    trained(folder, settings_of({"top_k": 3}), output=tmp_path / "kept")
    trained(folder, settings_of({}), output=tmp_path / "all")
    trained(folder, settings_of({"top_k": 3}), "raft", output=tmp_path / "raft")
    trained(folder, settings_of({"top_k": 3}) | {"rollouts": "none"}, output=tmp_path / "none")
    tables = {
        name: read_table(tmp_path / name / "rollouts/part-00000.parquet", "training_rollouts")
        for name in ("kept", "all", "raft", "none")
    }
    assert not {"kept_ids", "kept_counts"} & {*tables["all"].columns, *tables["raft"].columns}
    assert tables["none"]["kept_ids"].null_count() == tables["none"].height
    table = tables["kept"]
    assert (table["kept_counts"].list.len() == table["logps"].list.len()).all()
    stored = StoredRollouts(tmp_path / "kept/rollouts", "offline")
    logged = logged_rollouts(stored.table(), stored.summary, stored.summary["vocabulary"], "here", grouped=True)
    batch = LoggedSource(logged, 5, 1.0, seed=0).batch(0)
    assert all(row.kept is not None and int(row.kept.counts.min()) == 3 for row in batch.rows)
    replayed = stored.drawn(2, [Prompt(table.filter(pl.col("draw") == 2)["prompt_id"][0], [], [7])])
    expected = table.filter(pl.col("draw") == 2)["kept_ids"].to_list()
    assert [rollout.row.kept.ids.tolist() for rollout in replayed if rollout.row.kept] == expected
    first = table.filter(pl.col("round") == 0)
    rows = [
        TokenRow(
            row["prompt_ids"],
            row["completion_ids"],
            kept=Kept(*(torch.tensor(row[name], dtype=torch.int32) for name in ("kept_ids", "kept_counts"))),
        )
        for row in first.to_dicts()
    ]
    with torch.no_grad():
        logp, _ = score_tokens(load_policy(folder), pack(rows))
    torch.testing.assert_close(logp, torch.tensor(first["logps"].explode().to_list()), rtol=0, atol=1e-4)
    other = StoredRollouts(tmp_path / "raft/rollouts", "offline")
    with pytest.raises(DataError, match="do not record the tokens that top_p and top_k allowed"):
        logged_rollouts(other.table(), other.summary, other.summary["vocabulary"], "here", grouped=True)


def test_a_sampler_that_does_not_say_them_is_refused(folder: Path) -> None:
    class Plain(LocalSampler):
        def generate(self, *arguments: Any, **options: Any) -> Any:
            return [replace(one, kept=None) for one in super().generate(*arguments, **options)]

    model, tokenizer = posttrain.load_model(folder)
    sampler = Plain(model, ChatText(tokenizer, "tokenizer", []).stops, RUNTIME)
    with pytest.raises(DataError, match="do not record which tokens top_p and top_k allowed"):
        posttrain.train_online(
            model, tokenizer, PROMPTS, even_tokens, sampler=sampler, settings=settings_of({"top_k": 3})
        )


PROGRAM = """
import sys, torch, posttrain
sys.path.insert(0, {root!r})
from tests.pipeline.online.test_kept import PROMPTS, even_tokens, settings_of
torch.set_num_threads(1)
model, tokenizer = posttrain.load_model({folder!r})
settings = settings_of({{"top_p": 0.8}}, rounds=15, epochs=2, replay={{"groups": 1}}, ahead={ahead})
settings["correction"] = {{"type": "truncate"}}
posttrain.train_online(model, tokenizer, PROMPTS, even_tokens, settings=settings, output={output!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_killed_run_goes_on_to_the_same_bytes(folder: Path, tmp_path: Path, ahead: int) -> None:
    def started(output: Path) -> subprocess.Popen[bytes]:
        code = PROGRAM.format(root=str(ROOT), folder=str(folder), output=str(output), ahead=ahead)
        return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first = started(whole)
    _, error = first.communicate()
    assert first.returncode == 0, error
    process = started(killed)
    while not any(file.name >= "step-00000006" for file in killed.glob("checkpoints/*/step-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "model").exists()
    again = started(killed)
    printed, error = again.communicate()
    assert again.returncode == 0, error
    assert b"resumes from the checkpoint at step" in printed
    for name in ("model/model.safetensors", "metrics.csv", "rollouts/part-00000.parquet"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
