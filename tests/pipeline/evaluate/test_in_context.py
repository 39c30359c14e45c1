"""Turns before every prompt of an evaluation, what rewards and the reference see of them, and ICDPO's score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch.testing import assert_close

from posttrain.errors import DataError, ParamsError
from posttrain.evaluate.context import ContextTurn
from posttrain.evaluate.in_context import BY_CONTEXT, encode_in_context, score_by_context, without_context
from posttrain.evaluate.intervals import best_of_k
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy
from posttrain.models.files.text import load_text
from posttrain.pipeline.runs.evaluation import EvaluateRun
from posttrain.rollout import Message, Prompt, Rollout, TokenRow
from posttrain.sampling.sampler import encode_prompts
from posttrain.settings.params import check
from posttrain.text.chat import ChatText
from tests.library.models.tiny import tiny_folder
from tests.workspace import run, stage

INPUTS = {"policy": "sft/main", "data": "two_step/prompts", "reference": "none", "reward_model": "none"}
SYSTEM = {"role": "system", "content": "Add."}
EXAMPLE = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "#### 2"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def text(folder: Path) -> ChatText:
    return load_text(folder)


def turns(*given: Message) -> list[ContextTurn]:
    return [ContextTurn.model_validate(turn) for turn in given]


def prompt(*messages: Message) -> Prompt:
    return Prompt("p", [*messages, {"role": "user", "content": "2+3"}], (), "5")


def test_a_prompt_is_read_after_the_context(text: ChatText) -> None:
    (seen,) = encode_in_context(text, [prompt()], turns(SYSTEM, *EXAMPLE), "t")
    assert list(seen.ids) == text.prompt([SYSTEM, *EXAMPLE, *prompt().messages])
    assert seen.messages == prompt().messages, "rewards and results have the prompt alone"


def test_a_prompts_own_system_turn_follows_that_of_the_context(text: ChatText) -> None:
    (seen,) = encode_in_context(
        text, [prompt({"role": "system", "content": "Be short."})], turns(SYSTEM, *EXAMPLE), "t"
    )
    both = {"role": "system", "content": "Add.\n\nBe short."}
    assert list(seen.ids) == text.prompt([both, *EXAMPLE, *prompt().messages])


def test_no_turns_are_no_context(text: ChatText) -> None:
    assert encode_in_context(text, [prompt(SYSTEM)], [], "t") == encode_prompts(text, [prompt(SYSTEM)])


def test_an_example_may_not_be_a_prompt_that_is_measured(text: ChatText) -> None:
    known = [{"role": "user", "content": "2+3"}, EXAMPLE[1]]
    with pytest.raises(DataError, match=r"t: an example is also an evaluation prompt, p: '2\+3'.*Take examples from"):
        encode_in_context(text, [prompt()], turns(*known), "t")


@pytest.mark.parametrize("given", [EXAMPLE[:1], EXAMPLE[::-1], [*EXAMPLE, SYSTEM], [SYSTEM, SYSTEM, *EXAMPLE]])
def test_turns_that_no_prompt_can_follow_are_refused(given: list[Message]) -> None:
    with pytest.raises(ParamsError, match=r"t\.context.*a prompt cannot follow.*alternating user and assistant turns"):
        check(EvaluateRun, {**INPUTS, "context": given}, where="t")


def test_likelihoods_read_no_context() -> None:
    with pytest.raises(ParamsError, match="context: without effect if by is likelihood"):
        check(EvaluateRun, {**INPUTS, "by": "likelihood", "context": [SYSTEM]}, where="t")
    assert check(EvaluateRun, {**INPUTS, "context": [SYSTEM]}, where="t").context == turns(SYSTEM)


def rollouts(text: ChatText, context: list[ContextTurn]) -> list[Rollout]:
    (seen,) = encode_in_context(text, [prompt()], context, "t")
    answers = [text.plain([answer])[0] for answer in ("#### 5", "5", "so the answer is #### 4")]
    return [
        Rollout(seen, nth, TokenRow(seen.ids, [*ids, text.stop], [True] * len(ids) + [nth != 1]), (), "", "stop")
        for nth, ids in enumerate(answers)
    ]


def test_the_score_is_what_the_context_adds_to_the_log_prob(folder: Path, text: ChatText) -> None:
    """Against transformers' own forward pass over whole rows; tokens that were not sampled do not count."""
    model, runtime = load_policy(folder).eval(), Runtime(DeviceParams())
    seen = rollouts(text, turns(SYSTEM, *EXAMPLE))
    plain = without_context(text, seen)
    assert [list(row.row.prompt) for row in plain] == [text.prompt(prompt().messages)] * 3
    assert [row.row.rest for row in plain] == [row.row.rest for row in seen]
    scored = score_by_context(model, seen, plain, runtime)

    from transformers import AutoModelForCausalLM

    own = AutoModelForCausalLM.from_pretrained(folder).eval()

    @torch.no_grad()
    def logp(row: TokenRow) -> float:
        ids = torch.tensor([[*row.prompt, *row.rest]])
        logps = own(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).flatten()[len(row.prompt) - 1 :]
        return float(logps[torch.tensor(row.mask)].sum())

    expected = [logp(mine.row) - logp(alone.row) for mine, alone in zip(seen, plain, strict=True)]
    found = [rollout.scores[BY_CONTEXT].value for rollout in scored]
    assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert max(map(abs, found)) > 0.01


def test_without_turns_every_score_is_0(folder: Path, text: ChatText) -> None:
    seen = rollouts(text, [])
    scored = score_by_context(load_policy(folder).eval(), seen, without_context(text, seen), Runtime(DeviceParams()))
    assert [rollout.scores[BY_CONTEXT].value for rollout in scored] == [0.0] * 3


@pytest.mark.slow
def test_a_policy_with_examples_is_measured_and_its_tokens_are_compared(own_workspace: Path) -> None:
    shots = ", ".join(f"{{role: {turn['role']}, content: '{turn['content']}'}}" for turn in EXAMPLE)
    inputs = "data: two_step/prompts, reference: sft/main, reward_model: none, prompts: 40, samples: 4"
    with (own_workspace / "params.yaml").open("a", encoding="utf-8") as file:
        file.write(f"  runs:\n    shots: {{policy: sft/main, {inputs}, context: [{shots}]}}\n")
    done = stage(own_workspace, "completions_runs", "shots")
    assert done.returncode == 0, done.stdout
    done = stage(own_workspace, "evaluate_runs", "shots")
    assert done.returncode == 0, done.stdout
    metrics = json.loads((own_workspace / "results/shots/metrics.json").read_text(encoding="utf-8"))
    rows = pl.read_parquet(own_workspace / "results/shots/rollouts.parquet")
    assert metrics["kl_k1"] > 0.01, "the reference is the policy without the examples"
    assert rows["prompt"].list.len().unique().to_list() == [1]

    sampled = rows.filter(~pl.col("greedy")).sort("prompt_id", "sample")
    by_context = sampled["scores"].list.eval(
        pl.element().filter(pl.element().struct.field("name") == BY_CONTEXT).struct.field("value")
    ).list.first()  # fmt: skip
    chosen, score = (np.array(column.to_list()).reshape(-1, 4) for column in (by_context, sampled["reward"]))
    best = [best_of_k(*pair, 4) for pair in zip(chosen, score, strict=True)]
    assert metrics["best_of_4_by_context"] == pytest.approx(sum(best) / len(best), abs=1e-5)

    def shift(*names: str) -> dict[str, Any]:
        found = run(own_workspace, "python", "-m", "posttrain", "compare", *names, "--tokens", "--json")
        assert found.returncode == 0, found.stdout
        return dict(json.loads(found.stdout))

    with_examples = shift("shots", "shots")
    assert with_examples["unshifted"] == 1.0 and with_examples["tokens"] == [], "greedy answers are its own likeliest"
    assert shift("shots", "sft")["unshifted"] < 1
    assert shift("sft", "base")["shifted"] > shift("dpo", "sft")["shifted"] < 0.05
    refused = run(own_workspace, "python", "-m", "posttrain", "compare", "sft", "--tokens")
    assert refused.returncode == 1 and "expected two policies, not 1" in refused.stdout
