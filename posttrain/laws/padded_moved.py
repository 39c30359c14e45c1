"""Laws of padded losses after the policy has changed: clip's side, weights, KL's direction, critic's clip."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from posttrain.algorithms.padded import PaddedLoss
from posttrain.formulas.ragged import Ragged
from posttrain.laws import moved
from posttrain.laws.cases import Shape
from posttrain.laws.examples import Example, Miss, values, worst_of
from posttrain.laws.laws import largest
from posttrain.laws.padded_cases import COLUMNS, Result, Step, build, run

BEYOND = (1.5, -2.9)
"""Log ratios, towards the advantage and away from it, beyond every clip and every floor."""
ANCHORS = ("ref_logp", "teacher_logp")
"""Policies that a loss may keep the trained one close to."""


def clip_side(subject: PaddedLoss, shape: Shape) -> float | None:
    """Return the error on tokens that moved with or against their advantage."""
    if shape.seed % moved.EVERY:
        return None
    if couples_tokens(subject, shape) and (changed := _change_by_opposites(subject, shape)):
        inputs = {"logp - old_logp of each row's first token": moved.SMALL, "of its last": -moved.SMALL}
        return Miss(math.inf, partial(Example, "every row", inputs, "change of the loss", changed, 0.0))
    return moved.clip_side(lambda advantage, log_ratio: _respond(subject, shape, advantage, log_ratio))


def importance(subject: PaddedLoss, shape: Shape) -> float | None:
    """Return the error of the weights policy / old policy and old policy / sampler."""
    if shape.seed % moved.EVERY:
        return None

    def old(advantage: Tensor, log_ratio: Tensor) -> Tensor:
        return _respond(subject, shape, advantage, log_ratio)

    def alone(advantage: Tensor, log_ratio: Tensor) -> Tensor:
        return _respond(subject, shape, advantage, log_ratio, -log_ratio)  # the sampler stays the policy

    def sampler(advantage: Tensor, log_ratio: Tensor) -> Tensor:
        return _respond(subject, shape, advantage, 0 * log_ratio, log_ratio)

    return worst_of([min(map(moved.importance, (old, alone))), moved.importance(sampler)])


def pull(subject: PaddedLoss, shape: Shape) -> float | None:
    """Return the error on samples in exact proportion to a policy: its KL to another policy must fall.

    Advantages are 0.
    """
    space = moved.exact(shape.seed)
    errors = []
    for name in ANCHORS:
        if reads(subject, build(shape), name):
            apart, same = (
                run(subject, _tokens(space.logp(), **{name: at})) for at in (space.other_logp(), space.logp())
            )
            rise = float(apart.loss - same.loss)
            rises = rise > -moved.SMALL * abs(float(apart.loss))
            risen = partial(Example, "every row", {}, f"rise of the loss when {name} moves away", rise, "0 or above")
            errors.append(moved.pull(space, _by_logp(apart, space.logp())) if rises else Miss(math.inf, risen))
            errors.append(_pull_kept(subject, shape, name))
    if reads(subject, _quiet(build(shape)), "old_logp"):
        drawn = _tokens(space.other_logp(), old_logp=space.logp(), sampler_logp=space.logp())
        errors.append(moved.pulls_back(space, _by_logp(run(subject, drawn), space.logp())))
    return worst_of(errors) if errors else None


def _pull_kept(subject: PaddedLoss, shape: Shape, name: str) -> float:
    """Return inf if tokens beyond a clip are not pulled to the anchor, because a clip's mask must not drop the KL."""

    def drawn(moved_N: Tensor) -> Tensor:
        highest = _highest(shape)
        logp, old = highest + moved_N.clamp(max=0), highest - moved_N.clamp(min=0)
        columns = {"advantage": moved.SIGNS, "old_logp": old, "sampler_logp": old, "teacher_logp": logp}
        apart, same = (
            _by_logp(run(subject, _tokens(logp, **{**columns, "ref_logp": logp, name: logp - gap})), logp)
            for gap in (0.3, 0.0)
        )
        return apart - same

    pulled = drawn(0 * moved.SIGNS) != 0
    for far in BEYOND:
        lost = pulled & (drawn(far * moved.SIGNS) == 0)
        if bool(lost.any()):
            at = int(lost.nonzero()[0])
            sign = float(moved.SIGNS[at])
            inputs = {"logp - old_logp": far * sign, f"logp - {name}": 0.3, "advantage": sign, "mask": 1.0}
            quantity = f"gradient by logp that {name} gives"
            return Miss(math.inf, partial(Example, f"row {at}, token 0", inputs, quantity, 0.0, "not 0"))
    return 0.0


def forgets_old_policy(subject: PaddedLoss, shape: Shape) -> bool:
    """Tell whether a loss with advantages never reads `old_logp`, so that it supports only one update per batch."""
    step = build(shape)
    gradients = run(subject, step).gradients
    return "advantage" in gradients and "logp" in gradients and not reads(subject, step, "old_logp")


def critic(subject: PaddedLoss, shape: Shape) -> float | None:
    """Return inf if a value is not pulled towards its return.

    The values lie on either side of the return, both nearer to it and further from it than the old values.
    """
    if "value" not in run(subject, build(shape)).gradients:
        return None
    step = _tokens(_highest(shape))
    returns = step.rows.tokens["returns"]
    for distance in (0.01, 0.1, 1.0, 10.0):
        for before, now in ((1.0, 1.0 + distance), (1.0 + distance, 1.0)):
            columns = {"old_value": returns + before * moved.SIGNS, "value": returns + now * moved.SIGNS}
            towards = run(subject, step.with_columns(**columns)).gradients["value"] * moved.SIGNS
            if bool((towards < 0).any()) or (now > before and bool((towards == 0).any())):
                return Miss(math.inf, partial(_away_from_return, step.with_columns(**columns), towards))
    return 0.0


def _away_from_return(step: Step, towards_N: Tensor) -> Example:
    at = int(towards_N.argmin())
    wanted = "above 0" if moved.SIGNS[at] > 0 else "below 0"
    gradient = float(towards_N[at] * moved.SIGNS[at])
    return Example(f"row {at}, token 0", values(step.rows.tokens, at), "gradient by value", gradient, wanted)


def couples_tokens(subject: PaddedLoss, shape: Shape) -> bool:
    """Tell whether the gradient of a token depends on its row's other ratios, as in GSPO."""
    step = build(shape)
    logp, last = step.rows.tokens["logp"], torch.zeros_like(step.rows.tokens["logp"])
    last[-1] = moved.SMALL
    plain, changed = (
        run(subject, step.with_columns(old_logp=old, sampler_logp=old)).gradients.get("logp")
        for old in (logp, logp - last)
    )
    if plain is None or changed is None or len(logp) < 2:
        return False
    return largest((plain - changed)[:-1]) > moved.SMALL * moved.SLOPE * largest(plain)


def _change_by_opposites(subject: PaddedLoss, shape: Shape) -> float:
    """Return how the loss changes when a row's tokens move in opposite directions; 0: only the row's ratio counts."""
    step = build(shape)
    rows = step.rows
    logp, advantage = rows.tokens["logp"], rows.repeat_to_tokens(rows.mean_rows(rows.tokens["advantage"]))
    starts_B = rows.lengths_B.cumsum(0) - rows.lengths_B
    first = torch.zeros_like(logp)
    first[starts_B] = moved.SMALL
    opposite = first.clone()
    opposite[starts_B + rows.lengths_B - 1] -= moved.SMALL  # a row of one token stays

    def loss(by: Tensor) -> float:
        old = logp - by
        same = {"old_logp": old, "sampler_logp": old, "advantage": advantage, **dict.fromkeys(ANCHORS, logp)}
        return float(run(subject, step.with_columns(**same)).loss)

    here = loss(0 * logp)
    changed = loss(opposite) - here
    return 0.0 if abs(changed) <= 0.01 * abs(loss(first) - here) else changed


def _respond(
    subject: PaddedLoss, shape: Shape, advantage: Tensor, log_ratio: Tensor, to_sampler: Tensor | None = None
) -> Tensor:
    """Return the gradient with respect to log-probs of tokens with these log ratios of policy, old and sampler."""
    highest = _highest(shape)
    logp, old = highest + log_ratio.clamp(max=0), highest - log_ratio.clamp(min=0)
    sampler = old if to_sampler is None else old - to_sampler
    others = {"advantage": advantage, "old_logp": old, "sampler_logp": sampler}
    return _by_logp(run(subject, _tokens(logp, **others)), logp)


def _highest(shape: Shape) -> Tensor:
    """Return log-probs from -0.1 to -0.4."""
    draw = torch.Generator().manual_seed(shape.seed)
    return -0.1 - 0.3 * torch.rand(moved.TOKENS, generator=draw, dtype=torch.float64)


def _tokens(logp: Tensor, **columns: Tensor) -> Step:
    """Return rows of one token. All policies are equal and advantages 0, except for the given columns."""
    same = {name: logp for name in COLUMNS if name.endswith("logp")}
    quiet = {name: torch.zeros_like(logp) for name in COLUMNS if name not in same}
    return Step(Ragged(torch.ones(moved.TOKENS, dtype=torch.long), tokens={**quiet, **same, **columns}))


def _quiet(step: Step) -> Step:
    """Return a step without advantages, whose reference and teacher equal the policy."""
    tokens = step.rows.tokens
    return step.with_columns(advantage=0 * tokens["advantage"], **dict.fromkeys(ANCHORS, tokens["logp"]))


def reads(subject: PaddedLoss, step: Step, name: str) -> bool:
    """Tell whether the loss, or its gradient, depends on a column."""
    first, other = (run(subject, step.with_columns(**{name: step.rows.tokens[name] - by})) for by in (0.0, 0.1))
    logp = step.rows.tokens["logp"]
    return bool(first.loss != other.loss) or not torch.equal(_by_logp(first, logp), _by_logp(other, logp))


def _by_logp(result: Result, logp: Tensor) -> Tensor:
    return result.gradients.get("logp", torch.zeros_like(logp))
