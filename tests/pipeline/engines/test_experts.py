"""Rollout routing replay: the policy is trained with the experts that an engine chose while it sampled."""

from __future__ import annotations

import base64
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

from posttrain.errors import DataError, EngineError, ModelError, ParamsError
from posttrain.models.files.store import load_tokenizer, new_model, save_model
from posttrain.online.collect import PolicyGroups
from posttrain.online.reward_monitor import RewardMonitor
from posttrain.online.run import OnlineRun
from posttrain.pipeline.params.named_runs import typed_run
from posttrain.pipeline.runs.online import ONLINE
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.rollout import Prompt, TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.engines import ENGINES, SampledModel
from posttrain.sampling.sampler import RoutedSampling, Sampler, SamplingParams, generate_rollouts
from posttrain.sampling.vllm.answers import read_experts, router_layers
from posttrain.settings.plain import merge
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.loop import TrainingRun, training_loop
from posttrain.train.metrics import CsvRecorder
from posttrain.train.model_set import ModelSet
from posttrain.train.routing import with_experts
from posttrain.train.step import make_batch
from tests.library.models.tiny import TEXTS, function_reward
from tests.library.sampling.test_episodes import TASKS
from tests.pipeline.engines.support import low_tokens, models_of, use_server
from tests.pipeline.engines.test_engine import flat
from tests.pipeline.train.test_training import CutError, CutSource, digest

GSPO: dict[str, Any] = {
    "algorithm": "gspo", "start": "base/tiny", "data": "mine/prompts", "corpus": "none", "reward_model": "none",
    "correction": "truncate", "kl": "none", "optimizer": {"lr": 5e-3}, "checkpoint_every": 1, "patience": None,
    "router": {"replay": "sampler", "balance": 0.0},
    "rollout": {
        "engine": "vllm", "rounds": 2, "prompts": 3, "group_size": 4, "minibatches": 2, "epochs": 2, "gap_rows": 100,
        "sampling": {"max_tokens": 16, "rows": 32},
    },
}  # fmt: skip


def mixture_folder(path: Path) -> Path:
    """A small mixture whose second layer is dense, of a shape that vLLM can run on a CPU."""
    tokens = path / "tokenizer"
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), tokens)
    config = Qwen3MoeConfig(
        vocab_size=len(ChatText(load_tokenizer(tokens)).tokenizer), hidden_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, intermediate_size=96, max_position_embeddings=256,
        tie_word_embeddings=True, initializer_range=0.2, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
        moe_intermediate_size=32, decoder_sparse_step=1, mlp_only_layers=[1],
    )  # fmt: skip
    save_model(new_model(config, 0), path / "model", tokens)
    return path / "model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixture_folder(tmp_path_factory.mktemp("mixture"))


def opened(folder: Path, models: ModelSet, params: SamplingParams | None = None, **args: Any) -> Any:
    """The context of a sampler with vLLM's server, or the one that takes its place."""
    model = SampledModel(models.policy, folder, ChatText(load_tokenizer(folder)), models.runtime)
    given = params or RoutedSampling(max_tokens=16, rows=32)
    return ENGINES["vllm"].open(model, given, 200, "rollout", args)


def gspo(folder: Path, models: ModelSet, sampler: Sampler, **rollout: Any) -> TrainingRun:
    """A run of two rounds, as the stage makes it."""
    params: Any = typed_run(merge(GSPO, {"rollout": rollout}), "online.runs.gspo", ONLINE)
    text = ChatText(load_tokenizer(folder))
    asked = [[{"role": "user", "content": f"{i}+1"}] for i in range(5)]
    prompts = [Prompt(f"p{i}", one, text.prompt(one), "1") for i, one in enumerate(asked)]
    groups = PolicyGroups(
        sampler, text, models, params.rollout, seed=0, name="online@gspo", sampling=params.sampling
    )  # fmt: skip
    monitor, run = RewardMonitor("test", {}, compares=False), OnlineRun("online@gspo", params, text, prompts, models)
    return run.training(groups, function_reward(low_tokens), monitor)


def trained(run: TrainingRun, place: Path) -> list[dict[str, float]]:
    return training_loop(run, Checkpoints(run.name, {}, []), CsvRecorder(place / "log.csv")).rows


def encoded(experts: Any) -> str:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(experts))
    return base64.b64encode(buffer.getvalue()).decode()


def test_the_routers_layers_are_read_and_the_last_token_is_left_to_them(folder: Path) -> None:
    layers = router_layers(models_of(folder).policy)
    assert layers == [0, 2]
    given = torch.randint(0, 256, (5, 3, 2), generator=torch.Generator().manual_seed(0))
    found = read_experts(encoded(given.numpy().astype(np.uint8)), 6, layers)
    assert found.dtype == torch.int16 and torch.equal(found[:5].long(), given[:, [0, 2]])
    assert (found[5] == -1).all() and found[5].shape == (2, 2)


@pytest.mark.parametrize("shape", [(6, 3, 2), (4, 3, 2), (5, 2, 2), (5, 3)])
def test_experts_of_other_tokens_or_layers_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not fit 6 tokens and the layers"):
        read_experts(encoded(np.zeros(shape, np.uint8)), 6, [0, 2])


def test_experts_of_another_number_are_not_given_to_a_router(folder: Path) -> None:
    models = models_of(folder)
    batch = with_experts(models, make_batch([TokenRow([5, 6], [7, 8, 9])]))
    [experts] = [row.experts for row in batch.rows if row.experts is not None]
    narrow = make_batch([replace(batch.rows[0], experts=experts[..., :1])])
    with pytest.raises(ModelError, match=r"experts \[5, 1\] cannot be given to a router that chooses \[5, 2\]"):
        models.add_scored_columns(narrow, frozenset({"recomputed_logp"}))


@pytest.mark.slow
def test_a_run_trains_with_the_engines_experts_and_a_cut_one_resumes_to_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path, ENGINE_ALONE="1")
    models = models_of(folder)
    with opened(folder, models) as sampler:
        whole, start = gspo(folder, models, sampler), flat(models)
        first = whole.source.batch(0)
        assert all(row.experts is not None and len(row.experts) == len(row) for row in first.rows)
        own = with_experts(models, make_batch([replace(row, experts=None) for row in first.rows]))
        for row, other in zip(first.rows, own.rows, strict=True):
            assert row.experts is not None and other.experts is not None
            assert torch.equal(row.experts[:-1], other.experts[:-1]) and (row.experts[-1] == -1).all()
    rows = []
    for name, cuts in (("whole", []), ("cut", [2, 3, 5])):
        monkeypatch.setenv("DVC_ROOT", str(tmp_path / name))
        (tmp_path / name).mkdir()
        for last in [*cuts, None]:
            models = models_of(folder)
            with opened(folder, models) as sampler:
                run = gspo(folder, models, sampler)
                if last is None:
                    rows.append((trained(run, tmp_path / name), digest(run)))
                    continue
                object.__setattr__(run, "source", CutSource(run.source, last))
                with pytest.raises(CutError):
                    trained(run, tmp_path / name)
    assert rows[0] == rows[1] and not torch.equal(flat(models), start)
    moved = [row["router_moved"] for row in rows[0][0]]
    assert moved[0] == moved[4] == 0 < max(moved), "the weights of a round's first step are those that sampled it"
    assert all(row["sampler_gap_max"] < 1e-4 for row in rows[0][0][::4])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "said"),
    [("0", "it has no experts, and router.replay = sampler needs"), ("0.5", "experts .* do not fit .* tokens")],
)
def test_a_server_without_the_experts_ends_the_run(
    share: str, said: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path, ENGINE_EXPERTS=share)
    models = models_of(folder)
    with opened(folder, models) as sampler, pytest.raises(EngineError, match=said):
        gspo(folder, models, sampler).source.batch(0)


@pytest.mark.slow
def test_each_turn_of_an_episode_keeps_the_experts_that_it_was_sampled_with(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/routed_talk.py").write_text(TASKS)
    models, text = models_of(folder), ChatText(load_tokenizer(folder), str(folder))
    asked = [[{"role": "user", "content": f"{n}+{n}"}] for n in range(6)]
    prompts = [Prompt(f"p{n}", turns, text.prompt(turns), task="routed_talk:twice") for n, turns in enumerate(asked)]
    params = RoutedSampling(max_tokens=16, stop=["1", "2", "a", "e", " "])
    with opened(folder, models, params) as sampler:
        sampler.sync(models.policy, "a")
        drawn = generate_rollouts(sampler, text, prompts, params, 0)
        [plain] = generate_rollouts(sampler, text, prompts[:1], SamplingParams(max_tokens=4), 0)
    assert plain.row.experts is None, "only where they are asked for"
    assert max(len(one.turns) for one in drawn) == 3, "the policy, the task, the policy"
    own = with_experts(models, make_batch([replace(one.row, experts=None) for one in drawn]))
    for row, other in zip([one.row for one in drawn], own.rows, strict=True):
        assert row.experts is not None and other.experts is not None and len(row.experts) == len(row)
        assert torch.equal(row.experts[:-1], other.experts[:-1]) and (row.experts[-1] == -1).all()


def test_samples_without_them_are_not_trained_on(folder: Path) -> None:
    """As those of a finished run that `posttrain replay` reads."""
    models = models_of(folder)
    local = LocalSampler(models.policy, ChatText(load_tokenizer(folder)).stops, models.runtime)
    with pytest.raises(DataError, match=r"router\.replay = sampler: the samples do not record which experts"):
        gspo(folder, models, local).source.batch(0)


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"rollout": {"engine": "builtin"}}, r"engine builtin cannot have router\.replay = sampler"),
        ({"activations": "recompute"}, r"router\.replay = sampler: activations = recompute"),
        ({"router": {"replay": "policy"}}, r"router\.replay"),
        ({"rollout": {"engine_args": {"enable-return-routed-experts": True}}}, r"router\.replay decides it"),
    ],
)
def test_what_cannot_have_them_is_refused(over: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError, match=said):
        typed_run(merge(GSPO, over), "online.runs.gspo", ONLINE)
