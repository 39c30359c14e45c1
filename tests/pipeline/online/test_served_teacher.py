"""A teacher behind an endpoint: with all its tokens it teaches what the model itself does, with some of them too."""

from __future__ import annotations

import operator
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml
from torch.testing import assert_close

from benchmarks.faults.processes import Server
from posttrain.algorithms.distill.reverse_kl import reverse_kl
from posttrain.data.columns import with_ids
from posttrain.errors import ModelError, ParamsError
from posttrain.formulas.distill import Divergence, forward_kl, log_probs
from posttrain.isolation.library import library_environment
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy, load_tokenizer
from posttrain.models.forward.forward import packed_states
from posttrain.models.forward.logp import head_of
from posttrain.online.served_teacher import ServedTeacher, TeacherServer
from posttrain.pipeline.tables.store import write_table
from posttrain.rollout import TokenRow
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.packing import pack
from posttrain.train.model_set import ModelSet, Teacher
from posttrain.train.step import make_batch
from tests.faults.test_security import found_in
from tests.library.models.tiny import tiny_folder, tiny_model
from tests.pipeline.serve.served import Served
from tests.workspace import Finished, environment

RUNTIME = Runtime(DeviceParams(device="cpu", threads=1))
NEEDS = frozenset({"teacher_kl"})
KEY = "a-secret-of-the-test"
ROWS = [TokenRow([5, 6, 7], [8, 9, 10, 11]), TokenRow([5, 6, 7], [20, 21, 22], [True, False, True])]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a student and of a teacher with other weights."""
    return tuple(tiny_folder(tmp_path_factory.mktemp(f"seed{seed}"), seed) for seed in (0, 1))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Served]]:
    """The servers that the tests here have started, which end with the last test."""
    started: list[Served] = []
    yield started
    for served in started:
        served.process.kill()
        served.process.wait()


@pytest.fixture
def teacher(
    models: tuple[Path, Path],
    servers: list[Served],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Served:
    """The teacher, served: by the server of the test before, unless that test has killed it."""
    monkeypatch.setenv("TEACHER_KEY", KEY)
    if not servers or servers[-1].process.poll() is not None:
        servers.append(Served(models[1], tmp_path_factory.mktemp("cache"), POSTTRAIN_SERVE_KEY=KEY))
    return servers[-1]


def asks(served: Served, model: Path, top: int, **settings: Any) -> ServedTeacher:
    """What asks the served teacher."""
    params = TeacherServer(url=served.url, model=str(model), key="TEACHER_KEY", top=top, **settings)
    return ServedTeacher(params, "distill.runs.x", load_tokenizer(model), "sft/main")


def test_its_log_probs_are_those_of_a_forward_pass(models: tuple[Path, Path], teacher: Served) -> None:
    ids, logps = asks(teacher, models[1], 7)(ROWS)
    model, packed = load_policy(models[1]), pack(ROWS)
    with torch.no_grad():
        states = packed_states(model, packed)[packed.source_M]
        expected, best = log_probs(head_of(model).logits(states), 1.0).topk(7)
    assert ids.tolist() == best.tolist() and len(ids) == 6  # the masked token has no row
    assert_close(logps, expected, atol=1e-5, rtol=1e-5)


def test_another_tokenizer_is_refused(models: tuple[Path, Path], teacher: Served, tmp_path: Path) -> None:
    train_tokenizer(["zyx wvu tsr qpo nml"] * 9, BpeParams(vocabulary=290), tmp_path)
    asked = ServedTeacher(
        TeacherServer(url=teacher.url, model=str(models[1]), key="TEACHER_KEY", top=5), "distill.runs.x",
        load_tokenizer(tmp_path), "sft/main",
    )  # fmt: skip
    rows = [TokenRow([260, 261], list(range(262, 277)))]
    with pytest.raises(ParamsError, match="the teacher's tokenizer differs from that of sft/main"):
        asked(rows)


@pytest.mark.parametrize("top", [0, 279])
def test_an_endpoint_that_names_too_few_tokens_is_refused(top: int, models: tuple[Path, Path], teacher: Served) -> None:
    if top == 0:
        with pytest.raises(ValueError, match="greater than or equal to 1"):
            asks(teacher, models[1], top)
        return
    with pytest.raises(ParamsError, match=r"but served\.top = 279"):
        asks(teacher, models[1], top)(ROWS)


def test_one_that_is_down_ends_the_run_with_its_address(models: tuple[Path, Path], teacher: Served) -> None:
    asked = asks(teacher, models[1], 5, retries=1)
    asked(ROWS)
    teacher.end(signal.SIGKILL)
    with pytest.raises(ModelError, match="returned no log-probs") as error:
        asked(ROWS)
    assert teacher.url in str(error.value) and KEY not in str(error.value)


def divergence_of(student: Path, teachers: list[Teacher]) -> list[torch.Tensor]:
    """The divergence at each token of the rows from the teachers, and its sum's gradients."""
    policy = load_policy(student)
    found = ModelSet(policy, RUNTIME, teachers=teachers).forward(make_batch(ROWS), NEEDS).tokens["teacher_kl"]
    return [found.detach(), *torch.autograd.grad(found.sum(), [*policy.parameters()])]


@pytest.mark.parametrize("divergence", [forward_kl, reverse_kl])
def test_served_teachers_next_to_others_add_up_with_their_shares(
    models: tuple[Path, Path], teacher: Served, divergence: Divergence
) -> None:
    """Each has classes of its own; one that names all its tokens is the model itself."""
    every = len(load_tokenizer(models[1])) - 1
    local = Teacher(tiny_model(3, vocabulary=every + 1), divergence, share=0.6)
    few, all_of_them = (asks(teacher, models[1], top) for top in (5, every))
    here = Teacher(load_policy(models[1]), divergence, share=0.4)
    served = replace(here, model=None, served=all_of_them)
    expected, found = (divergence_of(models[0], [local, other]) for other in (here, served))
    assert_close(found, expected, rtol=1e-3, atol=1e-5)
    three = [local, replace(served, share=0.3), replace(served, served=few, share=0.1)]
    alone = [divergence_of(models[0], [replace(one, share=1.0)]) for one in three]
    parts = [[one.share * part for part in found] for one, found in zip(three, alone, strict=True)]
    assert_close(
        divergence_of(models[0], three), [sum(part) for part in zip(*parts, strict=True)], rtol=1e-3, atol=1e-5
    )
    assert bool((alone[2][0] <= alone[1][0] + 1e-6).all()) and bool((alone[2][0] < alone[1][0] - 1e-3).any())


def project(folder: Path, models: tuple[Path, Path], run: dict[str, Any]) -> Path:
    """A project with one distill run."""
    for name, model in zip(("student", "teacher"), models, strict=True):
        shutil.copytree(model, folder / f"models/base/{name}")
    rows = [
        {"split": split, "problem": f"{split}{n}", "prompt": [{"role": "user", "content": f"{n}+{len(split)}="}],
         "answer": "", "info": "{}", "task": ""}
        for split in ("train", "heldout", "test") for n in range(12)
    ]  # fmt: skip
    write_table(with_ids(pl.DataFrame(rows), "prompts"), folder / "data/mine/prompts.parquet", "prompts")
    settings = {
        "algorithm": "reverse_kl", "start": "base/student", "data": "mine/prompts", "demonstrations": "none",
        "reward_model": "none", "reward": {"length": {"weight": 1.0, "target": 5}}, "seed": 1,
        "rollout": {"rounds": 6, "prompts": 4, "group_size": 2, "minibatches": 1, "sampling": {"max_tokens": 8}},
        "optimizer": {"lr": 3e-3}, **run,
    }  # fmt: skip
    (folder / "params.yaml").write_text(yaml.safe_dump({"format": 2, "distill": {"runs": {"x": settings}}}))
    return folder


def train(folder: Path) -> Finished:
    """Run the stage."""
    paths = {"PYTHONPATH": library_environment()["PYTHONPATH"], "TEACHER_KEY": KEY}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "posttrain", "run", "distill", "x"], cwd=folder, text=True,
        env={**environment(), **paths}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    return Finished(done.args, done.returncode, done.stdout)


def curve(folder: Path) -> list[float]:
    """The divergence at each step."""
    return pl.read_csv(folder / "plots/distill/x.csv")["teacher_kl"].to_list()


def completions(folder: Path) -> list[Any]:
    """The samples of each step."""
    rows = pl.concat(map(pl.read_parquet, sorted((folder / "rollouts/distill/x").glob("part-*.parquet"))))
    return rows.group_by("round", maintain_order=True).agg("completion_ids")["completion_ids"].to_list()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_with_all_tokens_is_the_run_with_the_model(
    models: tuple[Path, Path], teacher: Served, tmp_path: Path
) -> None:
    size = len(load_tokenizer(models[1]))
    served = {"teacher": "none", "served": {"url": teacher.url, "model": str(models[1]), "key": "TEACHER_KEY"}}
    found, said = {}, {}
    for name, run in {
        "here": {"teacher": "base/teacher"},
        "all": {**served, "served": {**served["served"], "top": size - 1}},  # type: ignore[dict-item]
        "some": {**served, "served": {**served["served"], "top": 20}},  # type: ignore[dict-item]
        "both": {
            "teacher": "base/teacher",
            "weights": {"teacher": 2.0, "far": 1.0},
            "served": {"far": {**served["served"], "top": size - 1}},  # type: ignore[dict-item]
        },
    }.items():
        folder = project(tmp_path / name, models, run)
        done = train(folder)
        assert done.returncode == 0, done.stdout
        found[name], said[name] = curve(folder), completions(folder)
        assert KEY not in done.stdout and not found_in(folder, KEY)
    for name in ("all", "both"):  # until rounding leads to another token in a sample
        same = sum(1 for _ in takewhile(bool, map(operator.eq, said[name], said["here"])))
        assert same >= 3 and found[name][:same] == pytest.approx(found["here"][:same], rel=1e-3)
    assert found["some"][0] < found["here"][0]  # tokens that are one class cannot differ
    assert found["some"][-1] < 0.8 * found["some"][0] and found["here"][-1] < 0.8 * found["here"][0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_continues_after_its_teacher_was_away(
    models: tuple[Path, Path], tmp_path: Path, serve: Callable[..., Served]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    away = {"url": f"http://127.0.0.1:{port}/v1", "model": str(models[1]), "key": "TEACHER_KEY", "retries": 0}
    folder = project(tmp_path / "away", models, {"teacher": "none", "served": away})
    done = train(folder)
    assert done.returncode != 0 and "returned no log-probs (infrastructure:" in done.stdout, done.stdout
    assert "Traceback" not in done.stdout and not (folder / "models/distill/x").exists()
    os.environ.pop("TEACHER_KEY", None)
    here = serve(models[1], POSTTRAIN_SERVE_KEY=KEY)
    text = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(text.replace(away["url"], here.url))
    done = train(folder)
    assert done.returncode == 0, done.stdout


def test_settings_of_teachers_that_mean_nothing_are_refused(
    models: tuple[Path, Path], stage_server: Server, tmp_path: Path
) -> None:
    served = {"url": "http://127.0.0.1:1/v1", "model": "m"}
    for name, run, message in (
        ("twice", {"served": {"teacher": served}}, "served has a teacher with the name of a model, teacher"),
        ("unnamed", {"served": served, "weights": {"teacher": 1.0}}, "but the teachers are teacher, served. Give each"),
        ("none of them", {"served": {}}, "served"),
        ("none", {"teacher": "none"}, "no teacher is set"),
        ("warm", {"teacher": "none", "served": served, "temperature": 2.0}, "needs the logits of all tokens"),
    ):
        settings = {"teacher": "base/teacher", **run}
        ended = stage_server.run(project(tmp_path / name, models, settings), "distill x")
        assert ended.status != 0 and message in ended.output, ended.output
