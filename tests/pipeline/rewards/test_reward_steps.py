"""Steps of a completion: where they end, what a reward model says after each, and how samples label them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import posttrain
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.data.columns import Tables
from posttrain.data.layouts import convert, convert_all
from posttrain.data.turns import RowError
from posttrain.errors import DataError, ParamsError, RewardError
from posttrain.formulas.ragged import Ragged
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy, load_scorer, load_tokenizer, save_model
from posttrain.models.files.text import load_text
from posttrain.models.forward.forward import score_rows
from posttrain.pipeline.runs.samples import SamplesRun, sampled_tables
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.learned import RewardModel
from posttrain.rewards.reward import Context, Reward, ScoreFn, WeightedReward, as_score, rule
from posttrain.rewards.score import RewardSum
from posttrain.rewards.steps import REDUCE, Reduce, step_ends, steps_of
from posttrain.rewards.turns import placed_terms, rewards_by_token
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import SamplingParams, encode_prompts, generate_rollouts
from posttrain.sampling.step_labels import LabelledStep, StepLabels, labelled_steps
from posttrain.settings.params import check
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation
from posttrain.text.packing import pack
from tests.library.models.tiny import rollout_of as tiny_rollout
from tests.library.models.tiny import tiny_folder

RUNTIME = Runtime(DeviceParams(device="cpu", precision="fp32", threads=1))
TEXTS = ["18-11=7\n18+7=25\n#### 25", "7\n\n 8 \n", "\n#### 3", "5+5=10"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_folder(tmp_path_factory.mktemp("steps"))


@pytest.fixture(scope="module")
def judge(folder: Path) -> RewardModel:
    """A reward model that was trained here: it reads an answer up to its end."""
    scorer = load_scorer(folder)
    torch.manual_seed(1)
    torch.nn.init.normal_(scorer.score.weight)
    place = folder.parent / "judge"
    save_model(scorer, place, folder)
    return RewardModel(place, RUNTIME, load_text(folder))


def rollout_of(folder: Path, answer: str) -> Rollout:
    text = load_text(folder)
    (row,) = text.conversations([Conversation(asked(answer))], "last")
    turns = ({"role": "assistant", "content": answer},)
    return Rollout(Prompt("p", asked()[:1], row.prompt), 0, row, [-1.0] * len(row.rest), answer, "stop", turns)


def asked(answer: str = "") -> list[dict[str, str]]:
    return [{"role": "user", "content": "2+3"}, {"role": "assistant", "content": answer}]


def test_steps_end_before_their_separator_and_blank_ones_are_none() -> None:
    assert [*steps_of(TEXTS[0], "\n")] == ["18-11=7", "18-11=7\n18+7=25", TEXTS[0]]
    assert [*steps_of(TEXTS[1], "\n")] == ["7", "7\n\n 8 "]
    assert [*steps_of(TEXTS[2], "\n")] == [TEXTS[2]]
    assert [*steps_of("", "\n")] == []


def test_a_step_ends_at_the_first_token_that_completes_it(folder: Path) -> None:
    text, draw = load_text(folder), random.Random(0)
    for _ in range(100):
        answer = "\n".join("".join(draw.choices("0123+=# ", k=draw.randint(1, 9))) for _ in range(draw.randint(1, 5)))
        rollout = rollout_of(folder, answer)
        parts = [*steps_of(answer, "\n")]
        ends = step_ends(rollout, parts, "\n", text)
        assert ends == sorted(ends) and len(ends) == len(parts)
        for end, part in zip(ends[:-1], parts[:-1], strict=True):
            whole = len(part) + 1
            assert len(text.decode(rollout.row.rest[: end - 1])) < whole <= len(text.decode(rollout.row.rest[:end]))
        assert not parts or ends[-1] == len(rollout.row.rest)


@pytest.mark.parametrize("reduce", REDUCE)
def test_a_reward_model_judges_each_step_as_if_the_answer_ended_there(
    folder: Path, judge: RewardModel, reduce: Reduce
) -> None:
    rollouts = [rollout_of(folder, answer) for answer in TEXTS]
    scorer, text = judge._model, load_text(folder)
    for rollout, score in zip(rollouts, judge.by_step(rollouts, "\n", reduce), strict=True):
        expected = []
        for part in steps_of(rollout.text, "\n"):
            (row,) = text.conversations([Conversation(asked(part))], "last")
            assert row.rest[-1] == text.stop
            with torch.no_grad():
                expected.append(float(score_rows(scorer, pack([TokenRow([], [*row.prompt, *row.rest])]))))
        assert score.value == pytest.approx(REDUCE[reduce](expected), abs=1e-5)
        assert sum(added for _, added in score.steps) == pytest.approx(score.value, abs=1e-6), "steps add up"
        assert [end for end, _ in score.steps] == step_ends(rollout, [*steps_of(rollout.text, "\n")], "\n", text)
    if reduce == "last":
        (score,) = judge.by_step(rollouts[:1], "\n", "last")
        assert score.value == pytest.approx(judge(rollouts[:1])[0], abs=1e-5), "the last step is the whole answer"


def test_rewards_of_steps_are_placed_at_their_ends(folder: Path) -> None:
    rollout = rollout_of(folder, TEXTS[0])
    score = Score(1.5, steps=[[2, 0.5], [len(rollout.logps), 1.0]])
    term = WeightedReward(reward=halves, weight=2.0)
    assert placed_terms({"halves": term, "other": WeightedReward(reward=plain)}) == {"halves": term}
    assert placed_terms({"halves": term.model_copy(update={"normalise": True})}) == {}
    values = rewards_by_token("halves", term, replace(rollout, scores={"halves": score}))
    assert values[1] == 1.0 and values[-1] == 2.0 and sum(values) == 3.0
    with pytest.raises(RewardError, match="stored rollouts have no steps"):
        rewards_by_token("halves", term, replace(rollout, scores={"halves": Score(1.5)}))
    assert Score(*score.plain).plain == score.plain
    for unread, sums in ((Score(0.0, "unparseable"), 0.0), (Score(0.0), 0.0), (Score(-0.5, "unparseable"), -1.0)):
        assert sum(rewards_by_token("halves", term, replace(rollout, scores={"halves": unread}))) == sums
    for end in (0, len(rollout.logps) + 1):
        with pytest.raises(RewardError, match=f"a step ends at token {end} of"):
            rewards_by_token("halves", term, replace(rollout, scores={"halves": Score(1.0, steps=[[end, 1.0]])}))
    assert as_score(Score(1.0, steps=[[1, float("nan")]])).status == "error"


@rule(by_step=True)
def halves(rollout: Rollout, _: object) -> Score:
    """The share of even tokens in each half, placed on the half."""
    ids, middle = rollout.row.rest, max(len(rollout.row.rest) // 2, 1)
    shares = [sum(token % 2 == 0 for token in part) / len(ids) for part in (ids[:middle], ids[middle:])]
    return Score(sum(shares), steps=[[middle, shares[0]], [len(ids), shares[1]]])


@rule()
def plain(rollout: Rollout, _: object) -> float:
    """No steps."""
    return float(len(rollout.text))


@pytest.mark.slow
def test_ppo_learns_from_rewards_on_steps(folder: Path) -> None:
    model, tokenizer = posttrain.load_model(folder)
    sizes = {"rounds": 20, "prompts": 4, "group_size": 8, "minibatches": 2, "sampling": {"max_tokens": 6}}
    history = posttrain.train_online(
        model, tokenizer, [f"{a}+1" for a in range(12)], {"halves": (halves, 1.0)}, "ppo",
        settings={"rollout": sizes, "kl": "none", "optimizer": {"lr": 5e-3}, "patience": None},
    )  # fmt: skip
    rewards = [row["reward"] for row in history]
    assert sum(rewards[-6:]) / 6 > sum(rewards[:6]) / 6 + 0.15


def test_feedback_is_made_without_pairs_where_nobody_asks_for_pairs() -> None:
    rows = [{"split": "train", "problem": f"q{n}", "prompt": asked()[:1]} for n in range(2)]
    samples = [tiny_rollout(str(n)) for n in range(4)]
    own = {"policy": "sft/main", "data": "two_step/prompts", "reward_model": "none", "noise": 0.0, "samples": 2}

    def made(rewards: list[float], **settings: object) -> tuple[Tables, dict[str, float]]:
        params = check(SamplesRun, {**own, **settings}, where="data.samples.a")
        return sampled_tables(params, "here", rows, samples, rewards, [LabelledStep(0, "2+3=5", True)])

    tables, _ = made([1.0, 1.0, 0.0, 0.0], tables=["feedback"])
    assert [*tables] == ["feedback"] and tables["feedback"]["label"].to_list() == [True, True, False, False]
    both, _ = made([1.0, 0.0, 0.0, 1.0], tables=["pairs", "feedback"])
    alone, _ = made([1.0, 0.0, 0.0, 1.0], tables=["feedback"])
    assert alone["feedback"].equals(both["feedback"]) and both["pairs"].height == 2
    tables, figures = made([1.0] * 4, tables=["feedback"], steps={})
    assert tables["feedback"]["label"].to_list() == [True] and "annotator_error" not in figures
    for kinds, said in (
        ("pairs", "no prompt got two samples of different"),
        ("feedback", "no complete samples differ in their reward"),
    ):
        with pytest.raises(DataError, match=said):
            made([1.0] * 4, tables=[kinds])


def begins_with_an_even_token(rollouts: Sequence[Rollout]) -> list[float]:
    return [float(rollout.row.rest[0] % 2 == 0) for rollout in rollouts]


def labelled_by(folder: Path, score: ScoreFn, most: float) -> tuple[list[Rollout], list[LabelledStep]]:
    """Samples of a small model with scores, and the labels of the steps of two of each prompt."""
    text, model = ChatText(load_tokenizer(folder)), load_policy(folder)
    prompts = [Prompt(f"p{a}", asked()[:1], ()) for a in range(6)]
    sampler, params = LocalSampler(model, text.stops, RUNTIME), SamplingParams(max_tokens=24)
    drawn = generate_rollouts(sampler, text, encode_prompts(text, prompts), params, 0, samples=3)
    ended = [replace(rollout, finish="stop") for rollout in drawn]
    separator = max((letter for letter in "0123456789 e" if letter.strip()), key=lambda one: sum(
        one in rollout.text for rollout in ended))  # fmt: skip
    reward = Reward(lambda options, context: score)
    total = RewardSum({"own": WeightedReward(reward=reward)}, Context(RUNTIME, "here", text=text))
    labels = StepLabels(separator=separator, continuations=2, samples=2)
    limit, scored = FailureLimit(total, most, "here"), total.score(ended)
    limit.check(scored)
    return scored, labelled_steps(sampler, text, scored, total, limit, labels, params, 0, 1.0)


def test_a_step_is_right_if_a_continuation_passes(folder: Path) -> None:
    """What the first token decides is decided at the end of each step; what the rest decides, by any continuation."""
    ended, found = labelled_by(folder, begins_with_an_even_token, 0.0)
    assert len({step.place for step in found}) < len(found), "no sample has two steps, so the test would prove nothing"
    assert all(ended[step.place].sample < 2 for step in found)
    for step in found:
        first = ended[step.place].row.rest[0]
        assert step.right == (first % 2 == 0) and ended[step.place].text.startswith(step.text)
    assert found == sorted(found, key=lambda step: (step.place, len(step.text)))


def test_a_step_that_only_failed_scores_could_pass_is_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right is what a scored continuation says, wrong what all of them say."""
    given: list[list[Score]] = []

    def score(rollouts: Sequence[Rollout]) -> list[Score]:
        last = [rollout.row.rest[-1] % 3 for rollout in rollouts]
        given.append([Score(float(one == 1), "timeout" if given and one == 2 else "ok") for one in last])
        return given[-1]

    _, found = labelled_by(folder, score, 0.9)
    expected = []
    for one, other in given[1:]:
        passes = [one.status == other.status == "ok", one.value == 1, other.value == 1]
        expected += [any(passes[1:])] if any(passes) else []
    assert True in expected and False in expected and len(expected) < len(given) - 1, "else it would prove nothing"
    lasts = {step.place: step for step in found}
    assert [step.right for step in found if step != lasts[step.place]] == expected
    assert "completions could not be scored; the first failed in reward 'own' (timeout" in capsys.readouterr().err
    given.clear()
    with pytest.raises(RewardError, match=r"exceed max_failed = 0\.05"):
        labelled_by(folder, score, 0.05)


def test_rows_of_labelled_steps_become_rows_of_feedback() -> None:
    row = {"prompt": "2+3-1", "completions": ["2+3=5", "5-1=3", "#### 3"], "labels": [True, False, False]}
    found = convert_all(row, "feedback")
    texts = [part["completion"][-1][1] for part in found]
    assert texts == ["2+3=5", "2+3=5\n5-1=3", "2+3=5\n5-1=3\n#### 3"]
    assert [part["label"] for part in found] == row["labels"]
    for broken, said in (
        ({"labels": [True]}, "give a list of 3, one for each step"),
        ({"completions": "2+3=5"}, "give a list of texts"),
        ({"labels": [True, "maybe", False]}, "give true/false or 1/0"),
    ):
        with pytest.raises(RowError, match=said):
            convert_all({**row, **broken}, "feedback")
    with pytest.raises(RowError, match="several labelled steps"):
        convert(row, "feedback")


def test_the_loss_of_labels_is_the_cross_entropy_of_each_answer() -> None:
    torch.manual_seed(0)
    score, label = torch.randn(7, dtype=torch.float64, requires_grad=True), torch.tensor([1.0, -1, 1, 1, -1, -1, 1])
    objective = RewardObjective(RewardConfig(compare="labels"))
    rows = {"label": label, "row": torch.arange(7)}
    step = objective.prepare(Ragged(torch.ones(7, dtype=torch.long), rows, {}), {}).step
    parts = [step.select(torch.tensor(some)) for some in ([0, 3], [1, 2, 4, 5, 6])]
    losses = [objective.loss(part.with_rows(score=score[part.rows["row"]]), {}) for part in parts]
    total = torch.stack([loss.total for loss in losses]).sum()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(score, (label > 0).double())
    torch.testing.assert_close(total, expected)
    assert sum(float(loss.metrics["accuracy"]) for loss in losses) == pytest.approx(
        float(((score > 0) == (label > 0)).double().mean())
    )
    assert torch.autograd.grad(total, score)[0].sign().tolist() == (-label).tolist(), "right answers gain"
    with pytest.raises(ParamsError, match="compare is labels"):
        check(RewardConfig, {"compare": "labels", "centring": 0.1}, where="objective")


def test_settings_that_label_no_steps_are_refused() -> None:
    own = {"policy": "sft/main", "data": "two_step/prompts", "reward_model": "none", "tables": ["pairs"], "steps": {}}
    with pytest.raises(Exception, match="Add feedback to tables, or remove steps"):
        check(SamplesRun, own, where="data.samples.a")
