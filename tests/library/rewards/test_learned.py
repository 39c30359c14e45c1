"""The reward `model`: scores of a reward model, of whole completions and of their steps."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.errors import DataError, ModelError, RewardError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_scorer, load_tokenizer
from posttrain.models.files.text import load_text
from posttrain.models.forward.forward import score_rows
from posttrain.rewards.learned import REWARDS, ModelOptions, RewardModel, _by_parts, _score_fn, models_of
from posttrain.rewards.reward import Context, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.text.chat import ChatText
from posttrain.text.packing import pack
from tests.library.models.imported_models import edited
from tests.library.models.tiny import tiny_folder

CPU = Runtime(DeviceParams(threads=1))
SHIFT = 0.25


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of a tokenizer's own, whose demonstrations score 0.25 on average."""
    place = tmp_path_factory.mktemp("scorer")
    model, tokenizer = posttrain.load_model(tiny_folder(place))
    torch.manual_seed(0)
    scorer = posttrain.reward_model(model)
    scorer.score.weight.data.normal_()
    scorer.save_pretrained(place / "scorer")
    tokenizer.save_pretrained(place / "scorer")
    edited(place / "scorer/config.json", reward_shift=SHIFT)
    return place / "scorer"


@pytest.fixture(scope="module")
def text(folder: Path) -> ChatText:
    return load_text(folder)


def rollouts(text: ChatText, *answers: str) -> list[Rollout]:
    """Completions as the policy wrote them, and as a message."""
    asked = [{"role": "user", "content": "1+1"}]
    rows = text.exchanges([(asked, [{"role": "assistant", "content": answer}]) for answer in answers])
    return [
        Rollout(Prompt(f"p{nth}", asked, row.prompt), 0, row, [0.0] * len(row.rest), answer, "stop",
                turns=({"role": "assistant", "content": answer},))
        for nth, (answer, row) in enumerate(zip(answers, rows, strict=True))
    ]  # fmt: skip


@torch.no_grad()
def score(folder: Path, row: TokenRow) -> float:
    return float(score_rows(load_scorer(folder), pack([row]))) - SHIFT


def test_scores_are_those_of_the_last_token(folder: Path, text: ChatText) -> None:
    some = rollouts(text, "2", "12+3=15")
    wanted = [score(folder, one.row) for one in some]
    assert RewardModel(folder, CPU, text)(some) == pytest.approx(wanted, abs=1e-5)
    assert RewardModel(folder, CPU, None)(some) == pytest.approx(wanted, abs=1e-5), "in its own tokens"
    assert RewardModel(folder, CPU, text)([]) == [] and wanted[0] != pytest.approx(wanted[1])


def test_a_cut_answer_has_no_end(folder: Path, text: ChatText) -> None:
    (one,) = rollouts(text, "12+3=15")
    cut = replace(one, finish="length")
    (found,) = RewardModel(folder, CPU, None)([cut])
    assert found == pytest.approx(score(folder, replace(one.row, rest=one.row.rest[:-1])), abs=1e-5)


def cut_off(rollout: Rollout, prompt: str = "") -> Rollout:
    """The same completion without its end token."""
    row = replace(rollout.row, rest=rollout.row.rest[:-1])
    return replace(
        rollout, row=row, finish="length", logps=rollout.logps[:-1], prompt=replace(rollout.prompt, id=prompt)
    )


def scored(folder: Path, text: ChatText | None, some: list[Rollout], **options: Any) -> list[Score]:
    """Scores as a run has them."""
    term = WeightedReward(reward=REWARDS["model"], options=ModelOptions(**options))
    return [one.scores["model"] for one in RewardSum({"model": term}, context(folder, text)).score(some)]


@pytest.mark.parametrize("steps", [None, "min", "last"])
@pytest.mark.parametrize("tokens", ["policy", "own"])
def test_a_cut_completion_never_beats_the_same_one_that_ended(
    folder: Path, tmp_path: Path, text: ChatText, tokens: str, steps: Any
) -> None:
    """Whatever the offset of the scores: alone, and next to samples that ended."""
    answers = ["2", "1+1\n2", "12+3=15\n5", "9 " * 20, ""]
    for shift in (-50.0, 0.0, 50.0):
        moved = Path(shutil.copytree(folder, tmp_path / str(shift)))
        edited(moved / "config.json", reward_shift=shift)
        ended = rollouts(text, *answers)
        own = [one.value for one in scored(moved, text if tokens == "policy" else None, ended, steps=steps)]
        cut = [cut_off(one, prompt=f"cut {nth}") for nth, one in enumerate(ended)]
        alone = scored(moved, text if tokens == "policy" else None, cut, steps=steps)
        assert [one.value for one in alone] == pytest.approx([min(0.0, value) for value in own], abs=1e-4)
        assert {one.reason for one in alone} == {"it was cut off"}
        same = [replace(one, prompt=replace(one.prompt, id="p")) for one in [*ended, *cut]]
        together = [one.value for one in scored(moved, text, same, steps=steps)]
        assert max(together[len(ended) :]) <= min(together) + 1e-4
        for one, score in zip(cut, alone, strict=True):
            assert not score.steps or sum(value for _, value in score.steps) == pytest.approx(score.value, abs=1e-4)
            assert not score.steps or score.steps[-1][0] == len(one.row.rest)


def test_a_cut_completion_may_be_scored_as_any_other(folder: Path, text: ChatText) -> None:
    (one,) = rollouts(text, "12+3=15")
    cut = cut_off(one)
    (found,) = scored(folder, text, [cut], truncated="score")
    assert found.value == pytest.approx(score(folder, cut.row), abs=1e-5) and found.reason == ""


def test_the_context_may_have_cut_a_completion(folder: Path, text: ChatText) -> None:
    """Then it has no place for an end token."""
    (one,) = rollouts(text, "1 " * 200)
    assert text.context is not None
    row = replace(one.row, rest=one.row.rest[: text.context - len(one.row.prompt)])
    full = replace(one, row=row, text=text.decode(row.rest), finish="length", turns=(
        {"role": "assistant", "content": text.decode(row.rest)},))  # fmt: skip
    (found,) = scored(folder, text, [full])
    assert found.value == pytest.approx(min(0.0, score(folder, row)), abs=1e-4)


PAIRS = [
    ("<think>1+1 is 2, or 3</think>2", "2"),
    ("<think>\n\n</think>\n\n2", "2"),
    ("<think>no</think>5<think>yes</think>2\n3", "2\n3"),
    ("<think>2", ""),
    ("<think>2</think>", ""),
]


@pytest.mark.parametrize("tokens", ["policy", "own"])
@pytest.mark.parametrize(("thinks", "plain"), PAIRS)
def test_thoughts_never_change_the_score(folder: Path, text: ChatText, thinks: str, plain: str, tokens: str) -> None:
    policy = text if tokens == "policy" else None
    some = rollouts(text, thinks, plain, "5")
    found, wanted, other = scored(folder, policy, some)
    assert found.value == pytest.approx(wanted.value, abs=1e-5) and abs(other.value - wanted.value) > 1e-3
    whole, short, _ = scored(folder, policy, some, hide=None)
    assert abs(whole.value - short.value) > 1e-3, "else the test would prove nothing"
    assert [whole.value, short.value] == pytest.approx([score(folder, one.row) for one in some[:2]], abs=1e-5)
    (named,) = scored(folder, policy, rollouts(text, thinks.replace("think", "plan")), hide="<plan>")
    assert named.value == pytest.approx(wanted.value, abs=1e-5)


def test_steps_end_at_their_tokens_after_thoughts(folder: Path, text: ChatText) -> None:
    thoughts = "<think>1\n2\n</think>\n"
    thinks, plain = rollouts(text, f"{thoughts}1+1\n2", "1+1\n2")
    found, wanted = scored(folder, text, [thinks, plain], steps="sum")
    assert found.value == pytest.approx(wanted.value, abs=1e-5)
    assert [value for _, value in found.steps] == pytest.approx([value for _, value in wanted.steps], abs=1e-5)
    first, last = (int(end) for end, _ in found.steps)
    assert text.decode(thinks.row.rest[:first]) == f"{thoughts}1+1\n" and last == len(thinks.row.rest)


def test_a_template_may_open_the_thoughts(folder: Path, tmp_path: Path) -> None:
    """Then a completion begins in them, and without a closing tag nothing of it is shown."""
    opening = Path(shutil.copytree(folder, tmp_path / "opening"))
    template = load_text(folder).tokenizer.get_chat_template()
    opened = f"{template}{{% if add_generation_prompt %}}<think>\n{{% endif %}}"
    tokenizer = load_tokenizer(opening)
    tokenizer.chat_template = opened
    text = ChatText(tokenizer)
    ids = text.prompt([{"role": "user", "content": "1+1"}])
    thinks, plain, empty = [
        replace(one, prompt=replace(one.prompt, ids=ids), row=TokenRow(ids, one.row.rest))
        for one in rollouts(load_text(folder), "so it is 2", "so</think>2", "")
    ]
    hidden, answered, nothing = (one.value for one in scored(folder, text, [thinks, plain, empty]))
    assert hidden == pytest.approx(nothing, abs=1e-5) and answered != pytest.approx(nothing, abs=1e-2)


def test_a_policy_learns_to_end_where_all_scores_are_negative(folder: Path, tmp_path: Path) -> None:
    """With 0 for a completion that was cut off, or the score of its text, it learns never to end."""
    start = tiny_folder(tmp_path)
    low = Path(shutil.copytree(folder, tmp_path / "low"))
    edited(low / "config.json", reward_shift=60.0)
    judge = RewardModel(low, CPU, load_text(start))
    sizes = {"rounds": 20, "prompts": 4, "group_size": 8, "minibatches": 1, "sampling": {"max_tokens": 8}}
    settings = {"rollout": sizes, "kl": "none", "optimizer": {"lr": 5e-3}, "patience": None}

    def cut(reward: Any, reward_model: Path | None) -> float:
        """The share of completions that are cut off at the end of the training."""
        model, tokenizer = posttrain.load_model(start)
        history = posttrain.train_online(
            model,
            tokenizer,
            [f"{a}+1" for a in range(12)],
            reward,
            "grpo",
            reward_model=reward_model,
            settings=settings,
        )
        assert history[0]["truncated"] > 0.9
        return sum(row["truncated"] for row in history[-5:]) / 5

    def free(some: Any) -> list[float]:
        return [0.0 if one.truncated else value for one, value in zip(some, judge(some), strict=True)]

    assert cut({"model": 1.0}, low) < 0.3
    assert cut({"model": {"truncated": "score"}}, low) > 0.9
    assert cut(free, None) > 0.9


def test_steps_add_up_to_the_score_of_the_last(folder: Path, text: ChatText) -> None:
    (one,) = rollouts(text, "1+1\n2")
    judge = RewardModel(folder, CPU, text)
    first, whole = judge(rollouts(text, "1+1", "1+1\n2"))
    (last,) = judge.by_step([one], "\n", "last")
    assert last.value == pytest.approx(whole, abs=1e-5)
    assert [end for end, _ in last.steps] == [len(one.row.rest) - 2, len(one.row.rest)]
    assert [value for _, value in last.steps] == pytest.approx([first, whole - first], abs=1e-5)
    (least,) = judge.by_step([one], "\n", "min")
    assert least.value == pytest.approx(min(first, whole), abs=1e-5)
    (blank,) = judge.by_step(rollouts(text, ""), "\n", "sum")
    assert len(blank.steps) == 1
    (unknown,) = RewardModel(folder, CPU, None).by_step([one], "\n", "last")
    assert unknown.steps == [] and unknown.value == pytest.approx(whole, abs=1e-5)


def test_a_whole_text_has_no_padding_at_its_end(folder: Path, tmp_path: Path, text: ChatText) -> None:
    whole = Path(shutil.copytree(folder, tmp_path / "whole"))
    edited(whole / "config.json", scores_whole_text=True)
    judge = RewardModel(whole, CPU, text)
    judge._padding = 7
    assert judge._unpadded([1, 7, 2, 7, 7]) == [1, 7, 2] and judge._unpadded([7, 7]) == [7]
    some = rollouts(text, "2")
    (row,) = judge._own_rows(some)
    assert row == TokenRow([], text.whole([[*some[0].prompt.messages, *some[0].turns]])[0])
    assert judge(some) == pytest.approx([score(folder, row)], abs=1e-5)


def test_what_is_no_reward_model_is_refused(folder: Path, tmp_path: Path, text: ChatText) -> None:
    with pytest.raises(ModelError, match="Qwen3ForCausalLM is not a reward model"):
        RewardModel(tiny_folder(tmp_path), CPU, None)
    odd = Path(shutil.copytree(folder, tmp_path / "odd"))
    edited(odd / "config.json", reward_shift="much")
    with pytest.raises(ModelError, match="reward_shift = 'much' is not a number"):
        RewardModel(odd, CPU, None)
    with pytest.raises(DataError, match="prompt p0 and its completion have 607 tokens, more than the"):
        RewardModel(folder, CPU, text)(rollouts(text, "1 " * 300))


def test_models_of_a_set(folder: Path, tmp_path: Path) -> None:
    assert models_of(folder) == {folder.name: folder}
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}", encoding="utf-8")
    assert models_of(tmp_path) == {"a": tmp_path / "a", "b": tmp_path / "b"}
    assert [*models_of(tmp_path)] == ["a", "b"]
    assert models_of(tmp_path / "none") == {"none": tmp_path / "none"}


def context(model: Path | None, text: ChatText | None = None) -> Context:
    return Context(CPU, "online.runs.a", model, text, name="model")


def test_the_reward_of_settings(folder: Path, tmp_path: Path, text: ChatText, capsys: Any) -> None:
    some = rollouts(text, "1+1\n2")
    judge = RewardModel(folder, CPU, text)
    assert _score_fn(ModelOptions(), context(folder, text))(some) == judge(some)
    (stepwise,) = _score_fn(ModelOptions(steps="min"), context(folder, text))(some)
    assert stepwise == judge.by_step(some, "\n", "min")[0]
    assert _score_fn(ModelOptions(), context(folder))(some) == pytest.approx(judge(some), abs=1e-5)
    two = tmp_path / "set"
    for name in ("a", "b"):
        shutil.copytree(folder, two / name)
    assert _score_fn(ModelOptions(part="b"), context(two, text))(some) == judge(some)
    with pytest.raises(RewardError, match="has the models a, b, but part is None"):
        _score_fn(ModelOptions(), context(two, text))
    with pytest.raises(ValueError, match="the reward `model` has no reward model"):
        _score_fn(ModelOptions(), context(None))


def test_rows_of_a_table_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch, text: ChatText) -> None:
    monkeypatch.setattr("posttrain.rewards.learned.ROWS", 2)
    some, sizes = rollouts(text, "1", "2", "3"), list[int]()

    def count(part: Any) -> list[Score | float]:
        sizes.append(len(part))
        return [float(one.text) for one in part]

    assert _by_parts(count, some, "here") == [1.0, 2.0, 3.0] and sizes == [2, 1]


def test_whether_it_scores_by_step() -> None:
    by_step = REWARDS["model"].by_step
    assert [by_step(ModelOptions()), by_step(ModelOptions(steps="sum"))] == [False, True]
