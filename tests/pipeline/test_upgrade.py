"""A workspace of version 0.1 is upgraded: what changes is shown first, and nothing is lost."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from posttrain.errors import ModelError, ParamsError, TableError
from posttrain.models.store import load_model
from posttrain.params import read, read_yaml
from posttrain.sections import check_params, load_settings
from posttrain.tables.store import read_table, write_table
from posttrain.upgrade import upgrade
from posttrain.upgrade_params import upgraded
from tests.library.models import tiny_folder
from tests.tables.samples import table_of
from tests.workspace import ROOT, environment

OLD = Path(__file__).parent / "version_0_1"
OWN = """# My experiments.
prepare:
  source: given
  given:
    chat: {path: my/data/chat.jsonl, test_share: 0.05}  # demonstrations
    prompts: {path: my/data/prompts.jsonl, outside_workspace: true}
    corpus: {path: my/data/corpus.jsonl}
base:
  steps: 850  # enough
  model: my/model
# supervised
sft:
  objective: {aggregation: sequence_mean}
# pairs of the Hub
pairs: {source: given, given: {pairs: {hub: org/pairs, revision: abcdef6789012345678901234567890123456789}}}
reward: {demonstrations: 300}
preference:
  runs:
    dpo:
      algorithm: dpo
      start: sft
      beta: 0.2  # weak
      label_smoothing: 0.1
    liked: {algorithm: kto, desirable: 1.5}
online:
  runs:
    grpo: {algorithm: grpo, clip: {low: 0.1, high: 0.28}, kl: {beta: 0.02}}
    ppo: {algorithm: ppo, gamma: 0.99, reward: {model: 1.0}, start: preference/dpo}
    seq: {algorithm: grpo, ratio: sequence, clip: {low: 3.0e-4, high: 4.0e-4}}
    region: {algorithm: trpo, trpo: {delta: 0.02}}
    mine: {algorithm: reinforce, surrogate: unclipped, baseline_decay: 0.8, experimental: true,
      advantage: moving_average}
    text: {algorithm: grpo, ptx: 0.1}
    raft: {algorithm: raft, select: {rule: best}}
    far: {algorithm: grpo, kl: {place: reward_sequence, beta: 0.1}}
distill:
  runs:
    gkd: {algorithm: gkd, start: base, teacher: sft, beta: 0.3}
    grpo: {algorithm: reverse_kl, start: sft, teacher: preference/dpo}
evaluate: {prompts: 50, reference: base}
report: {title: mine}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as version 0.1 wrote it, without a format."""
    folder = tiny_folder(tmp_path_factory.mktemp("model"))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest.pop("posttrain_format") == 2
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def old(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What version 0.1 leaves: params.yaml, dvc.lock and outputs, models and tables among them."""
    monkeypatch.chdir(tmp_path)
    for name in ("params.yaml", "dvc.lock"):
        shutil.copyfile(OLD / name, name)
    for entry in read_yaml("dvc.lock")["stages"].values():
        for path in (Path(out["path"]) for out in entry["outs"]):
            if path.parts[0] == "models":
                shutil.copytree(model, path)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(str(path))
    pl.DataFrame({"text": ["1 + 1"]}).write_parquet("data/corpus.parquet")
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_an_upgrade_is_shown_first_and_backs_up_the_old_files(old: Path) -> None:
    before = contents(old)
    shown = upgrade("show")
    assert contents(old) == before
    for words in (
        "-prepare:",
        "+format: 2",
        "+    two_step:",
        "  models/sft",
        "7 runs are right",
        "posttrain upgrade --yes",
    ):
        assert words in shown, words
    assert "Written." in upgrade("write")
    assert contents(old / "version-0.1") == before
    assert set(contents(old)) == {"params.yaml", *(f"version-0.1/{name}" for name in before)}
    assert check_params().startswith("params.yaml: 7 runs are right")
    new, smoke = read(), read_yaml(ROOT / "recipes/smoke.yaml")
    del smoke["format"], smoke["seed"]
    assert "\n\n\n" not in Path("params.yaml").read_text()
    text = json.dumps(smoke).replace("base/tiny", "base/main").replace('"tiny"', '"main"')
    assert new == json.loads(text), "the same settings as the smoke recipe has now"
    assert upgrade("show") == "params.yaml has format 2: nothing to upgrade"
    load_model("version-0.1/models/sft")


def test_a_killed_upgrade_is_finished_by_the_next_one(old: Path) -> None:
    before = contents(old)
    (old / "version-0.1/models").mkdir(parents=True)
    shutil.copyfile("params.yaml", "version-0.1/params.yaml")
    Path("models/sft").rename("version-0.1/models/sft")
    assert "Written." in upgrade("write")
    assert contents(old / "version-0.1") == before


def test_the_settings_of_every_run_are_converted(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(OWN)
    Path("my/data").mkdir(parents=True)
    shutil.copytree(model, "my/model")
    for kind in ("chat", "prompts", "corpus"):
        Path(f"my/data/{kind}.jsonl").touch()
    shown = upgrade("write")
    assert "params.yaml: 17 runs are right" in shown, shown
    for comment in ("# My experiments.", "# demonstrations", "# weak"):
        assert comment in Path("params.yaml").read_text()
    for note in (
        "comment left out: # enough",
        "comment left out: # supervised",
        "comment left out: # pairs of the Hub",
        "report: left out, because it has no settings now: title",
        "base: left out, because a model of your own does not use it: steps",
        "online.runs.ppo: advantage.value_coef: 0.5 is version 0.1's default",
        "online.runs.far: kl.estimator: k3 is version 0.1's default",
    ):
        assert note in shown
    data = read()
    assert data["data"]["files"]["given"]["chat"] == {"path": "chat.jsonl", "test_share": 0.05}
    assert data["data"]["files"]["given"]["outside_workspace"] is True
    assert data["data"]["hub"]["hub"]["pairs"]["name"] == "org/pairs"
    assert data["base"] == {"folders": {"main": {"path": "my/model"}}}
    assert data["reward"]["runs"]["main"]["shown"] == 300
    assert data["preference"]["runs"]["liked"]["data"] == "hub/feedback"
    assert data["evaluate"]["settings"]["reference"] == "base/main"
    policies = data["evaluate"]["policies"]
    assert policies["online_grpo"] == "online/grpo" and policies["distill_grpo"] == "distill/grpo"
    runs = {name: load_settings("online.runs", name) for name in data["online"]["runs"]}
    assert (runs["grpo"].surrogate.low, runs["grpo"].surrogate.high, runs["grpo"].kl.beta) == (0.1, 0.28, 0.02)
    assert runs["grpo"].reward["correct"].options.after == "####"
    assert (runs["ppo"].advantage.gamma, runs["ppo"].advantage.value_coef) == (0.99, 0.5)
    assert (runs["ppo"].start, runs["ppo"].reward_model) == ("preference/dpo", "reward/main")
    assert (runs["seq"].surrogate.type, runs["seq"].surrogate.low) == ("gspo", 3e-4)
    assert (runs["region"].update.type, runs["region"].update.delta) == ("trpo", 0.02)
    assert (runs["mine"].surrogate.type, runs["mine"].advantage.decay) == ("importance", 0.8)
    assert (runs["text"].ptx, runs["text"].corpus) == (0.1, "given/corpus")
    assert (runs["far"].kl.type, runs["far"].kl.estimator) == ("reward_sequence", "k3")
    gkd = load_settings("distill.runs", "gkd")
    assert (gkd.divergence.type, gkd.divergence.beta, gkd.demonstrations) == ("jensen_shannon", 0.3, "given/chat")
    dpo = load_settings("preference.runs", "dpo")
    assert (dpo.loss.beta, dpo.loss.label_smoothing, dpo.start) == (0.2, 0.1, "sft/main")


def test_unknown_settings_are_reported_and_not_removed(old: Path) -> None:
    text = Path("params.yaml").read_text().replace("kl: {beta: 0.02}", "ratio: token, kl: {beta: 0.02}")
    Path("params.yaml").write_text(
        text.replace("      ratio: token, kl", "      ratio: token\n      kl") + "extra: {a: 1}\n"
    )
    shown = upgrade("write")
    assert "extra: unknown in version 0.1 too" in shown and "ratio: token has no place" in shown
    assert "For you to fix" in shown and "unknown section 'extra'" in shown
    assert read_yaml("params.yaml")["extra"] == {"a": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prepare: {source: two_step}\n", "python -m posttrain upgrade"),
        ("format: 1\n", "format = 1, of an earlier version. Run `python -m posttrain upgrade`"),
        ("format: 3\n", "made by a newer posttrain (format 3; this one reads formats up to 2)"),
        ("format: two\n", "format = 'two' is not a format version"),
    ],
)
def test_params_of_an_unknown_format_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(text)
    with pytest.raises(ParamsError) as caught:
        read()
    assert words in str(caught.value)


def test_tables_of_other_format_versions_are_refused_or_read(tmp_path: Path) -> None:
    file = tmp_path / "chat.parquet"
    write_table(table_of("chat"), file, "chat")
    metadata = pq.read_schema(file).metadata
    assert metadata[b"posttrain.format"] == b"2"
    arrow = pq.read_table(file)
    pq.write_table(arrow.replace_schema_metadata(None), file)
    assert read_table(file, "chat").equals(table_of("chat")), "without a format, and right"
    pq.write_table(arrow.drop_columns(["id"]).replace_schema_metadata(None), file)
    with pytest.raises(TableError, match=r"an earlier version of posttrain wrote it .* posttrain upgrade"):
        read_table(file, "chat")
    pq.write_table(arrow.replace_schema_metadata({"posttrain.format": "3"}), file)
    with pytest.raises(TableError, match="made by a newer posttrain"):
        read_table(file, "chat")


def test_a_model_of_a_newer_format_is_refused(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model/manifest.json").write_text('{"posttrain_format": 3}')
    with pytest.raises(ModelError, match="made by a newer posttrain"):
        load_model(tmp_path / "model")


def test_the_command_asks_for_yes(old: Path) -> None:
    import subprocess
    import sys

    env = environment() | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "posttrain", "upgrade"], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "Nothing is changed yet." in done.stdout, done.stderr


def test_renamed_keys_of_present_runs_move() -> None:
    old = YAML().load(
        "base: {scratch: {tiny: {shape: {spread: 0.02}}}}\nsft: {runs: {main: {device: {replay: true}}}}\n"
    )
    new, notes = upgraded(old)
    assert new["base"]["scratch"]["tiny"]["shape"] == {"init_std": 0.02} and notes == []
    assert new["sft"]["runs"]["main"]["device"] == {"cuda_graphs": True}


def test_the_cap_of_a_correction_becomes_a_choice() -> None:
    new, _ = upgraded(YAML().load("online: {runs: {a: {algorithm: grpo, correction: 2.0}}}"))
    assert new["online"]["runs"]["a"]["correction"] == {"type": "truncate", "high": 2.0}
