"""What a user types first: one prompt as a string, an algorithm of another section, keys of other libraries."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import posttrain
from posttrain.errors import DataError, ParamsError
from posttrain.online.config import CONFIGS
from posttrain.settings.params import check
from posttrain.train.optimizer import OptimizerParams
from tests.library.models.tiny import tiny_folder
from tests.workspace import ROOT

ROWS = [{"prompt": "a", "completion": "b"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return posttrain.load_model(tiny_folder(tmp_path_factory.mktemp("model")))


def test_one_prompt_needs_no_list(model: tuple[Any, Any]) -> None:
    alone = posttrain.sample(*model, "hello", n=2, max_tokens=4)
    listed = posttrain.sample(*model, ["hello"], n=2, max_tokens=4)
    turns = posttrain.sample(*model, [{"role": "user", "content": "hello"}], n=2, max_tokens=4)
    assert len(alone.texts) == 2 and alone.texts == listed.texts == turns.texts
    with pytest.raises(DataError, match="there are no prompts"):
        posttrain.sample(*model, [])


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "raft"])
def test_an_algorithm_that_samples_is_not_taken_for_a_typing_error(model: tuple[Any, Any], algorithm: str) -> None:
    with pytest.raises(ParamsError, match=f"'{algorithm}' trains on the policy's samples.*train_online.*policy_loss"):
        posttrain.train_model(*model, [{"prompt": "a", "completion": "b"}], algorithm)


def said(over: dict[str, Any]) -> str:
    run = CONFIGS["grpo"]
    with pytest.raises(ParamsError) as caught:
        check(run.model, run.row.merged({"algorithm": "grpo", **over}), where="online.runs.a")
    return str(caught.value)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("learning_rate", "'optimizer.lr'"),
        ("num_generations", "'rollout.group_size'"),
        ("beta", "'kl.beta'"),
        ("max_completion_length", "'rollout.sampling.max_tokens'"),
        ("epsilon", "'surrogate.low' or 'surrogate.high'"),
    ],
)
def test_a_key_of_another_library_is_answered_with_ours(theirs: str, ours: str) -> None:
    assert f"online.runs.a.{theirs}: unknown key. It is {ours} here" in said({theirs: 1})


def test_a_key_of_another_library_inside_a_group_is_answered_with_its_neighbour() -> None:
    assert "optimizer.learning_rate: unknown key. It is 'lr' here" in said({"optimizer": {"learning_rate": 1e-5}})


def test_a_number_as_yaml_1_1_reads_it_is_a_number() -> None:
    assert check(OptimizerParams, {"lr": "1e-5"}, where="optimizer").lr == 1e-5
    with pytest.raises(ParamsError, match="valid number"):
        check(OptimizerParams, {"lr": "fast"}, where="optimizer")


def test_max_failed_of_1_is_refused() -> None:
    assert "max_failed: at 1, every completion may fail" in said({"max_failed": 1.0})


def test_completions_do_not_depend_on_the_place_of_their_prompt(model: tuple[Any, Any]) -> None:
    texts = posttrain.sample(*model, ["1+1", "2+2", "1+1"], n=2, max_tokens=6).texts
    turned = posttrain.sample(*model, ["2+2", "1+1"], n=2, max_tokens=6).texts
    assert turned == [*texts[2:4], *texts[:2]] and texts[:2] != texts[4:]


def test_what_the_context_does_not_hold_is_refused(model: tuple[Any, Any]) -> None:
    with pytest.raises(ParamsError, match=r"^sample: .*context of 256"):
        posttrain.sample(*model, "hello", max_tokens=256)
    with pytest.raises(ParamsError, match=r"sample\.n"):
        posttrain.sample(*model, "hello", n=0)
    rows = [
        {"prompt": "1" * 200, "completion": "2", "label": True},
        {"prompt": "1", "completion": "2" * 200, "label": False},
    ]
    with pytest.raises(DataError, match=r"rows: prompts are paired with answers of other rows too.*context of 256"):
        posttrain.train_model(*model, rows, "kto")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"evaluate_every": 0}, r"train_model\.evaluate_every"),
        ({"batch_size": 0}, r"train_model\.batch_size"),
        ({"epochs": 0}, r"train_model\.epochs"),
        ({"epochs": -1.0}, r"train_model\.epochs"),
    ],
)
def test_numbers_without_a_meaning_are_refused(model: tuple[Any, Any], wrong: dict[str, Any], said: str) -> None:
    row = {"prompt": "a", "completion": "b"}
    with pytest.raises(ParamsError, match=said):
        posttrain.train_model(*model, [row], heldout=[row], **wrong)


@pytest.mark.parametrize("turns", [[{"role": "user", "content": "hi"}], []])
def test_a_row_that_the_assistant_does_not_end_is_named(model: tuple[Any, Any], turns: list[dict[str, str]]) -> None:
    rows = [{"prompt": "a", "completion": "b"}, {"messages": turns}]
    with pytest.raises(DataError, match=r"rows\[1\]: it does not end with an assistant turn"):
        posttrain.train_model(*model, rows)


def test_a_row_that_the_template_refuses_is_named(model: tuple[Any, Any]) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    rows = [{"prompt": "a", "completion": "b"}, {"messages": turns}]
    with pytest.raises(DataError, match=r"rows\[1\]: "):
        posttrain.train_model(*model, rows)


def test_demonstrations_that_are_learned_by_heart_end_no_run(tmp_path: Path) -> None:
    learner = posttrain.load_model(tiny_folder(tmp_path))
    row = {"prompt": "1", "completion": "2"}
    history = posttrain.train_model(*learner, [row], epochs=80, optimizer={"lr": 3e-2})
    assert len(history) == 80 and all(step["entropy"] < 0.001 for step in history[-5:])


def test_the_seed_decides_dropout_and_leaves_the_random_numbers_of_the_caller(tmp_path: Path) -> None:
    tokenizer = posttrain.load_model(tiny_folder(tmp_path))[1]
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=0, bos_token_id=0
    )
    start = GPT2LMHeadModel(config).eval()
    state = torch.get_rng_state()
    losses = [
        [step["loss"] for step in posttrain.train_model(copy.deepcopy(start), tokenizer, ROWS, epochs=3, seed=seed)]
        for seed in (0, 0, 1)
    ]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_one_string_is_not_a_list_of_prompts(model: tuple[Any, Any]) -> None:
    with pytest.raises(DataError, match=r"prompts: this is one string, not a list\. Write \['say 1'\]"):
        posttrain.train_online(*model, "say 1", {"none": lambda rollouts: [0.0 for _ in rollouts]})


def test_a_lambda_needs_a_name(model: tuple[Any, Any]) -> None:
    with pytest.raises(ParamsError, match=r'a lambda has no name .*reward=\{"short": lambda'):
        posttrain.train_online(*model, ["say 1"], lambda rollouts: [0.0 for _ in rollouts])


def test_a_row_keeps_its_task_and_an_unknown_one_is_an_error(
    model: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/task_of_rows.py").write_text("from posttrain.tasks import Task\n\nplain = Task()\n")
    monkeypatch.chdir(tmp_path)
    tasks: set[str] = set()

    def noted(rollouts: Any) -> list[float]:
        tasks.update(rollout.prompt.task for rollout in rollouts)
        return [float(len(rollout.text) % 2) for rollout in rollouts]

    rollout = {"rounds": 1, "prompts": 2, "group_size": 2, "sampling": {"max_tokens": 4}}
    settings = {"rollout": rollout, "canaries": 0}
    rows = [{"prompt": f"What is {n} + 3?", "answer": str(n + 3), "task": "task_of_rows:plain"} for n in range(2)]
    posttrain.train_online(copy.deepcopy(model[0]), model[1], rows, noted, settings=settings)
    assert tasks == {"task_of_rows:plain"}
    with pytest.raises(ParamsError, match="'no_task' is not a task"):
        posttrain.train_online(*model, [{"prompt": "a", "task": "no_task"}], noted, settings=settings)


def test_the_end_of_patience_is_a_warning_and_the_metrics_stay(
    model: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def equal(rollouts: Any) -> list[float]:
        return [0.5 for _ in rollouts]

    rollout = {"rounds": 6, "prompts": 2, "group_size": 2, "sampling": {"max_tokens": 4}}
    settings = {"rollout": rollout, "patience": 3}
    history = posttrain.train_online(copy.deepcopy(model[0]), model[1], ["say 1", "say 2"], equal, settings=settings)
    assert len(history) == 5, "two steps a round; the third round ends it"
    assert "The run ends, because patience = 3" in capsys.readouterr().err


WITH_EPOCHS = [posttrain.SftConfig, posttrain.RewardTraining, posttrain.PreferenceTraining, posttrain.OfflineConfig]


@pytest.mark.parametrize("kind", WITH_EPOCHS)
def test_a_wrong_setting_of_a_config_has_the_text_of_a_wrong_key(kind: Any) -> None:
    with pytest.raises(ParamsError, match=r"\.epoch: unknown key\. Did you mean 'epochs'\?"):
        kind(epoch=1)
    with pytest.raises(ParamsError, match=rf"{kind.__name__}: settings must be passed by name"):
        kind({"epochs": 1})


@pytest.mark.parametrize("kind", [posttrain.OnlineConfig, posttrain.StudentConfig])
def test_a_wrong_setting_of_an_online_config_has_it_too(kind: Any) -> None:
    for given in ({}, {"algorithm": kind.example}):
        with pytest.raises(ParamsError, match=r"rollouts_in_gb: unknown key\. Did you mean 'rollouts_gb'\?"):
            kind(rollouts_in_gb=1, **given)


def test_every_fault_of_a_config_is_in_one_error() -> None:
    with pytest.raises(ParamsError, match=r"SftConfig\.epochs = -1: .*greater than 0") as caught:
        posttrain.SftConfig(epochs=-1, optimizer={"learning_rate": 1e-5})  # type: ignore[arg-type]
    assert "optimizer.learning_rate: unknown key. It is 'lr' here" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        (posttrain.OnlineConfig, "rloo"),
        (posttrain.StudentConfig, "gkd"),
        (posttrain.PreferenceTraining, "simpo"),
        (posttrain.OfflineConfig, "dapo"),
    ],
)
def test_a_config_is_that_of_an_algorithm(kind: Any, algorithm: str) -> None:
    """Built by a call it had the values of no algorithm, and failed when it was used."""
    given = {"correction": "truncate", "overlong": None, "resample": 0} if kind is posttrain.OfflineConfig else {}
    assert kind(algorithm=algorithm, seed=3, **given) == kind.preset(algorithm, seed=3, **given)
    with pytest.raises(ParamsError, match=rf"{kind.__name__}\.algorithm is missing\. Write {kind.__name__}\.preset\("):
        kind(seed=3)


def test_a_setting_that_only_an_algorithm_has_is_not_called_unknown() -> None:
    with pytest.raises(ParamsError, match=r"OnlineConfig\.algorithm is missing\. Write OnlineConfig\.preset\("):
        posttrain.OnlineConfig(kl="none")  # type: ignore[call-arg]


def short(rollouts: Any) -> list[float]:
    return [0.0 for _ in rollouts]


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (5, r"reward: it is 5, not a reward\. Give a function of rollouts"),
        (None, r"reward: there is no reward\. Give"),
        ("correct", r"reward: it is 'correct', not a reward\. Write \{\"correct\": 1\.0\}"),
        ([short, None], r"reward: it is a list\. Give a mapping of several: \{\"short\": short\}"),
        ([None], r"reward: it is a list\. Give a mapping of several: \{\"NAME\": NAME\}"),
        ({"short": None}, r"reward\.short: it is None\. Give a function"),
        ({"short": (short, None)}, r"reward\.short: its weight is None\. Give a number"),
        ({"short": (short, "1")}, r"reward\.short: its weight is '1'\. Give a number"),
        ({"short": (None, 1.0)}, r"reward\.short: it is \(None, 1\.0\)"),
    ],
)
def test_what_is_no_reward_is_named(model: tuple[Any, Any], reward: Any, said: str) -> None:
    for call in (posttrain.train_online, posttrain.evaluate_model):
        with pytest.raises(ParamsError, match=said):
            call(*model, ["1"], reward)


@pytest.mark.parametrize("name", ["question", "query", "problem", "messages", "promt"])
def test_a_renamed_column_of_prompts_is_named(model: tuple[Any, Any], name: str) -> None:
    with pytest.raises(DataError, match=rf"prompts\[1\]: 'prompt' is missing.* Rename '{name}' to 'prompt'\."):
        posttrain.train_online(*model, ["1", {name: "1", "answer": "2"}], short)


@pytest.mark.parametrize(
    ("row", "algorithm", "said"),
    [
        ({"question": "a", "answer": "b"}, "sft", "Rename 'question' to 'prompt'. Rename 'answer' to 'completion'."),
        ({"prompt": "a", "response": "b"}, "sft", "Rename 'response' to 'completion'."),
        ({"conversation": []}, "sft", "Rename 'conversation' to 'messages'."),
        ({"prompt": "a", "good": "b", "bad": "c"}, "dpo", "Rename 'good' to 'chosen'. Rename 'bad' to 'rejected'."),
        ({"prompt": "a", "response": "b", "label": True}, "kto", "Rename 'response' to 'completion'."),
        (5, "sft", "rows[0]: it is a number, not a row."),
        (None, "dpo", "rows[0]: it is missing or null, not a row."),
    ],
)
def test_a_renamed_column_of_rows_is_named(model: tuple[Any, Any], row: Any, algorithm: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        posttrain.train_model(*model, [row], algorithm)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "this is None"),
        (5, "this is of the type int"),
        ({"prompt": "a"}, r"this is one row.* Write \[\{'prompt': 'a'\}\]"),
        ({"train": ROWS}, r"these are several splits\. Give (rows|prompts)\[\"train\"\]"),
        ((row for row in ROWS), "this is of the type generator"),
        (pl.DataFrame(ROWS), r"this is a polars table\. Give (rows|prompts)\.to_dicts\(\)"),
    ],
)
def test_what_is_no_list_is_named(model: tuple[Any, Any], given: Any, said: str) -> None:
    scorer = posttrain.reward_model(model[0])
    for call in (
        lambda: posttrain.train_model(*model, given),
        lambda: posttrain.train_online(*model, given, short),
        lambda: posttrain.score(scorer, model[1], given),
    ):
        with pytest.raises(DataError, match=said):
            call()


@pytest.mark.parametrize("given", [5, [5], [{"prompt": "a"}]])
def test_what_is_no_prompt_of_sample_is_named(model: tuple[Any, Any], given: Any) -> None:
    with pytest.raises(DataError, match=r"prompts(\[0\])?: "):
        posttrain.sample(*model, given)


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("nope", r" = 'nope': the folder does not exist in /.*Give the folder with its config\.json"),
        ("Qwen/Qwen3-0.6B", r"For a Hub model, give huggingface_hub\.snapshot_download\(\"Qwen/Qwen3-0\.6B\"\)"),
        (None, r"it is None, not a folder"),
        (5, r"it is of the type int, not a folder"),
        ("pyproject.toml", r"this is a file, not the folder of a model"),
        ("tests", r"tests: there is no config\.json\. Give the folder of a model"),
    ],
)
def test_a_missing_folder_is_named_with_its_argument(
    model: tuple[Any, Any], folder: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    learned = {"reward": {"model": 1.0}, "settings": {"canaries": 0}}
    calls = {
        "path": lambda: posttrain.load_model(folder),
        "folder": lambda: posttrain.load_models(folder, posttrain.SftConfig()),
        "path, of a scorer": lambda: posttrain.load_reward_model(folder),
    }
    if folder is not None:  # None: the setting `served` has an endpoint
        calls["teacher"] = lambda: posttrain.distill(*model, folder, ["1"])
    if folder is not None and folder != "tests":
        calls["reward_model"] = lambda: posttrain.train_online(*model, ["1"], reward_model=folder, **learned)
    for argument, call in calls.items():
        with pytest.raises(posttrain.PosttrainError, match=said) as caught:
            call()
        assert "stage" not in str(caught.value)
        assert folder == "tests" or str(caught.value).startswith(argument.partition(",")[0])


def test_a_reward_model_that_no_reward_reads_is_refused(model: tuple[Any, Any], tmp_path: Path) -> None:
    for folder in (tmp_path, "nope"):
        with pytest.raises(ParamsError, match=r"reward_model: no reward uses it; the rewards are short\. Add"):
            posttrain.train_online(*model, ["1"], short, reward_model=folder)


def test_models_need_a_config() -> None:
    with pytest.raises(ParamsError, match=r"config: it is of the type dict, not a config"):
        posttrain.load_models("nope", {"epochs": 1})  # type: ignore[arg-type]
