"""`train_online`: the round and the loop of the pipeline, on a model, prompts and rewards in memory."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import posttrain
from posttrain.data.parquet import decode
from posttrain.errors import ParamsError, PosttrainError, RewardError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.online.rollout_log import NoRollouts
from posttrain.rewards import Params, Rollout, Score, rule
from posttrain.sampling.builtin import LocalSampler
from posttrain.text.chat import ChatText
from tests.library.models.tiny import tiny_folder
from tests.workspace import ROOT

PROMPTS = [{"prompt": f"{a}+1", "answer": str(a + 1)} for a in range(6)]
ROLLOUT = {"rounds": 3, "prompts": 4, "group_size": 4, "minibatches": 2, "sampling": {"max_tokens": 6}}
SETTINGS: dict[str, Any] = {"rollout": ROLLOUT, "optimizer": {"lr": 5e-3}}


def low_tokens(rollouts: Sequence[Rollout]) -> list[float]:
    return [sum(rollout.row.rest) % 7 / 6 for rollout in rollouts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_folder(tmp_path_factory.mktemp("online"))


def trained(folder: Path, algorithm: str = "grpo", reward: Any = low_tokens, **options: Any) -> tuple[Any, list[Any]]:
    model, tokenizer = posttrain.load_model(folder)
    history = posttrain.train_online(model, tokenizer, PROMPTS, reward, algorithm, **{"settings": SETTINGS, **options})
    return model, history


def weights(model: Any) -> list[torch.Tensor]:
    return [part.detach().clone() for part in model.parameters()]


def same(one: Any, two: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))


def test_a_step_whose_rows_are_all_masked_has_no_means(folder: Path) -> None:
    """So no entropy of 0, by which the run would end for the wrong reason."""
    sizes = {"rounds": 6, "prompts": 2, "group_size": 2, "minibatches": 2, "sampling": {"max_tokens": 1}}
    _, history = trained(folder, settings={"rollout": sizes, "truncated": "mask"})
    masked = [row for row in history if row["truncated"] == 1]
    assert len(history) == 12 and len(masked) > 5
    assert all("entropy" not in row and "ratio" not in row and row["loss"] == 0 for row in masked)


def test_opponents_are_not_in_the_mean_reward(folder: Path) -> None:
    def by_place(rollouts: Sequence[Rollout]) -> list[float]:
        return [float(rollout.sample >= 2) for rollout in rollouts]

    _, history = trained(folder, "nash_md", by_place)
    assert all(row["reward"] == 0 for row in history)


def test_a_given_reference_stays_what_it_is(folder: Path) -> None:
    reference, _ = posttrain.load_model(folder)
    before = weights(reference)
    settings = {**SETTINGS, "renew_reference": {"every": 1}, "kl": {"type": "loss", "beta": 0.1}}
    trained(folder, settings=settings, reference=reference)
    assert all(torch.equal(one, two) for one, two in zip(before, weights(reference), strict=True))


class Texts(NoRollouts):
    """Keeps the texts of the samples in memory."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def add(
        self, number: int, attempt: int, first: int, rollouts: Sequence[Rollout], reward: Any, totals: dict[int, float]
    ) -> None:
        self.kept += [rollout.text for rollout in rollouts]


def test_samples_are_stored_where_the_caller_wants_them(folder: Path, tmp_path: Path) -> None:
    texts = Texts()
    _, history = trained(folder, rollouts=texts)
    assert len(texts.kept) == 3 * 4 * 4 and any(texts.kept)
    _, plain = trained(folder)
    assert list(history) == list(plain)
    trained(folder, rollouts=NoRollouts(), output=tmp_path)
    assert (tmp_path / "model").is_dir() and not (tmp_path / "rollouts").exists()


def test_ptx_learns_text_next_to_the_samples(folder: Path) -> None:
    """On text that it was not shown, too: held-out bits per byte fall further than without it."""
    shown, unseen = ["abba " * 20] * 6, [{"text": "abba " * 9}]
    bits = {}
    for ptx in (0.0, 4.0):
        settings = {**SETTINGS, **({"ptx": ptx, "text": {"rows": 4, "window": 16}} if ptx else {})}
        model, tokenizer = posttrain.load_model(folder)
        corpus = {"corpus": shown} if ptx else {}
        posttrain.train_online(model, tokenizer, PROMPTS, low_tokens, "grpo", settings=settings, **corpus)
        bits[ptx] = posttrain.evaluate_likelihood(model, tokenizer, unseen, "corpus").metrics["bits_per_byte"]
    assert bits[4.0] < bits[0.0] - 0.5
    with pytest.raises(ParamsError, match="ptx trains on pretraining text, but none is given"):
        trained(folder, settings={**SETTINGS, "ptx": 1.0})
    with pytest.raises(ParamsError, match="only ptx trains on pretraining text"):
        trained(folder, corpus=shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["grpo", "ppo", "ppo_penalty", "rloo", "dapo", "gdpo", "nash_md", "trpo", "online_dpo", "raft"]
)
def test_it_trains_each_kind_of_algorithm(folder: Path, algorithm: str) -> None:
    start, _ = posttrain.load_model(folder)
    seen: list[int] = []
    model, history = trained(folder, algorithm, on_step=lambda step, metrics: seen.append(step))
    assert len(history) == 6 and seen == [0, 1, 2, 3, 4, 5] and all("loss" in row for row in history)
    assert not same(model, start) and not model.training
    assert model.config._attn_implementation == start.config._attn_implementation


@pytest.mark.slow
def test_the_seed_decides_everything(folder: Path) -> None:
    one, first = trained(folder)
    two, second = trained(folder)
    other, _ = trained(folder, seed=1)
    assert first == second and same(one, two) and not same(one, other)


@pytest.mark.slow
def test_several_rewards_have_weights_and_names(folder: Path) -> None:
    class Most(Params):
        most: int = 4

    @rule(Most, shaping=True)
    def short(rollout: Rollout, options: Most) -> float:
        return float(len(rollout.row.rest) <= options.most)

    reward = {
        "low": (low_tokens, 0.5),
        "short": short,
        "correct": {"weight": 0.0},
        "length": {"weight": 0.1, "limit": 6},
    }
    _, history = trained(folder, reward=reward)
    assert {"reward_low", "reward_short", "reward_correct", "reward_length"} <= history[0].keys()
    parts = 0.5 * history[0]["reward_low"] + history[0]["reward_short"] + 0.1 * history[0]["reward_length"]
    minibatches = (history[0]["reward"] + history[1]["reward"]) / 2
    assert minibatches == pytest.approx(parts, abs=1e-5)


@pytest.mark.slow
def test_the_answer_of_a_row_reaches_the_reward(folder: Path) -> None:
    answers: set[str] = set()

    def seen(rollouts: Sequence[Rollout]) -> list[float]:
        answers.update(rollout.prompt.answer for rollout in rollouts)
        return low_tokens(rollouts)

    trained(folder, reward=seen)
    assert answers == {str(a + 1) for a in range(6)}


@pytest.mark.slow
def test_a_sampler_of_ones_own_samples(folder: Path) -> None:
    class Counting(LocalSampler):
        calls = 0

        def generate(self, *arguments: Any, **options: Any) -> Any:
            Counting.calls += 1
            return super().generate(*arguments, **options)

    model, tokenizer = posttrain.load_model(folder)
    runtime = Runtime(DeviceParams(deterministic=False, threads=1))
    sampler = Counting(model, ChatText(tokenizer, "tokenizer", []).stops, runtime)
    history = posttrain.train_online(model, tokenizer, PROMPTS, low_tokens, sampler=sampler, settings=SETTINGS)
    assert Counting.calls == 3 and len(history) == 6


@pytest.mark.slow
def test_a_reward_that_fails_ends_the_run_with_its_name(folder: Path) -> None:
    with pytest.raises(RewardError, match=r"'broken'.*ZeroDivisionError"):
        trained(folder, reward={"broken": lambda rollouts: [1 / 0 for _ in rollouts]})

    def one_fails(rollouts: Sequence[Rollout]) -> list[Any]:
        return [Score(0.0, "error", "no") if nth == 0 else 0.5 for nth, _ in enumerate(rollouts)]

    with pytest.raises(RewardError, match="max_failed"):
        trained(
            folder,
            reward=one_fails,
            settings={**SETTINGS, "max_failed": 0.0, "rollout": {**ROLLOUT, "prompts": 6, "group_size": 8}},
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"algorithm": "gropo"}, "'gropo' is unknown.*Did you mean 'grpo'"),
        ({"settings": {"start": "base/tiny"}}, "settings.start.*Give `model`"),
        ({"settings": {"seed": 1}}, "settings.seed.*Give `seed`"),
        ({"settings": {"save_dtype": "bfloat16"}}, "settings.save_dtype"),
        (
            {"settings": {"rollout": {"engine": "vllm"}, "correction": {"type": "truncate"}}},
            "settings.rollout.engine.*posttrain.load_models",
        ),
        ({"settings": {"adapter": "lora"}}, "settings.adapter.*posttrain.load_models"),
        ({"settings": {"rollout": {"group_sise": 4}}}, "group_sise: unknown key. Did you mean 'group_size'"),
        ({"reward": {"corect": 1.0}}, "unknown reward 'corect'"),
        ({"settings": {"rollout": {"group_size": 1}}}, "group_size = 1"),
    ],
)
def test_wrong_arguments_are_named(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError, match=said):
        trained(folder, **options)


def test_prompts_are_rendered_with_the_template_and_the_date_of_the_settings(folder: Path) -> None:
    model, tokenizer = posttrain.load_model(folder)
    tokenizer.chat_template = (
        "{% for turn in messages %}{{ turn.content }}{% endfor %}{% if add_generation_prompt %}"
        "{{ strftime_now('%Y') }}{% if enable_thinking is defined and not enable_thinking %}quiet{% endif %}"
        "{% else %}{{ eos_token }}{% endif %}"
    )
    seen: list[str] = []

    def reward(rollouts: Sequence[Rollout]) -> list[float]:
        seen.extend(tokenizer.decode(rollout.row.prompt) for rollout in rollouts)
        return low_tokens(rollouts)

    short = {**SETTINGS, "rollout": {**ROLLOUT, "rounds": 1}, "date": "1999-01-02"}
    chosen = {**short, "template": {"enable_thinking": False}}
    posttrain.train_online(model, tokenizer, PROMPTS, reward, settings=chosen)
    assert seen and all(text.endswith("1999quiet") for text in seen)
    with pytest.raises(PosttrainError, match="the chat template does not use thinking"):
        posttrain.train_online(model, tokenizer, PROMPTS, reward, settings={**short, "template": {"thinking": False}})


def test_a_wrong_prompt_is_named_by_its_place(folder: Path) -> None:
    model, tokenizer = posttrain.load_model(folder)
    with pytest.raises(PosttrainError, match=r"prompts\[1\]"):
        posttrain.train_online(model, tokenizer, ["1+1", {"question": "2+2"}], low_tokens)
    with pytest.raises(PosttrainError, match="there are no prompts"):
        posttrain.train_online(model, tokenizer, [], low_tokens)


@pytest.mark.parametrize("kind", ["rule", "function"])
def test_async_rewards_run_in_this_process(folder: Path, kind: str) -> None:
    short: dict[str, Any] = {**SETTINGS, "rollout": {**ROLLOUT, "rounds": 1}}
    _, expected = trained(folder, settings=short)

    async def of_all(rollouts: Sequence[Rollout]) -> list[float]:
        await asyncio.sleep(0)
        return low_tokens(rollouts)

    @rule()
    async def of_one(rollout: Rollout, _: object) -> float:
        await asyncio.sleep(0)
        return low_tokens([rollout])[0]

    async def in_a_notebook() -> list[Any]:
        return trained(folder, reward=of_one if kind == "rule" else of_all, settings=short)[1]

    losses = [row["loss"] for row in expected]
    assert [row["loss"] for row in asyncio.run(in_a_notebook())] == losses
    _, here = trained(folder, reward=of_one if kind == "rule" else of_all, settings=short)
    assert [row["loss"] for row in here] == losses


@pytest.mark.slow
def test_the_output_has_the_model_its_rollouts_and_metrics(folder: Path, tmp_path: Path) -> None:
    plain, history = trained(folder)
    model, again = trained(folder, output=tmp_path / "run")
    assert again == history and same(model, plain)
    saved, _ = posttrain.load_model(tmp_path / "run/model")
    assert same(saved, plain)
    table = decode(tmp_path / "run/rollouts/part-00000.parquet")
    assert table.height == 3 * 4 * 4 and set(table["completion"].is_null()) == {False}
    assert pl.read_csv(tmp_path / "run/metrics.csv").height == 6
    same_again, rows = trained(folder, output=tmp_path / "run")
    assert rows == history and same(same_again, plain), "a finished run is not trained further"


class CutError(Exception):
    """The run is stopped here."""


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_bits(folder: Path, tmp_path: Path) -> None:
    def stop(step: int, metrics: dict[str, float]) -> None:
        if step == 3:
            raise CutError

    settings = {**SETTINGS, "checkpoint_every": 2}
    whole, history = trained(folder, settings=settings)
    with pytest.raises(CutError):
        trained(folder, settings=settings, output=tmp_path, on_step=stop)
    steps: list[int] = []
    model, resumed = trained(folder, settings=settings, output=tmp_path, on_step=lambda step, _: steps.append(step))
    assert steps == [2, 3, 4, 5] and resumed == history and same(model, whole)
    table = decode(tmp_path / "rollouts/part-00000.parquet")
    assert table.height == 3 * 4 * 4 and table["step"].null_count() == 0


PROGRAM = """
import sys, torch, posttrain
sys.path.insert(0, {root!r})
from tests.library.api.test_online import PROMPTS, SETTINGS, low_tokens
torch.set_num_threads(1)
model, tokenizer = posttrain.load_model({folder!r})
settings = {{**SETTINGS, "checkpoint_every": 1, "rollout": {{**SETTINGS["rollout"], "rounds": 20}}}}
posttrain.train_online(model, tokenizer, PROMPTS, low_tokens, settings=settings, output={output!r})
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(folder: Path, tmp_path: Path) -> None:
    def started(output: Path) -> subprocess.Popen[bytes]:
        code = PROGRAM.format(root=str(ROOT), folder=str(folder), output=str(output))
        return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first = started(whole)
    _, error = first.communicate()
    assert first.returncode == 0, error
    process = started(killed)
    while not any(file.name >= "step-00000004" for file in killed.glob("checkpoints/*/step-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "model").exists()
    again = started(killed)
    printed, error = again.communicate()
    assert again.returncode == 0, error
    assert b"resumes from the checkpoint at step" in printed
    one, two = (posttrain.load_model(output / "model")[0] for output in (whole, killed))
    assert same(one, two) and (whole / "metrics.csv").read_bytes() == (killed / "metrics.csv").read_bytes()


@pytest.mark.slow
def test_other_prompts_do_not_resume(folder: Path, tmp_path: Path) -> None:
    _, history = trained(folder, output=tmp_path)
    model, tokenizer = posttrain.load_model(folder)
    other = posttrain.train_online(model, tokenizer, PROMPTS[:5], low_tokens, settings=SETTINGS, output=tmp_path)
    assert other != history and len(other) == 6


def test_reward_is_of_the_step_and_the_reward_by_name_of_the_round(folder: Path) -> None:
    """As the docstring of Trained says."""
    _, history = trained(folder, settings={**SETTINGS, "canaries": 0}, reward={"low": (low_tokens, 2.0)})
    assert len(history) == 6
    differ = 0
    for first, second in zip(history[::2], history[1::2], strict=True):
        assert first["reward_low"] == second["reward_low"]
        assert (first["reward"] + second["reward"]) / 2 == pytest.approx(2 * first["reward_low"])
        differ += first["reward"] != second["reward"]
    assert differ
