"""The reward model as a reward, or one of several reward models (reward.sets)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from posttrain.errors import DataError, ModelError, RewardError
from posttrain.measure.progress import Progress
from posttrain.models.device import Runtime
from posttrain.models.files.adapter_files import config_file
from posttrain.models.files.loading import WHOLE_TEXT
from posttrain.models.files.store import load_model
from posttrain.models.files.text import load_text
from posttrain.models.forward.forward import score_rows
from posttrain.models.master_weights import frozen_on
from posttrain.rewards.learned_options import LearnedOptions, shown
from posttrain.rewards.reward import Context, Reward, ScoreFn
from posttrain.rewards.steps import REDUCE, Reduce, step_ends, steps_of
from posttrain.rollout import Rollout, Score, TokenRow
from posttrain.text.chat import ChatText
from posttrain.text.chat_template import Conversation
from posttrain.text.packing import micro_batches, pack

ROWS = 1024
"""Table rows that are tokenized at a time."""


AS_TRAINED = LearnedOptions(truncated="score", hide=None)
"""Score the whole text of every completion, as the training of reward models does."""


class ModelOptions(LearnedOptions):
    """The choice of the reward model, and how it scores steps."""

    part: str | None = Field(None, description="the name of a model in a set (reward.sets); null: the only model")
    steps: Reduce | None = Field(
        None, description="score a completion after each step, and take the min, mean, sum or last of these scores"
    )
    separator: str = Field("\n", min_length=1, description="with `steps`: the separator of steps")


class RewardModel:
    """Scores completions with the scalar head of a model folder; demonstrations score 0 on average.

    It reads the policy's tokens if its tokenizer and template are the same. Otherwise it encodes the conversation with
    its own template and tokenizer: up to the end of the answer if it was trained with posttrain, else completely.
    Without a policy it reads conversations.
    """

    def __init__(
        self,
        path: Path,
        runtime: Runtime,
        policy: ChatText | None,
        micro_tokens: int = 16_384,
        options: LearnedOptions = AS_TRAINED,
    ) -> None:
        """`options.truncated`: a number means that a completion that was cut off is scored as if it had ended."""
        self._model = frozen_on(load_model(path), runtime)
        config = self._model.config
        self._shift = getattr(config, "reward_shift", 0.0)
        if not type(self._model).__name__.endswith("ForSequenceClassification"):
            fix = "Run the stage `reward`, or give a model whose architecture ends in ForSequenceClassification"
            raise ModelError(what=f"{type(self._model).__name__} is not a reward model", where=str(path), fix=fix)
        if not isinstance(self._shift, int | float) or not math.isfinite(self._shift):
            what, where = f"reward_shift = {self._shift!r:.40} is not a number", str(path / "config.json")
            raise ModelError(what=what, where=where, fix="Give the mean score of demonstrations, or remove it")
        self._runtime, self._budget, self._path = runtime, micro_tokens, path
        self._text = load_text(path) if policy is None else load_text(path, policy.today)
        self._padding, self._policy = config.get_text_config().pad_token_id, policy
        self._variables = {} if policy is None else policy.variables
        self._whole = bool(getattr(config, WHOLE_TEXT, False))
        self._same = policy is not None and not self._whole and self._text.same_as(policy)
        self._hide, self._ends = options.hide, options.most_if_cut is not None

    @torch.no_grad()
    def __call__(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Return the score of each rollout at its last token."""
        seen = [shown(rollout, self._hide, self._policy) for rollout in rollouts]
        same = [self._same and len(one.row) > 0 and not (one.truncated and self._ends) for one in seen]
        encoded = iter(self._own_rows([one for one, known in zip(seen, same, strict=True) if not known]))
        return self._scores(
            rollouts, [one.row if known else next(encoded) for one, known in zip(seen, same, strict=True)]
        )

    @torch.no_grad()
    def by_step(self, rollouts: Sequence[Rollout], separator: str, reduce: Reduce) -> list[Score]:
        """Return scores of completions after each step, as if the completion ended there.

        A step's value is the difference between the reduced scores with and without it, so the values add up to the
        score. Hidden thoughts are a part of the first step.
        """
        seen = [shown(rollout, self._hide, self._policy) for rollout in rollouts]
        parts = [[*steps_of(one.text, separator)] or [one.text] for one in seen]
        judged = [
            replace(one, turns=(*one.turns[:-1], {"role": "assistant", "content": part}), finish="stop")
            for one, some in zip(seen, parts, strict=True)
            for part in some
        ]
        scores = iter(self._scores(judged, self._own_rows(judged)))
        scored = []
        for rollout, one, some in zip(rollouts, seen, parts, strict=True):
            step_scores = [next(scores) for _ in some]
            totals = [REDUCE[reduce](step_scores[: index + 1]) for index in range(len(step_scores))]
            added = [total - before for total, before in zip(totals, [0.0, *totals], strict=False)]
            hidden = rollout.text.removesuffix(one.text)
            whole = [f"{hidden}{part}" for part in some]
            ends = [] if self._policy is None else step_ends(rollout, whole, separator, self._policy)
            scored.append(Score(totals[-1], steps=list(zip(ends, added, strict=bool(ends)))))
        return scored

    def _scores(self, rollouts: Sequence[Rollout], rows: Sequence[TokenRow]) -> list[float]:
        sizes = [len(row) for row in rows]
        self._check_context(rollouts, sizes)
        parts: list[Tensor] = []
        for some in micro_batches(sizes, list(range(len(rows))), self._budget):
            packed = pack([rows[i] for i in some]).to(self._runtime.device)
            parts.append(score_rows(self._model, packed) - self._shift)
        scores: list[float] = torch.cat(parts).tolist() if parts else []
        return scores

    def _own_rows(self, rollouts: Sequence[Rollout]) -> list[TokenRow]:
        """Return the conversations in the reward model's own tokens."""
        talks = [
            Conversation(
                [*rollout.prompt.messages, *rollout.turns],
                variables={**self._variables, **rollout.prompt.variables},
            )
            for rollout in rollouts
        ]
        if self._whole:
            rows = [TokenRow([], self._unpadded(ids)) for ids in self._text.whole(talks)]
        else:
            rows = [
                replace(row, rest=row.rest[:-1]) if rollout.truncated and not self._ends else row
                for rollout, row in zip(rollouts, self._text.conversations(talks, "last"), strict=True)
            ]
        if self._same:
            return [self._fitted(row) if one.truncated else row for one, row in zip(rollouts, rows, strict=True)]
        return rows

    def _fitted(self, row: TokenRow) -> TokenRow:
        """Return a row without what exceeds the context: the end token, if the policy's context cut the completion."""
        context = self._text.context
        return row if context is None else replace(row, rest=row.rest[: max(context - len(row.prompt), 1)])

    def _unpadded(self, ids: list[int]) -> list[int]:
        """Return the ids without padding at the end, because transformers reads the score at the last other token."""
        end = len(ids)
        while end > 1 and ids[end - 1] == self._padding:
            end -= 1
        return ids[:end]

    def _check_context(self, rollouts: Sequence[Rollout], sizes: Sequence[int]) -> None:
        context = self._text.context
        if context is None or max(sizes, default=0) <= context:
            return
        longest = max(range(len(sizes)), key=lambda place: sizes[place])
        what = f"prompt {rollouts[longest].prompt.id} and its completion have {sizes[longest]} tokens, more than the "
        what += f"reward model's context of {context}"
        raise DataError(what=what, where=str(self._path), fix="Lower sampling.max_tokens, or give shorter prompts")


def models_of(folder: Path) -> dict[str, Path]:
    """Return the models of a set by name, or a single model by its name."""
    parts = {part.name: part for part in sorted(folder.glob("*")) if config_file(part).is_file()}
    return {folder.name: folder} if config_file(folder).is_file() or not parts else parts


def _score_fn(options: ModelOptions, context: Context) -> ScoreFn:
    if context.reward_model is None or context.device is None:
        raise ValueError("the reward `model` has no reward model")
    models = models_of(context.reward_model)
    model = context.reward_model if options.part is None and len(models) == 1 else models.get(options.part or "")
    if model is None:
        what = f"reward_model = {context.reward_model} has the models {', '.join(models)}, but part is {options.part}"
        fix = f"Choose one, e.g. NAME: {{type: model, part: {next(iter(models))}}}"
        raise RewardError(what=what, where=context.place, fix=fix)
    scorer, reduce = RewardModel(model, context.device, context.text, options=options), options.steps
    score: ScoreFn = scorer if reduce is None else lambda rollouts: scorer.by_step(rollouts, options.separator, reduce)
    return score if context.text is not None else lambda rollouts: _by_parts(score, rollouts, context.where)


def _by_parts(score: ScoreFn, rollouts: Sequence[Rollout], where: str) -> list[Score | float]:
    """Return the scores of table rows in parts, because the tokens of all rows may not fit into memory."""
    progress, scores = Progress(f"{where}: reward model", len(rollouts), "row"), list[Score | float]()
    for start in range(0, len(rollouts), ROWS):
        scores += score(rollouts[start : start + ROWS])
        progress.advance(len(scores) - start)
    progress.close()
    return scores


REWARDS = {
    "model": Reward(
        _score_fn,
        ModelOptions,
        by_step=lambda options: options.steps is not None,
        most_if_cut=lambda options: options.most_if_cut,
    )
}
