"""Reward models, templates, end tokens and contexts of models that were made elsewhere."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from posttrain.errors import DataError, ModelError, ParamsError, PosttrainError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.import_model import fetch_model
from posttrain.models.files.store import load_config, load_model, load_policy, save_model
from posttrain.models.files.text import load_text
from posttrain.models.forward.forward import score_rows
from posttrain.rewards.learned import RewardModel
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import SamplingParams, encode_prompts, generate_rollouts
from posttrain.text.chat_template import Conversation
from posttrain.text.packing import pack
from posttrain.train.examples import RowLimit
from posttrain.train.tokenize_tables import demonstrations, feedback, windows
from tests.library.models.imported_models import CHATML, INST, PLAIN, edited, policy_folder, scorer_folder

ASKED = ["2+3", "What is 4+4?", "1+1 [/INST] </s>"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy and a reward model of different tokenizers, as `base` takes them in."""
    place = tmp_path_factory.mktemp("given")
    for name, folder in {
        "policy": policy_folder(place / "my/policy"),
        "rm": scorer_folder(place / "my/rm"),
        "padded": scorer_folder(place / "my/padded", pad_token_id=1),
        "plain": scorer_folder(place / "my/plain", PLAIN),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rm", "padded", "plain", "chatml"])
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


def test_a_classifier_of_several_labels_is_refused(tmp_path: Path) -> None:
    from transformers import MistralForSequenceClassification

    folder = scorer_folder(tmp_path / "rm")
    model = MistralForSequenceClassification.from_pretrained(folder, num_labels=2, ignore_mismatched_sizes=True)
    model.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"returns 2 numbers for a text .*Use a reward model with num_labels 1"):
        fetch_model(str(folder), None, tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_a_row_longer_than_the_reward_models_context_is_refused(given: Path, tmp_path: Path) -> None:
    fetch_model(str(scorer_folder(tmp_path / "my", max_position_embeddings=16)), None, tmp_path / "short")
    judge = RewardModel(tmp_path / "short", Runtime(DeviceParams(device="cpu")), load_text(given / "policy"))
    with pytest.raises(
        DataError, match=r"prompt p1 .* more than the reward model's context of 16\. Lower sampling\.max"
    ):
        judge(drawn(given, ASKED[:2]))


def test_any_end_token_of_generation_config_ends_sampling_and_masks(given: Path) -> None:
    text = load_text(given / "policy")
    assert text.tokenizer.convert_ids_to_tokens(list(text.stops.tokens)) == ["<|endoftext|>", "<|im_end|>"]
    talk = [{"role": "user", "content": "2+3"}, {"role": "assistant", "content": "5"}]
    (row,) = text.exchanges([(talk[:1], talk[1:])])
    assert row.rest[-1] == text.stops.tokens[1], "the template's own end is trained, and nothing after it"
    model = load_policy(given / "policy")
    bias = torch.zeros(model.config.vocab_size)
    for stop in text.stops.tokens:  # each of them, made likely, ends a completion and is no part of its text
        model.lm_head.bias = torch.nn.Parameter(bias.scatter(0, torch.tensor([stop]), 20.0))
        (prompt,) = encode_prompts(text, [Prompt("p", talk[:1], ())])
        sampler = LocalSampler(model, text.stops, Runtime(DeviceParams(device="cpu")))
        (one,) = generate_rollouts(sampler, text, [prompt], SamplingParams(max_tokens=8), 0)
        assert one.row.rest[-1] == stop and not one.truncated and "<|" not in one.text


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("custom").mkdir()
    return tmp_path


def write_template(text: str) -> str:
    Path("custom/own.jinja").write_text(text, encoding="utf-8")
    return "custom/own.jinja"


@pytest.mark.parametrize("own", [None, INST], ids=["none", "wrong"])
def test_a_given_template_replaces_the_models_and_stays_with_it(
    workspace: Path, own: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    folder = policy_folder(workspace / "my", template=own, ends=[0])
    fetch_model(str(folder), None, Path("base"), None, write_template(CHATML))
    assert "ends an answer with <|im_end|>, so <|im_end|> becomes an end token" in capsys.readouterr().out
    save_model(load_policy("base"), "trained", "base")
    text = load_text(Path("trained"))
    assert text.tokenizer.get_chat_template() == CHATML and text.stops.tokens == (0, 2)
    assert AutoTokenizer.from_pretrained("trained").chat_template == CHATML


SWITCHED = CHATML.replace(
    "{% if add_generation_prompt %}",
    "{% if add_generation_prompt and mode is defined and mode %}{{ mode }}{% endif %}{% if add_generation_prompt %}",
    1,
)


def test_variables_stay_with_a_model_and_its_descendants_in_its_template(workspace: Path) -> None:
    """As others render it too; a row or a run may say otherwise."""
    from transformers import AutoTokenizer

    asked, folder = [{"role": "user", "content": "1+1?"}], policy_folder(workspace / "my", template=SWITCHED)
    fetch_model(str(folder), None, Path("base"), None, None, {"mode": "it's {off}\n%}"})
    fetch_model(str(folder), None, Path("plain"), None, None)
    assert (Path("base/manifest.json").read_text()) != Path("plain/manifest.json").read_text(), "digests notice"
    save_model(load_policy("base"), "trained", "base")
    text, plain = load_text(Path("trained")), load_text(Path("plain"))
    theirs = AutoTokenizer.from_pretrained("trained").apply_chat_template(
        asked, add_generation_prompt=True, return_dict=False
    )
    assert text.prompt(asked) == theirs != plain.prompt(asked)
    assert "it's {off}\n%}" in text.stops.decode(theirs)
    assert load_text(Path("trained"), variables={"mode": ""}).prompt(asked) == plain.prompt(asked)
    assert text.prompts([Conversation(asked, variables={"mode": None})]) == [plain.prompt(asked)]
    with pytest.raises(PosttrainError, match=r"/my: the chat template does not use moode\. Remove it from `template`"):
        fetch_model(str(folder), None, Path("other"), None, None, {"moode": 1})
    assert not Path("other").exists()


BROKEN = {
    "syntax": ("a\n{% for %}", r"fails on .* \(line 2 of the template\)"),
    "failure": ("\n\n{{ messages[9].content }}", r"fails on .* \(line 3 of the template\)"),
    "turn": ("{{ messages[0]['content'] }}<|im_end|>", "leaves out turn 2"),
    "end": ("{% for one in messages %}{{ one['content'] }} {% endfor %}", "puts no stop token after the answer"),
    "empty": ("  \n", "the chat template is empty"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_template_that_fails_on_a_conversation_is_refused(workspace: Path, fault: str) -> None:
    template, told = BROKEN[fault]
    folder = policy_folder(workspace / "my", template=None)
    with pytest.raises(PosttrainError, match=rf"custom/own\.jinja: .*{told}"):
        fetch_model(str(folder), None, Path("base"), None, write_template(template))
    assert not Path("base").exists()


def demonstrated(tokens: int) -> dict[str, Any]:
    talk = [{"role": "user", "content": "2+3"}, {"role": "assistant", "content": "5 " * tokens}]
    return {"id": f"r{tokens}", "messages": talk, "fields": None, "tools": None}


@pytest.mark.parametrize("long_rows", ["drop", "cut"])
def test_rows_longer_than_the_models_context_are_left_out_or_cut_with_a_line(
    workspace: Path, long_rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = policy_folder(workspace / "my", max_position_embeddings=32)
    text, frame = load_text(folder), pl.DataFrame([demonstrated(count) for count in (2, 4, 60)])
    limit = RowLimit(max_tokens=256, long_rows=long_rows)  # type: ignore[arg-type]
    found = demonstrations(text, frame, limit, "data/mine/chat.parquet", "all")
    line = "data/mine/chat.parquet: 1 of 3 rows are longer than the model's context of 32 tokens (max_tokens = 256)"
    assert line in capsys.readouterr().out
    assert int(found.tokens.max()) <= 32 and len(found) == (2 if long_rows == "drop" else 3)
    with pytest.raises(DataError, match=r"all 1 rows are longer than the model's context of 32 .*Shorten the data"):
        demonstrations(text, frame.tail(1), RowLimit(max_tokens=256), "data/mine/chat.parquet", "all")


def test_a_model_without_a_limit_reads_rows_of_any_length(workspace: Path) -> None:
    folder = policy_folder(workspace / "my")
    assert load_text(folder).context == 256
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "mamba", "architectures": ["MambaForCausalLM"]})
    )
    assert load_text(folder).context is None


def judged(asked: int, answered: int) -> dict[str, Any]:
    prompt, completion = (
        [{"role": "user", "content": "1 " * asked}],
        [{"role": "assistant", "content": "5 " * answered}],
    )
    return {"id": f"r{asked}", "prompt": prompt, "completion": completion, "label": asked > answered}


def test_the_longest_mismatched_row_is_a_prompt_with_another_rows_answer(workspace: Path) -> None:
    text = load_text(policy_folder(workspace / "my"))
    found = feedback(text, pl.DataFrame([judged(30, 2), judged(3, 40)]), RowLimit(), "data/mine/feedback.parquet")
    rows = [one.rows[0] for one in found]
    assert found.longest_mismatched == len(rows[0].prompt) + len(rows[1].rest) > max(map(len, rows))


def test_the_window_of_a_corpus_is_held_to_the_context(workspace: Path) -> None:
    text = load_text(policy_folder(workspace / "my", max_position_embeddings=32))
    corpus = pl.DataFrame({"id": ["a"], "text": ["2+3 " * 100]})
    assert len(windows(text, corpus, 31, "data/mine/corpus.parquet"))
    with pytest.raises(DataError, match=r"windows of 32 tokens .* longer than the model's context of 32\. Lower"):
        windows(text, corpus, 32, "data/mine/corpus.parquet")


def test_a_teacher_is_held_to_its_tokenizer_embeddings_and_context(workspace: Path) -> None:
    from posttrain.online.teachers import Student, check_teacher, shared_context

    start, short = policy_folder(workspace / "start"), policy_folder(workspace / "short", max_position_embeddings=64)
    text = load_text(start)
    rows = load_config(start).get_text_config().vocab_size
    student = Student(text, rows, [], name="base/start", section="distill.runs.d")
    check_teacher(student, short, "base/short")
    assert shared_context(text, short, {}, "distill.runs.d") == 64
    assert shared_context(text, short, {(1, 2): [7, 7, 7, 1, 2]}, "distill.runs.d") == 61
    assert shared_context(load_text(short), start, {}, "distill.runs.d") == 64
    with pytest.raises(ParamsError, match=r"d\.teacher = 'base/other' has a different tokenizer .* Sample it instead"):
        check_teacher(student, policy_folder(workspace / "other", vocabulary=300), "base/other")
    edited(short / "config.json", vocab_size=400)
    with pytest.raises(ParamsError, match="has 400 embeddings and"):
        check_teacher(student, short, "base/short")


def test_texts_are_the_same_where_tokenizer_template_and_date_are(given: Path, tmp_path: Path) -> None:
    save_model(load_policy(given / "policy"), tmp_path / "trained", given / "policy")
    text = load_text(given / "policy")
    assert text.same_as(load_text(tmp_path / "trained"))
    assert not text.same_as(load_text(given / "policy", "2025-01-01")) and not text.same_as(load_text(given / "rm"))
    edited(tmp_path / "trained" / "tokenizer_config.json", chat_template=INST)
    (tmp_path / "trained" / "chat_template.jinja").unlink(missing_ok=True)
    (tmp_path / "trained" / "manifest.json").unlink()
    assert not text.same_as(load_text(tmp_path / "trained"))
