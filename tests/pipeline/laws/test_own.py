"""Surrogates and losses of the user's own: by import path, under the laws, with errors that say what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from docs.make.defects import DEFECTS, PAGE, errors, failed, load
from posttrain.errors import ParamsError
from posttrain.laws.laws import LAWS
from posttrain.laws.own import check_module, subjects, worst
from posttrain.laws.padded import PADDED_LAWS
from posttrain.pipeline.runs.online import ONLINE
from posttrain.pipeline.runs.preference import PREFERENCE
from posttrain.settings.params import check
from tests.workspace import ROOT, environment

HEAD = "import torch\nfrom posttrain.losses import Options, Surrogate\n"


def blocks(language: str) -> list[str]:
    """The code of docs/algorithms.md in one language."""
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    section = page.split("## Your own surrogate or loss")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "custom").mkdir()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file that is written twice in a second
    for name in ("my_losses", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.slow
def test_the_example_of_the_docs_works_as_it_stands(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,), (runs,) = blocks("python"), blocks("yaml")
    (place / "custom/my_losses.py").write_text(code)
    text = check_module("my_losses")
    assert "my_losses:soft" in text and "my_losses:hinge" in text
    assert "FAILS" not in text
    settings = YAML(typ="safe", pure=True).load(runs)
    soft = settings["online"]["runs"]["soft"]
    online = check(ONLINE["grpo"].model, ONLINE["grpo"].row.merged(soft), where="online.runs.soft")
    assert online.objective().surrogate.formula == "min((r - 1) A, width tanh((r - 1) / width) A)"
    assert online.surrogate.model_dump() == {"type": "my_losses:soft", "width": 0.3}
    hinge = settings["preference"]["runs"]["hinge"]
    preference = check(PREFERENCE["dpo"].model, PREFERENCE["dpo"].row.merged(hinge), where="preference.runs.hinge")
    assert preference.paired and preference.loss.model_dump() == {"type": "my_losses:hinge", "margin": 0.5}


def error_of(law: str, code: str) -> float:
    """By how much the one thing that a module defines misses a law; 0 where it does not apply."""
    Path("custom/broken.py").write_text(code)
    ((path, make),) = subjects("broken").items()
    return worst(LAWS[law], make, path) or 0.0


@pytest.mark.parametrize(
    ("item", "law"),
    [
        ("-tokens.ratio * tokens.advantage", "on-policy"),
        ("(tokens.ratio - 1).abs().sqrt() * tokens.advantage", "on-policy"),
        ("tokens.ratio * tokens.advantage.cumsum(0)", "order"),
        ("tokens.ratio * (tokens.advantage - tokens.advantage.mean())", "micro-batches"),
        ("tokens.ratio * tokens.advantage * tokens.lengths[0]", "tiles"),
        ("tokens.ratio * tokens.advantage + tokens.logp", "nothing to learn"),
        ("(tokens.logp - tokens.old_logp).exp().square() * tokens.advantage", "finite"),
        ("torch.max(tokens.ratio * tokens.advantage, tokens.ratio.clamp(0.8, 1.2) * tokens.advantage)", "clip side"),
        ("tokens.ratio.clamp(0.8, 1.2) * tokens.advantage", "clip side"),
        ("tokens.ratio * (tokens.ratio < 1.2) * (tokens.ratio > 0.8) * tokens.advantage", "clip side"),
        ("(-tokens.log_ratio).exp().detach() * tokens.advantage * tokens.logp", "importance"),
        ("tokens.ratio.square() * tokens.advantage / 2", "importance"),
        ("tokens.ratio.detach().clamp(min=1.2) / 1.2 * tokens.advantage * tokens.logp", "importance"),
    ],
)
def test_a_broken_surrogate_is_caught(item: str, law: str, place: Path) -> None:
    whole = f"{HEAD}own = Surrogate(Options, lambda tokens, _: tokens.ratio * tokens.advantage, 'r A')\n"
    assert error_of(law, whole) <= LAWS[law].tolerance
    sys.modules.pop("broken")
    broken = f"{HEAD}own = Surrogate(Options, lambda tokens, _: {item}, 'bad')\n"
    assert not error_of(law, broken) <= LAWS[law].tolerance


@pytest.mark.parametrize(
    ("loss", "law"),
    [
        ("h - l", "direction"),
        ("(l - h) * torch.sigmoid(9 * (h - l))", "direction"),
        ("(l - h) + h.sum()", "micro-batches"),
        ("-2 * h + l", "nothing to learn"),
    ],
)
def test_a_broken_preference_loss_is_caught(loss: str, law: str, place: Path) -> None:
    head = "import torch\nfrom posttrain.losses import Options, PairLoss\n"
    whole = f"{head}own = PairLoss(Options, lambda h, l, _: (1 - h + l).square(), 'square')\n"
    assert error_of(law, whole) <= LAWS[law].tolerance
    sys.modules.pop("broken")
    assert not error_of(law, f"{head}own = PairLoss(Options, lambda h, l, _: {loss}, 'bad')\n") <= LAWS[law].tolerance


@pytest.mark.slow
def test_the_command_prints_the_table_and_exits_1(place: Path) -> None:
    (place / "custom/broken.py").write_text(
        f"{HEAD}bad = Surrogate(Options, lambda t, _: -t.ratio * t.advantage, 'bad')\n"
    )
    command = [sys.executable, "-m", "posttrain", "laws", "broken"]
    done = subprocess.run(
        command, cwd=place, env={**environment(), "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "broken:bad" in done.stdout and "on-policy" in done.stdout
    assert done.stderr.startswith("error: broken.py: laws fail for 1 of 1 surrogates and losses: bad")


def test_each_loss_has_a_verdict_and_only_failing_laws_are_shown(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = "right = Surrogate(Options, lambda t, _: t.ratio * t.advantage, 'r A')\n"
    (place / "custom/my_losses.py").write_text(HEAD + right)
    assert check_module("my_losses") == "my_losses:right: right by 11 laws (2 do not apply)"
    assert check_module("my_losses", every=True).count("\n") == 13
    wrong = "wrong = Surrogate(Options, lambda t, _: -t.ratio * t.advantage, '-r A')\n"
    typo = "typo = Surrogate(Options, lambda t, _: t.ratios, 'r')\n"
    (place / "custom/broken.py").write_text(HEAD + right + wrong + typo)
    with pytest.raises(ParamsError, match="laws fail for 2 of 3 surrogates and losses: wrong, typo") as caught:
        check_module("broken")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "broken:right: right by 11 laws (2 do not apply)"
    assert lines[1].startswith("broken:wrong: WRONG, fails ") and lines[2].startswith("  on-policy  ")
    assert lines[-1].startswith("broken:typo: it cannot be computed (AttributeError: 'Tokens' object")
    losses = caught.value.document["losses"]
    assert [loss["is_wrong"] for loss in losses] == [False, True, True]  # type: ignore[index, attr-defined]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\n", "it defines no surrogate and no loss"),
        (
            f"{HEAD}bad = Surrogate(Options, lambda tokens, _: tokens.ratios, 'bad')\n",
            "AttributeError: 'Tokens' object",
        ),
        ("import nowhere_at_all\n", "cannot be imported (ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_held_against_the_laws_says_why(code: str, words: str, place: Path) -> None:
    (place / "custom/broken.py").write_text(code)
    with pytest.raises(ParamsError, match=re.escape(words)):
        check_module("broken")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:soft", "custom/nowhere.py not found"),
        ("broken:sof", "broken.py has no 'sof'. Did you mean 'soft'?"),
        ("broken:number", "'broken:number' is a int. It has to be a Surrogate"),
    ],
)
def test_a_run_that_names_what_is_not_there(name: str, words: str, place: Path) -> None:
    (place / "custom/broken.py").write_text(
        f"{HEAD}number = 1\nsoft = Surrogate(Options, lambda t, _: t.ratio, 'soft')\n"
    )
    with pytest.raises(ParamsError) as caught:
        check(ONLINE["grpo"].model, ONLINE["grpo"].row.merged({"surrogate": name}), where="online.runs.a")
    assert "online.runs.a.surrogate: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", DEFECTS)
def test_the_page_of_defects_is_current_and_each_is_caught_and_put_right(name: str) -> None:
    module = load(name)
    caught = failed(errors(module.wrong, name))
    assert caught and failed(errors(module.right, name)) == {}
    line = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if f"/{name}.py" in line)
    assert all(f"`{law}` ({error:.2g})" in line for law, error in caught.items()) and "all laws hold" in line


def test_a_loss_of_another_trainer_by_the_command(place: Path) -> None:
    shutil.copy(ROOT / "examples/laws/verl_critic.py", place / "custom/broken.py")
    with pytest.raises(ParamsError, match="laws fail for 1 of 2 surrogates and losses: wrong"):
        check_module("broken")


PADDED = """
from posttrain.losses import PaddedLoss

@PaddedLoss
def mine(batch):
    ratio = (batch.logp - batch.old_logp).exp()
    return ITEM
"""


@pytest.mark.parametrize(
    ("item", "law"),
    [
        ("-(ratio * batch.advantage * batch.mask).sum() / batch.mask.sum() / batch.micro_batches", "micro-batches"),
        ("-(ratio * batch.advantage * batch.mask).sum() / batch.step_tokens", "processes"),
        ("-(ratio * batch.advantage).sum() / batch.step_tokens * batch.ranks", "padding"),
        ("-(ratio[0] * batch.advantage[0] * batch.mask[0]).sum() * batch.ranks", "order"),
        ("(ratio * batch.advantage * batch.mask).sum() / batch.step_tokens * batch.ranks", "on-policy"),
        ("-(batch.logp * ratio * batch.advantage * batch.mask).sum() * batch.ranks", "on-policy"),
        ("-((ratio ** 2) / 2 * batch.advantage * batch.mask).sum() * batch.ranks", "importance"),
        ("-((ratio ** 3) * batch.advantage * batch.mask).sum() * batch.ranks", "finite"),
        ("-(ratio * (batch.advantage + 1) * batch.mask).sum() * batch.ranks", "nothing to learn"),
        ("((batch.value - batch.old_value).exp() * batch.mask).sum() * batch.ranks", "nothing to learn"),
    ],
)
def test_a_broken_padded_loss_is_caught(item: str, law: str, place: Path) -> None:
    (place / "custom/broken.py").write_text(PADDED.replace("ITEM", item))
    ((path, make),) = subjects("broken").items()
    error = worst(PADDED_LAWS[law], make, path)
    assert error is not None and not error <= PADDED_LAWS[law].tolerance


@pytest.mark.parametrize("item", ["ratio * batch.advantage", "3.0", "ratio.sum().detach()"])
def test_a_padded_loss_that_is_no_number_says_so(item: str, place: Path) -> None:
    (place / "custom/broken.py").write_text(PADDED.replace("ITEM", item))
    with pytest.raises(ParamsError, match="Return the number that the trainer calls backward on"):
        check_module("broken")
