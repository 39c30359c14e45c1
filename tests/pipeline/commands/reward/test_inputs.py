"""The reward that is tried, and its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.commands.reward import inputs as module
from posttrain.pipeline.commands.reward.inputs import subject_of

PARAMS = """
online:
  runs:
    grpo: {algorithm: grpo, start: sft/main, data: a/prompts, corpus: none, reward_model: none,
           reward: {correct: 1.0, length: {weight: 0.5, limit: 9, unit: words}}}
evaluate: {settings: {data: a/prompts, reference: none, reward_model: none}}
"""


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMS)


def test_options_are_read_as_in_params_yaml() -> None:
    assert module._option("limit=9") == ("limit", 9) and module._option("after=####") == ("after", "####")
    assert module._option("tags=[a, b]") == ("tags", ["a", "b"]) and module._option("a=") == ("a", None)
    for text, words in (("limit", "has no '='"), ("a=[b", "is not YAML")):
        with pytest.raises(ParamsError, match=words):
            module._option(text)


def test_a_reward_comes_from_the_command_line_or_a_run() -> None:
    alone = subject_of("length", ["limit=5", "unit=words"], None)
    assert alone.name == "length" and alone.term.options.limit == 5
    of_run = subject_of("length", ["limit=3"], "online.runs.grpo")
    assert (of_run.term.options.limit, of_run.term.options.unit) == (3, "words")
    with pytest.raises(ParamsError, match=r"online\.runs\.grpo\.reward has no 'lenght'"):
        subject_of("lenght", [], "online.runs.grpo")


def test_the_context_of_a_run() -> None:
    settings = module._settings("online.runs.grpo")
    assert settings.algorithm == "grpo" and module._settings("evaluate.settings").data == "a/prompts"
    context = module._context("online.runs.grpo", settings)
    assert (context.where, context.reward_model, context.max_tokens) == (
        "online.runs.grpo",
        None,
        settings.rollout.sampling.max_tokens,
    )
    assert module._text("sft/main", settings) is None
    with pytest.raises(ParamsError, match="has no rewards"):
        module._settings("sft.runs.a")
