"""Canaries: before a run starts, its rewards score completions that are known to be right or wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from posttrain.errors import RewardError, excerpt
from posttrain.rewards.scorable import known_completions
from posttrain.rewards.score import RewardSum
from posttrain.rollout import FAILED, Prompt, Rollout, Score, TokenRow
from posttrain.settings.host import HOST

SHOWN = 3
"""The number of examples in the error."""


def check_canaries(reward: RewardSum, prompts: Sequence[Prompt], where: str) -> None:
    """Reject a reward that fails, or that scores a right completion below 1 or a wrong completion above 0."""
    for name in reward.terms:
        scored = list(_scored(reward, name, prompts))
        if failed := [(rollout, score) for rollout, _, score in scored if score.status in FAILED]:
            rollout, score = failed[0]
            what = f"the reward failed on {len(failed)} of {len(scored)} completions tried before the first "
            what += f"step{_status(score)}. The first is {excerpt(rollout.text, 100)} of prompt {rollout.prompt.id}"
            fix = f"{HOST.fix('reward', 'Fix the reward')} (docs/rewards.md#canaries)"
            raise RewardError(what=what, where=f"{where}.reward.{name}", fix=fix)
        faults = [
            f"{'a right' if right else 'a wrong'} completion of prompt {rollout.prompt.id} scores {score.value:g}"
            f"{_status(score)}: {excerpt(rollout.text, 100)}"
            for rollout, right, score in scored
            if (score.value < 1 if right else score.value > 0)
        ]
        if faults:
            what = f"{len(faults)} completions with a known score are scored wrong. {'; '.join(faults[:SHOWN])}"
            fix = "Correct these prompts or the options of the reward, or set canaries: 0 (docs/rewards.md#canaries)"
            raise RewardError(what=what, where=f"{where}.reward.{name}", fix=fix)


def _scored(reward: RewardSum, name: str, prompts: Sequence[Prompt]) -> Iterator[tuple[Rollout, bool, Score]]:
    """Yield known completions, whether they are right, and their scores, computed as in the run."""
    for prompt in prompts:
        examples = known_completions(name, reward.terms[name], prompt)
        rollouts = [_rollout(prompt, text) for text in (*examples.right, *examples.wrong)]
        rights = [True] * len(examples.right) + [False] * len(examples.wrong)
        if rollouts:
            yield from zip(rollouts, rights, reward.scores(name, prompt.task, rollouts), strict=True)


def _rollout(prompt: Prompt, text: str) -> Rollout:
    """Return a rollout of a text that no model wrote."""
    return Rollout(
        prompt, 0, TokenRow(prompt.ids, []), [], text, "stop", ({"role": "assistant", "content": text},), "canary"
    )


def _status(score: Score) -> str:
    return "" if score.status == "ok" else f" ({score.status}: {score.reason})"
