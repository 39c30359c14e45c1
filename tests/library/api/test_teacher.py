"""`posttrain.distill`: a student comes closer to its teacher, on prompts and answers that it was not shown too."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain
from posttrain.api.teacher import _config, _examples, _named
from posttrain.errors import ModelError, ParamsError
from posttrain.formulas.distill import forward_kl
from posttrain.models.files.store import load_policy
from posttrain.models.files.text import load_text
from posttrain.rollout import TokenRow
from posttrain.train.batch_sources import Example
from posttrain.train.model_set import Teacher
from tests.library.models.tiny import tiny_folder

PROMPTS = [f"{number}+1" for number in range(8)]
ROWS = [{"prompt": f"{number}+1", "completion": str(number + 1)} for number in range(16)]
SETTINGS: dict[str, Any] = {
    "rollout": {"rounds": 6, "prompts": 4, "group_size": 4, "sampling": {"max_tokens": 8}},
    "optimizer": {"lr": 3e-3}, "canaries": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("distilled")
    return tiny_folder(place / "student", seed=0), tiny_folder(place / "teacher", seed=7)


def divergence(student: Any, teacher: Any, tokenizer: Any) -> float:
    """KL(teacher || student) over texts that no training has."""
    texts = [tokenizer(f"{number} and {number}", return_tensors="pt").input_ids for number in range(40, 48)]
    with torch.no_grad():
        both = [(model(ids).logits.log_softmax(-1) for model in (teacher, student)) for ids in texts]
        return float(sum((p.exp() * (p - q)).sum(-1).mean() for p, q in both) / len(texts))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("algorithm", ["reverse_kl", "gkd", "distill"])
def test_a_student_comes_closer_to_its_teacher(folders: tuple[Path, Path], algorithm: str, seed: int) -> None:
    (student, tokenizer), (teacher, _) = (posttrain.load_model(folder) for folder in folders)
    before = divergence(student, teacher, tokenizer)
    frozen = copy.deepcopy(teacher.state_dict())
    given = {} if algorithm == "reverse_kl" else {"demonstrations": ROWS}
    trained = posttrain.distill(student, tokenizer, teacher, PROMPTS, algorithm, settings=SETTINGS, seed=seed, **given)  # type: ignore[arg-type]
    assert trained[-1]["teacher_kl"] < trained[0]["teacher_kl"]
    assert divergence(student, teacher, tokenizer) < before
    assert all(torch.equal(part, frozen[name]) for name, part in teacher.state_dict().items())


def test_a_policy_learns_from_its_reward_and_a_teacher(folders: tuple[Path, Path], tmp_path: Path) -> None:
    student, tokenizer = posttrain.load_model(folders[0])

    def short(rollouts: Any) -> list[float]:
        return [-float(len(one.text)) for one in rollouts]

    trained = posttrain.distill(
        student, tokenizer, folders[1], PROMPTS, "grpo", reward=short, settings=SETTINGS, output=tmp_path
    )
    assert {"teacher_kl", "reward_short"} <= trained[0].keys() and (tmp_path / "model").is_dir()


def test_models_of_a_folder_have_a_teacher(folders: tuple[Path, Path]) -> None:
    config = posttrain.StudentConfig.preset("reverse_kl", **SETTINGS)
    trained = posttrain.distill(posttrain.load_models(folders[0], config), None, folders[1], PROMPTS, config=config)
    assert trained[-1]["teacher_kl"] < trained[0]["teacher_kl"]


def test_what_cannot_be_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    student, tokenizer = posttrain.load_model(folders[0])
    with pytest.raises(ParamsError, match=r"demonstrations: own = 0\.5 also trains on given answers"):
        posttrain.distill(student, tokenizer, folders[1], PROMPTS, "gkd", settings=SETTINGS)
    with pytest.raises(ParamsError, match="'sft' is unknown"):
        posttrain.distill(student, tokenizer, folders[1], PROMPTS, "sft")
    with pytest.raises(ParamsError, match="no teacher is given"):
        posttrain.distill(student, tokenizer, None, PROMPTS, settings=SETTINGS)
    with pytest.raises(ModelError, match=r"teacher\.small: it is of the type int"):
        posttrain.distill(student, tokenizer, {"small": 3}, PROMPTS, settings=SETTINGS)
    weighed = {**SETTINGS, "weights": {"other": 1.0}}
    with pytest.raises(ParamsError, match=r"settings\.weights has other, but the teachers are small"):
        posttrain.distill(student, tokenizer, {"small": folders[1]}, PROMPTS, settings=weighed)
    teacher, _ = posttrain.load_model(folders[1])
    teacher.resize_token_embeddings(teacher.config.vocab_size + 8)
    with pytest.raises(ParamsError, match="so their distributions cannot be compared"):
        posttrain.distill(student, tokenizer, teacher, PROMPTS, settings=SETTINGS)


def test_a_teacher_reads_a_context_that_the_student_does_not(folders: tuple[Path, Path]) -> None:
    student, tokenizer = posttrain.load_model(folders[0])
    rows = [{"prompt": prompt, "answer": str(number + 1)} for number, prompt in enumerate(PROMPTS)]
    given = {**SETTINGS, "context": "It is {answer}."}
    trained = posttrain.distill(student, tokenizer, folders[0], rows, "context_distill", settings=given)
    assert trained[0]["teacher_kl"] > 1e-6, "the same weights with other prompts"
    assert trained[-1]["teacher_kl"] < trained[0]["teacher_kl"]


def test_several_teachers_share_the_divergence(folders: tuple[Path, Path]) -> None:
    def first(weights: dict[str, float]) -> float:
        student, tokenizer = posttrain.load_model(folders[0])
        both: dict[str, Any] = {"same": folders[0], "other": posttrain.load_model(folders[1])[0]}
        given = {**SETTINGS, "weights": weights}
        return posttrain.distill(student, tokenizer, both, PROMPTS, settings=given)[0]["teacher_kl"]

    little, much = first({"same": 9.0, "other": 1.0}), first({"same": 1.0, "other": 9.0})
    assert 0 < little < much


def test_a_changed_teacher_does_not_resume_the_checkpoints_of_another(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """A killed call resumes by its arguments: the files of a teacher's folder are among them."""
    teacher, output = tmp_path / "teacher", tmp_path / "output"
    shutil.copytree(folders[1], teacher)
    student, tokenizer = posttrain.load_model(folders[0])
    settings = {**SETTINGS, "checkpoint_every": 1}
    posttrain.distill(student, tokenizer, teacher, PROMPTS, settings=settings, output=output)
    before = {path.name for path in (output / "checkpoints").iterdir()}
    shutil.rmtree(teacher)
    shutil.copytree(tiny_folder(tmp_path / "new", seed=8), teacher)
    student, tokenizer = posttrain.load_model(folders[0])
    posttrain.distill(student, tokenizer, teacher, PROMPTS, settings=settings, output=output)
    assert {path.name for path in (output / "checkpoints").iterdir()} != before


def test_examples_of_demonstrations(folders: tuple[Path, Path]) -> None:
    text = load_text(folders[0])
    (read,) = _examples(text, ROWS[:1])
    assert len(read.rows) == 1 and _examples(text, []) == []
    given = [Example([TokenRow([1], [2])])]
    assert _examples(text, given) is given


def test_teachers_by_name(folders: tuple[Path, Path]) -> None:
    config = posttrain.StudentConfig.preset("reverse_kl")
    model = posttrain.load_model(folders[1])[0]
    assert _named(folders[1], None, config) == {"teacher": folders[1]}
    assert _named({"a": model, "b": str(folders[1])}, None, config) == {"a": model, "b": folders[1]}
    models = posttrain.load_models(folders[0], config, teachers=[Teacher(model, forward_kl)])
    assert _named(None, models, config) == {}
    with pytest.raises(ParamsError, match="the models from load_models already have teachers"):
        _named(model, models, config)
    with pytest.raises(ParamsError, match="it contains no teachers"):
        _named({}, None, config)


def test_the_config_is_given_or_made() -> None:
    own = posttrain.StudentConfig.preset("gkd")
    assert _config(own, "reverse_kl", None, None, 0) is own
    made = _config(None, "gkd", {"format": 1.0}, {"own": 0.25}, 7)
    assert (made.algorithm, made.seed, made.own, [*made.reward]) == ("gkd", 7, 0.25, ["format"])  # type: ignore[attr-defined]


def test_the_teachers_of_the_models_teach_once(folders: tuple[Path, Path]) -> None:
    """Given to the call or to `load_models`, the first divergence is the same, and it is that of one teacher."""
    settings = {**SETTINGS, "rollout": {**SETTINGS["rollout"], "rounds": 1}}
    config = posttrain.StudentConfig.preset("reverse_kl", **settings)
    teacher = posttrain.load_model(folders[1])[0]
    given = posttrain.distill(posttrain.load_models(folders[0], config), None, teacher, PROMPTS, config=config)
    assert isinstance(given, posttrain.Trained) and len(given.models.teachers) == 1 and len(given) == 2
    (own,) = given.models.teachers
    frozen = replace(own, model=load_policy(folders[1]))
    models = posttrain.load_models(folders[0], config, teachers=[frozen])
    loaded = posttrain.distill(models, None, None, PROMPTS, config=config)
    assert len(loaded.models.teachers) == 1 and loaded[0]["teacher_kl"] == pytest.approx(given[0]["teacher_kl"])
