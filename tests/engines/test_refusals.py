"""Settings that an engine, or samples of earlier weights, cannot serve are refused before any training."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.online.distill_runs import DISTILL
from posttrain.online.runs import ONLINE, PolicyRun
from posttrain.params.params import check, merge

BASE: dict[str, Any] = {
    "start": "sft/main", "data": "mine/prompts", "corpus": "none", "reward_model": "none",
    "rollout": {"engine": "vllm"}, "correction": "truncate",
}  # fmt: skip


def settings(algorithm: str, **over: Any) -> Any:
    given, row = merge({**BASE, "algorithm": algorithm}, over), {**ONLINE, **DISTILL}[algorithm]
    if row.model is not PolicyRun:
        del given["correction"]
    if algorithm in DISTILL:
        del given["corpus"]
        given |= {"teacher": "base/other", "demonstrations": "mine/chat" if over.get("own", 1) < 1 else "none"}
    return check(row.model, row.row.merged(given), where=f"online.runs.{algorithm}")


@pytest.mark.parametrize(
    "algorithm", ["grpo", "ppo", "dapo", "rloo", "gspo", "reinforce", "online_dpo", "raft", "reverse_kl"]
)
@pytest.mark.parametrize("rollout", [{}, {"ahead": 1}, {"engine": "builtin", "ahead": 1}])
def test_most_algorithms_take_samples_of_an_engine(algorithm: str, rollout: dict[str, Any]) -> None:
    assert settings(algorithm, rollout=rollout).rollout.foreign


@pytest.mark.parametrize(
    ("algorithm", "over", "said"),
    [
        ("grpo", {"correction": "none"}, r"online\.runs\.grpo\.correction = none: .*Set correction: {type: truncate}"),
        (
            "grpo",
            {"sampling": {"rows": 8}},
            r"online\.runs\.grpo\.sampling: unknown key\. Did you mean 'rollout\.sampling'\?",
        ),
        ("grpo", {"correction": "none", "rollout": {"engine": "builtin", "ahead": 1}}, "Set correction"),
        ("grpo", {"rollout": {"sampling": {"top_p": 0.9}}, "allow_unsupported": True}, r"top_p = 0\.9.*engine builtin"),
        ("grpo", {"rollout": {"sampling": {"top_k": 5}}, "allow_unsupported": True}, "top_k = 5.*engine builtin"),
        ("grpo", {"adapter": "lora"}, "adapter: lora.*engine builtin"),
        ("nash_md", {}, "a mixture of two models.*engine builtin"),
        ("gkd", {"own": 0.5, "rollout": {"ahead": 1}}, "skips rounds, .* Use ahead 0"),
        ("grpo", {"rollout": {"engine": "sglang"}}, "engine"),
        ("grpo", {"rollout": {"ahead": 2}}, "ahead"),
    ],
)
def test_what_cannot_be_is_refused(algorithm: str, over: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError, match=said):
        settings(algorithm, **over)
