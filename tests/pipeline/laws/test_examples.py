"""Below a law that fails stands an example: a token or a pair, its inputs, what the loss gave and what was expected."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.laws.own import check_module
from tests.library.laws.test_wrong_losses import WRONG
from tests.pipeline.laws.test_own import HEAD, PADDED

PAIRS = "import torch\nfrom posttrain.losses import Options, PairLoss, UnaryLoss\n"


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "custom").mkdir()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "broken", raising=False)


def failing(code: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    """Return the examples in the document of the error, by law; each is printed below its law too."""
    Path("custom/broken.py").write_text(code)
    with pytest.raises(ParamsError) as caught:
        check_module("broken")
    printed = capsys.readouterr().out.splitlines()
    document = json.loads(json.dumps(caught.value.document, allow_nan=False))
    found = {law["law"]: law.get("example") for law in document["laws"] if law["holds"] is False}
    assert found and all(found.values()), "every law that fails has one"
    assert all("example" not in law for law in document["laws"] if law["holds"] is not False)
    for law in found:
        at = next(n for n, line in enumerate(printed) if line.startswith(f"  {law:17} FAILS"))
        assert printed[at + 1].startswith("    e.g. "), printed[at + 1]
    assert sum(line.startswith("    e.g. ") for line in printed) == len(found)
    return found


def surrogate(item: str) -> str:
    return f"{HEAD}bad = Surrogate(Options, lambda tokens, _: {item}, 'bad')\n"


def test_the_numbers_of_an_example_are_those_of_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    """A surrogate with the wrong sign: on policy its gradient is weight * advantage, which the inputs give."""
    example = failing(surrogate("-tokens.ratio * tokens.advantage"), capsys)["on-policy"]
    inputs = example["inputs"]
    assert isinstance(inputs, dict) and isinstance(example["place"], str)
    assert example["place"].startswith("row ") and ", token " in example["place"]
    assert example["quantity"] == "gradient by logp" and inputs["logp"] == inputs["old_logp"] and inputs["mask"] == 1
    assert example["found"] == pytest.approx(inputs["weight"] * inputs["advantage"])
    assert example["expected"] == pytest.approx(-inputs["weight"] * inputs["advantage"])
    assert example["found"] != 0


@pytest.mark.parametrize(
    "item",
    [
        "(tokens.ratio - 1).abs().sqrt() * tokens.advantage",
        "tokens.ratio * tokens.advantage.cumsum(0)",
        "tokens.ratio * (tokens.advantage - tokens.advantage.mean())",
        "tokens.ratio * tokens.advantage * tokens.lengths[0]",
        "tokens.ratio * tokens.advantage + tokens.logp",
        "(tokens.logp - tokens.old_logp).exp().square() * tokens.advantage",
        "torch.max(tokens.ratio * tokens.advantage, tokens.ratio.clamp(0.8, 1.2) * tokens.advantage)",
        "tokens.ratio * (tokens.ratio < 1.2) * (tokens.ratio > 0.8) * tokens.advantage",
        "(-tokens.log_ratio).exp().detach() * tokens.advantage * tokens.logp",
        "tokens.ratio.square() * tokens.advantage / 2",
        "tokens.ratio.detach().clamp(min=1.2) / 1.2 * tokens.advantage * tokens.logp",
    ],
)
def test_every_failing_law_of_a_surrogate_has_an_example(item: str, capsys: pytest.CaptureFixture[str]) -> None:
    failing(surrogate(item), capsys)


@pytest.mark.parametrize(
    ("code", "law", "place"),
    [
        ("own = PairLoss(Options, lambda h, l, _: h - l, 'bad')", "direction", "pair "),
        ("own = PairLoss(Options, lambda h, l, _: (l - h) + h.sum(), 'bad')", "micro-batches", "row "),
        ("own = PairLoss(Options, lambda h, l, _: -2 * h + l, 'bad')", "nothing to learn", "row "),
    ],
)
def test_a_pair_is_named(code: str, law: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = failing(f"{PAIRS}{code}\n", capsys)[law]
    assert str(example["place"]).startswith(place)
    wanted = example["expected"]
    assert example["found"] > 0 if wanted == "below 0" else example["found"] != wanted  # type: ignore[operator]


@pytest.mark.parametrize(
    "item",
    [
        "-(ratio * batch.advantage * batch.mask).sum() / batch.mask.sum() / batch.micro_batches",
        "-(ratio * batch.advantage).sum() / batch.step_tokens * batch.ranks",
        "(ratio * batch.advantage * batch.mask).sum() / batch.step_tokens * batch.ranks",
        "-((ratio ** 3) * batch.advantage * batch.mask).sum() * batch.ranks",
        "((batch.value - batch.old_value).exp() * batch.mask).sum() * batch.ranks",
    ],
)
def test_every_failing_law_of_a_padded_loss_has_an_example(item: str, capsys: pytest.CaptureFixture[str]) -> None:
    for example in failing(PADDED.replace("ITEM", item), capsys).values():
        assert example["found"] != example["expected"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_every_kind_of_mistake_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    head = "from posttrain.losses import PaddedLoss\nfrom tests.library.laws.test_wrong_losses import WRONG\n"
    failing(f"{head}own = PaddedLoss(WRONG[{name!r}][0])\n", capsys)
