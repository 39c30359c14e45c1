"""Laws for other trainers' losses: any padding, order, micro-batches and processes give the same gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from posttrain.algorithms.padded import PaddedLoss
from posttrain.formulas.ragged import Ragged
from posttrain.laws.cases import Shape
from posttrain.laws.examples import Example, Miss, furthest, number, values, where, worst_difference, worst_of
from posttrain.laws.laws import CLIP_SIDE, IMPORTANCE, LAWS, Check, Law, largest, relative
from posttrain.laws.moved import EVERY_TOKEN
from posttrain.laws.padded_cases import COLUMNS, LEAVES, ROWS, Result, Step, build, run
from posttrain.laws.padded_moved import clip_side, couples_tokens, critic, importance, pull, reads

NEAR = 3e-6
"""A log ratio within every clip."""
ON_POLICY = 1e-8
"""The largest error of the law `on-policy` that counts as rounding."""


def padding(subject: PaddedLoss, shape: Shape) -> float:
    """Return the error when rows are padded on either side by any amount."""
    step = build(shape)
    left, right = torch.randint(1, 4, (2,), generator=torch.Generator().manual_seed(shape.seed)).tolist()
    return _difference(run(subject, step), run(subject, replace(step, left=left, right=right)))


def order(subject: PaddedLoss, shape: Shape) -> float:
    """Return the error when the rows are in another order."""
    shuffled = torch.randperm(ROWS, generator=torch.Generator().manual_seed(shape.seed + 2))
    return _difference(run(subject, build(shape)), run(subject, replace(build(shape), cut=((shuffled,),))))


def micro_batches(subject: PaddedLoss, shape: Shape) -> float:
    """Return the error when the rows are cut into 2, 3, 4 and 6 micro-batches."""
    step = build(shape)
    parts = [torch.arange(ROWS).chunk(count) for count in (2, 3, 4, 6)]
    return worst_of([_difference(run(subject, step), run(subject, replace(step, cut=(cut,)))) for cut in parts])


def processes(subject: PaddedLoss, shape: Shape) -> float:
    """Return the error with 2 and 3 processes, each with the same number of micro-batches as a single process."""
    step, errors = build(shape), []
    for ranks in (2, 3):
        alone = replace(step, cut=(torch.arange(ROWS).chunk(2),))
        cut = [part.chunk(2) for part in torch.arange(ROWS).chunk(ranks)]
        errors.append(_difference(run(subject, alone), run(subject, replace(step, cut=cut))))
    return worst_of(errors)


def finite(subject: PaddedLoss, shape: Shape) -> float:
    """Return inf if a number is not finite in single precision, with one-token rows and log-probs of 0 and -80."""
    for step in (*(build(replace(shape, longest=longest)) for longest in (1, shape.longest)), _without_tokens(shape)):
        step = _single(step)
        for policy, others in ((-1.0, -1.0), (0.0, 0.0), (-80.0, -80.0), (0.0, -80.0), (-80.0, 0.0)):
            filled = {name: torch.full_like(step.rows.tokens[name], others) for name in COLUMNS if "_logp" in name}
            logp = torch.full_like(step.rows.tokens["logp"], policy)
            result = run(subject, step.with_columns(**filled, logp=logp))
            numbers = {f"gradient by {name}": part for name, part in result.gradients.items()} | {"loss": result.loss}
            for quantity, part in numbers.items():
                if not bool(part.isfinite().all()):
                    bad = float(part.flatten()[furthest(part.where(~part.isfinite(), 0.0))])
                    inputs = {"logp": policy, "every other log-prob": others}
                    return Miss(math.inf, partial(Example, EVERY_TOKEN, inputs, quantity, bad, "a finite number"))
    return 0.0


def _without_tokens(shape: Shape) -> Step:
    """Return a step whose first row has no token that counts, e.g. because an overlong filter masked it."""
    step = build(shape)
    rows = step.rows
    left = {name: part[int(rows.lengths_B[0]) :] for name, part in rows.tokens.items()}
    lengths = torch.cat([torch.zeros_like(rows.lengths_B[:1]), rows.lengths_B[1:]])
    return replace(step, rows=Ragged(lengths, tokens=left))


def nothing_to_learn(subject: PaddedLoss, shape: Shape) -> float:
    """Return the gradient when nothing is left to learn. It must be 0.

    Advantages are 0, values equal their returns, and the reference and the teacher equal the policy.
    """
    step = build(shape)
    tokens = step.rows.tokens
    same = {name: tokens["logp"] for name in COLUMNS if name.endswith("_logp")}
    same |= {"advantage": torch.zeros_like(tokens["advantage"]), "value": tokens["returns"]}
    result = run(subject, step.with_columns(**same, old_value=tokens["returns"]))
    gradients = [(name, part) for name, part in result.gradients.items() if name != "advantage"]
    return worst_of([_by_column(result, name, part, 0 * part, largest(part)) for name, part in gradients])


def _by_column(result: Result, name: str, actual: Tensor, expected: Tensor, error: float) -> Miss:
    """Return the error of a gradient by token or by row. The example is the worst one."""

    def example() -> Example:
        at, rows = furthest(actual - expected), result.step.rows
        read = {name: part for name, part in rows.tokens.items() if reads(result.subject, result.step, name)}
        if actual.numel() != int(rows.lengths_B.sum()):
            sums = {column: rows.sum_rows(part) for column, part in read.items()}
            return Example(f"row {at}, sums over its tokens", values(sums, at), f"gradient by {name}", *_pair(at))
        return Example(where(rows, at)[1], values(read, at), f"gradient by {name}", *_pair(at))

    def _pair(at: int) -> tuple[float, float]:
        return float(actual[at]), float(expected[at])

    return Miss(error, example)


def on_policy(subject: PaddedLoss, shape: Shape) -> float | None:
    """Return the error on samples of the policy itself.

    The gradient of each token must be its advantage times its weight in the loss.

    Without a ratio the loss is weight * advantage * log-prob. With a ratio, its slope by the ratio is weight *
    advantage. If the ratio belongs to a whole sequence, its tokens share one advantage and are added up.
    """
    step = build(shape)
    rows = step.rows
    error = _weighed(subject, step)
    if error is None or error <= ON_POLICY or not couples_tokens(subject, shape):
        return error
    advantage = rows.repeat_to_tokens(rows.mean_rows(rows.tokens["advantage"]))
    return _weighed(subject, step.with_columns(advantage=advantage), rows.sum_rows)


def _weighed(subject: PaddedLoss, step: Step, total: Callable[[Tensor], Tensor] = Tensor.clone) -> float | None:
    """Return the gradient's distance from weight * advantage, by token or by row; None without an advantage."""
    logp, advantage = step.rows.tokens["logp"], step.rows.tokens["advantage"]

    def at(shift: float, **moved: float) -> Result:
        same = {name: logp - shift - moved.get(name, 0.0) for name in COLUMNS if name.endswith("logp")}
        return run(subject, step.with_columns(**same))

    def slope(*names: str) -> Tensor:
        ends = [at(0.0, **dict.fromkeys(names, moved)).gradients["advantage"] for moved in (NEAR, -NEAR)]
        return (ends[0] - ends[1]) / (2 * NEAR)

    result = at(0.0)
    if "advantage" not in result.gradients or "logp" not in result.gradients:
        return None
    weight = result.gradients["advantage"]
    if largest(weight - at(0.5).gradients["advantage"]) > 1e-9 * largest(weight):
        weight = weight / logp
    else:  # of the old policy; where a weight old / sampler takes that back, of both
        of_old = slope("old_logp")
        weight = of_old if float(of_old.max()) < -ON_POLICY * largest(weight) else slope("old_logp", "sampler_logp")
    expected, least = total(weight * advantage), ON_POLICY * largest(result.gradients["advantage"])
    if largest(weight) <= least:
        return _by_gradient(subject, step, total)
    gradient = total(result.gradients["logp"])
    if bool((total(weight) > least).any()):  # what is better must become likelier
        return _by_column(result, "logp", gradient, -total(weight.abs() * advantage), math.inf)
    error = largest(gradient - expected) / max(1e-3, largest(expected))
    return _by_column(result, "logp", gradient, expected, error)


def _by_gradient(subject: PaddedLoss, step: Step, total: Callable[[Tensor], Tensor]) -> float:
    """Return the error if the loss's value does not change with the policy, like exp(logp - logp.detach()).

    The weights are then measured with one advantage, and the gradient for other advantages must have the same weights.
    """
    same = dict.fromkeys((name for name in COLUMNS if name.endswith("logp")), step.rows.tokens["logp"])
    advantage = step.rows.tokens["advantage"]
    other = -0.5 * advantage
    results = [run(subject, step.with_columns(**same, advantage=of)) for of in (advantage, other)]
    first, second = (total(result.gradients["logp"]) for result in results)
    if bool((first * total(advantage) > 0).any()) or not bool((first != 0).any()):
        wanted = -first.abs() * total(advantage).sign() if bool((first != 0).any()) else -total(advantage)
        return _by_column(results[0], "logp", first, wanted, math.inf)
    error = largest(second + 0.5 * first) / max(1e-3, largest(first))
    return _by_column(results[1], "logp", second, -0.5 * first, error)


def single_precision(subject: PaddedLoss, shape: Shape) -> float:
    """Return the difference between single and double precision."""
    return _difference(run(subject, build(shape)), run(subject, _single(build(shape))))


def _law(name: str, check: Check, text: str | None = None, tolerance: float | None = None) -> Law:
    known = LAWS[name]
    return replace(known, check=check, text=text or known.text, tolerance=tolerance or known.tolerance)


PADDED_LAWS: dict[str, Law] = {
    "padding": _law("padding", padding),
    "order": _law("order", order, "loss and gradient do not change with the order of rows"),
    "micro-batches": _law("micro-batches", micro_batches, "the gradient is the same in any number of micro-batches"),
    "processes": _law("processes", processes, "the gradient is the same on any number of processes"),
    "finite": _law("finite", finite, "loss and gradient are finite at the extremes, in single precision"),
    "nothing to learn": _law(
        "nothing to learn", nothing_to_learn, "advantages of 0, right values, equal policies: no gradient"
    ),
    "on-policy": _law("on-policy", on_policy, "the gradient of a token is its weight times its advantage", ON_POLICY),
    "clip side": Law(CLIP_SIDE, clip_side, 0.0),
    "importance": Law(IMPORTANCE, importance, 0.0),
    "pull": Law("a KL in the loss pulls the policy towards the reference, teacher or sampler", pull, 0.0),
    "critic": Law("a value is pulled towards its return, even beyond its clip", critic, 0.0),
    "single precision": _law("single precision", single_precision),
}


def _single(step: Step) -> Step:
    return step.with_columns(**{name: part.float() for name, part in step.rows.tokens.items()})


def _difference(first: Result, second: Result) -> float:
    """Return the largest relative difference of loss and gradients."""
    losses, errors = (float(second.loss), float(first.loss)), list[Miss]()
    for name in (name for name in LEAVES[:2] if name in first.gradients):
        actual, expected = second.gradients[name], first.gradients[name]
        error = largest(expected - actual) / max(1e-3, largest(expected))
        errors.append(_by_column(first, name, actual, expected, error))
    return worst_difference(errors, [number("loss", *losses, relative(*losses))])
