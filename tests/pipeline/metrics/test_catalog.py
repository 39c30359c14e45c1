"""The catalogue: its lookup, its verdicts, and the places that show it."""

from __future__ import annotations

import re

import pytest

from docs.make.metrics import PAGE, page
from posttrain.errors import ParamsError
from posttrain.pipeline.commands.line import parse, run
from posttrain.pipeline.commands.params.stored import stored
from posttrain.pipeline.metrics.catalog import METRICS, about, health, listed, metric_named, parts, texts, worries


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("online", "expert_load_min"),
        ("sft", "balance_loss"),
        ("online", "router_moved"),
        ("online", "judge_cost"),
        ("evaluate", "judge_tokens_in"),
        ("online", "trust_kl"),
        ("online", "step_share"),
        ("online", "sampling_rounds"),
        ("online", "groups_kept"),
        ("online", "sampler_kl"),
        ("online", "reward_a_failed"),
        ("online", "heldout_reward_a_low"),
        ("preference", "heldout_both_fell"),
        ("evaluate", "best_of_8_by_model"),
        ("evaluate", "reward_format_low"),
        ("evaluate", "score_two_step"),
        ("ratings", "rating_grpo"),
        ("ratings", "first_slot_low"),
    ],
)
def test_rare_metrics_have_an_entry(stage: str, name: str) -> None:
    assert about(stage, name)


def test_a_stage_has_its_own_text() -> None:
    assert "does not measure progress" in about("online", "loss") and "cross-entropy" in about("sft", "loss")
    assert about("reward", "accuracy") != about("preference", "accuracy")
    assert about("online", "reward_my:own_std").startswith("Standard deviation of one part")
    assert about("online", "unheard_of") == "" and about("external", "loss") == ""
    assert metric_named("online", "reward_std") is not metric_named("online", "reward_a_std")


def test_one_text_per_metric_of_the_page() -> None:
    said = texts(
        [
            {"path": "sft/a", "columns": {"loss": [], "lr": []}},
            {"path": "base/b", "columns": {"loss": []}},
            {"path": "online/c", "columns": {"loss": [], "lr": [], "mine": []}},
        ]
    )
    assert said["lr"] == "Learning rate of this step."
    assert said["loss"].startswith("In sft and base: mean cross-entropy") and " In online: value of " in said["loss"]
    assert "mine" not in said


def test_every_kind_of_training_gets_a_verdict() -> None:
    memorised = [1.0] * 50 + [0.001] * 50
    found = health(
        [
            {"label": "s", "path": "sft/s", "columns": {"loss": memorised}},
            {"label": "d", "path": "preference/d", "columns": {"accuracy": [0.5] * 90 + [0.3] * 10}},
            {"label": "r", "path": "reward/r", "columns": {"accuracy": [0.9] * 100}},
            {"label": "o", "path": "online/o", "columns": {"reward": [1.0] * 50 + [0.0] * 50}},
            {"label": "x", "path": "external/x", "columns": {"loss": memorised}},
        ]
    )
    assert {label: len(said) for label, said in found.items()} == {"s": 1, "d": 1, "r": 0, "o": 1}
    assert found["s"][0].startswith("loss 0.001 is below 0.01: far below heldout_loss, or with steps down")
    assert found["o"][0].startswith("reward fell from 1 to 0: if it stays flat")


def test_a_healthy_miniature_has_no_warnings_about_its_losses() -> None:
    assert worries("online", {"loss": [0.1] * 50 + [-5.0] * 50}) == [], "a policy's loss has no healthy range"


def test_every_entry_is_on_the_page_and_in_the_command() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m docs.make.metrics`"
    assert sum(map(len, parts().values())) == len(METRICS)
    said = run(parse(["params", "metrics"]))
    assert all(name in said for entry in METRICS for name in entry.names)


def test_one_metric_or_stage_can_be_asked_for() -> None:
    assert run(parse(["params", "metrics", "ratio_ess"])).splitlines()[0] == "ratio_ess  (online)"
    assert listed("distill").splitlines()[0] != listed("reward").splitlines()[0]
    with pytest.raises(ParamsError, match=r"'ratio_es'.*Did you mean 'ratio_ess'"):
        listed("ratio_es")
    with pytest.raises(ParamsError, match="Only `posttrain params metrics` takes a second name"):
        run(parse(["params", "online", "ratio_ess"]))


def test_settings_that_texts_name_exist() -> None:
    lines = [line for text in stored()["sections"].values() for line in text.splitlines()[1:]]
    keys = {part for line in lines for part in line.split(":")[0].split()}
    known = keys | {".".join(key.split(".")[:end]) for key in keys for end in range(1, key.count(".") + 1)}
    metrics = {name for entry in METRICS for name in entry.names}
    named = {
        span.partition(":")[0]
        for entry in METRICS
        for span in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+(?:: [^`]*)?)`", f"{entry.meaning} {entry.healthy} {entry.fix}")
    }
    assert len(named) > 10
    unknown = {name for name in named if name not in known | metrics and not name.endswith((".md", ".csv"))}
    assert not unknown, "settings that do not exist"
