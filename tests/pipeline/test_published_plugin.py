"""The distribution of docs/plugins.md: built, installed, trained with, changed, and removed again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml

from tests.workspace import ROOT, environment, make_workspace

SOURCE = ROOT / "examples/plugin"
PARAMS = {
    "format": 2,
    "seed": 0,
    "data": {
        "tasks": {
            "two_step": {
                "task": "two_step", "n_corpus": 60, "n_corpus_heldout": 10, "n_sft": 40, "n_sft_heldout": 10,
                "n_rl": 40, "n_heldout": 10, "n_test": 20, "operand_max": 9, "result_max": 9,
            }
        }
    },
    "base": {"scratch": {"tiny": {"data": "two_step/corpus", "steps": 2, "batch": 8, "shape": {"layers": 1}}}},
    "online": {
        "runs": {
            "grpo": {
                "algorithm": "grpo", "start": "base/tiny", "data": "two_step/prompts", "corpus": "none",
                "reward_model": "none", "reward": {"numbers_used": {"weight": 1.0, "most": 0.5}},
                "rollout": {"rounds": 2, "prompts": 4, "group_size": 4, "sampling": {"max_tokens": 12}},
            }
        }
    },
}  # fmt: skip


def pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, words)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def ran(folder: Path, site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python with the packages of this environment and of `site`."""
    env = {**environment(), "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_guide_shows_the_files_of_the_example() -> None:
    guide = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    for name in ("posttrain_numbers_used.py", "pyproject.toml"):
        assert f"\n{(SOURCE / name).read_text(encoding='utf-8')}```" in guide, name


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_published_reward_is_installed_trained_with_and_missed(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "wheels", source)
    [wheel] = (tmp_path / "wheels").iterdir()
    pip("install", "--no-deps", "--target", site, wheel)

    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS), encoding="utf-8")
    made = make_workspace(tmp_path / "made", tmp_path / "params.yaml")
    checked = ran(made, site, "posttrain", "check")
    assert checked.returncode == 0, checked.stderr
    assert "plugins of posttrain-numbers-used 0.1.0: rewards numbers_used" in checked.stdout
    assert "options of the reward numbers_used" in ran(made, site, "posttrain", "params", "online").stdout

    trained = ran(made, site, "dvc", "repro", "online@grpo")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    packages = json.loads((made / "code/online/grpo.json").read_text(encoding="utf-8"))["packages"]
    assert packages["posttrain-numbers-used"].startswith("0.1.0 sha256:")
    assert "posttrain-numbers-used" not in (made / "code/base_scratch/tiny.json").read_text(encoding="utf-8")
    curve = pl.read_csv(made / "plots/online/grpo.csv")
    shares, totals = curve["reward_numbers_used"].mean(), curve["reward"].mean()  # of rounds, and of steps
    assert shares > 0 and totals == pytest.approx(shares, abs=1e-4)
    record = json.loads((made / "records/online/grpo.json").read_text(encoding="utf-8"))
    assert record["code"]["packages"]["posttrain-numbers-used"] == packages["posttrain-numbers-used"]
    assert ran(made, site, "posttrain", "check").returncode == 0

    module = site / "posttrain_numbers_used.py"
    module.write_text(module.read_text(encoding="utf-8").replace("options.most, 1.0)", "options.most, 0.9)"))
    for words in (
        ("posttrain", "check"),
        ("posttrain", "run", "online", "grpo"),
        ("dvc", "repro", "-s", "-f", "online@grpo"),
    ):
        stopped = ran(made, site, *words)
        said = stopped.stdout + stopped.stderr
        assert stopped.returncode != 0 and "posttrain-numbers-used 0.1.0 sha256:" in said, (words, said)
        assert "Run `dvc repro -s -f code`" in said, (words, said)

    shutil.rmtree(site)
    line = "python -m pip install posttrain-numbers-used==0.1.0"
    for in_code in (True, False):  # code/ names the package, and then the record alone
        ran(made, site, "dvc", "checkout", "records/online/grpo.json")  # the stage that stopped has removed it
        missed = ran(made, site, "posttrain", "check")
        assert missed.returncode == 1 and line in missed.stderr
        assert line in ran(made, site, "posttrain", "status").stdout
        if in_code:
            kept = ran(made, site, "dvc", "repro", "-s", "-f", "code")
            assert kept.returncode != 0 and line in kept.stdout + kept.stderr
            (made / "code/online/grpo.json").unlink()
            assert ran(made, site, "dvc", "repro", "-s", "-f", "code").returncode == 0
