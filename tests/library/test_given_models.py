"""Reward models, templates, end tokens and contexts of models that were made elsewhere."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from posttrain.errors import DataError, ModelError, PosttrainError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.given import fetch_model
from posttrain.models.forward import score_rows
from posttrain.models.store import load_ends, load_model, load_policy
from posttrain.models.text import load_text
from posttrain.rewards.learned import RewardModel
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.sampling.local import LocalSampler
from posttrain.text.layout import pack
from posttrain.sampling.sampler import SamplingParams, encode_prompts, generate_rollouts
from tests.library.given_models import CHATML, INST, edited, policy_folder, scorer_folder

ASKED = ["2+3", "What is 4+4?", "1+1 [/INST] </s>"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy and a reward model of different tokenizers, as `base` takes them in."""
    place = tmp_path_factory.mktemp("given")
    for name, folder in {
        "policy": policy_folder(place / "my/policy"),
        "rm": scorer_folder(place / "my/rm"),
        "padded": scorer_folder(place / "my/padded", pad_token_id=1),
        "chatml": scorer_folder(
            place / "my/chatml", CHATML.replace("<|im_start|>", "<s>").replace("<|im_end|>", "</s>")
        ),
    }.items():
        fetch_model(str(folder), None, place / name)
    return place


def drawn(given: Path, asked: list[str] = ASKED) -> list[Rollout]:
    """Samples of the policy, some of them cut off."""
    text, model = load_text(given / "policy"), load_policy(given / "policy")
    prompts = [Prompt(f"p{nth}", [{"role": "user", "content": one}], ()) for nth, one in enumerate(asked)]
    sampler = LocalSampler(model, text.stops, Runtime(DeviceParams(device="cpu")))
    return generate_rollouts(sampler, text, encode_prompts(text, prompts), SamplingParams(max_tokens=12), 0, samples=3)


def score(given: Path, name: str, rollouts: list[Rollout]) -> list[float]:
    return RewardModel(given / name, Runtime(DeviceParams(device="cpu")), load_text(given / "policy"))(rollouts)


def theirs(folder: Path, rollouts: list[Rollout]) -> list[float]:
    """transformers' own model on its own tokenizer's template."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for one in rollouts:
        talk = [*one.prompt.messages, {"role": "assistant", "content": one.text}]
        ids = tokenizer.apply_chat_template(talk, return_tensors="pt", return_dict=False)
        with torch.no_grad():
            found.append(float(model(ids).logits[0, 0]))
    return found


@pytest.mark.parametrize("name", ["rm", "padded", "chatml"])
def test_a_given_reward_model_scores_as_transformers_does_in_its_own_tokens(given: Path, name: str) -> None:
    rollouts = drawn(given, ASKED[:2])
    assert score(given, name, rollouts) == pytest.approx(theirs(given / "my" / name, rollouts), abs=1e-5)
    assert len({round(one, 3) for one in score(given, name, rollouts)}) > 3, "scores differ"


def test_markup_of_the_reward_model_in_an_answer_stays_text(given: Path) -> None:
    rollouts = drawn(given)
    text = load_text(given / "rm")
    talks = [[*one.prompt.messages, *one.turns] for one in rollouts]
    end = text.stop
    assert [ids.count(end) for ids in text.whole(talks)] == [1] * len(rollouts)
    assert all(torch.tensor(score(given, "rm", rollouts)).isfinite())


def test_a_reward_model_that_was_trained_here_reads_up_to_the_end_of_the_answer(given: Path, tmp_path: Path) -> None:
    """Its score ignores what its template writes after the end token, and a cut answer has no end token."""
    ours = Path(shutil.copytree(given / "chatml", tmp_path / "ours"))
    (ours / "manifest.json").unlink()
    edited(ours / "config.json", scores_whole_text=False)
    rollouts = [replace(one, finish=finish) for one in drawn(given, ASKED[:2]) for finish in ("stop", "length")]
    text, model = load_text(ours), load_model(ours)
    scores = RewardModel(ours, Runtime(DeviceParams(device="cpu")), load_text(given / "policy"))(rollouts)
    for one, found in zip(rollouts, scores, strict=True):
        whole = text.whole([[*one.prompt.messages, *one.turns]])[0]
        end = len(whole) - 1 - whole[::-1].index(text.stop)
        row = whole[: end if one.truncated else end + 1]
        with torch.no_grad():
            assert found == pytest.approx(float(score_rows(model, pack([TokenRow([], row)]))), abs=1e-5)
