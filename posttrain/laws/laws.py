"""The laws. Each maps an objective and the shape of a random step to an error; None: the law does not apply."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posttrain.algorithms.objective import STEP_COLUMNS, Objective
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.preference_loss import PairLoss
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardObjective
from posttrain.formulas.ragged import Ragged, from_padded, repeat_to_tokens
from posttrain.laws.cases import OFF, Case, Outcome, Shape, build, run, without_extra_terms
from posttrain.laws.examples import Example, Miss, by_token, furthest, number, where, worst_difference, worst_of
from posttrain.laws.policy_moved import clip_side, importance, pull

Check = Callable[[Any, Shape], float | None]


@dataclass(frozen=True)
class Law:
    """A property of objectives, the measure of its error, and the largest error that counts as rounding."""

    text: str
    check: Check
    tolerance: float


def padding(objective: Objective, shape: Shape) -> float:
    """Return the error when rows are padded on either side by any amount, with nan in the padding."""
    case = build(objective, shape)
    draw = torch.Generator().manual_seed(shape.seed + 1)
    left, right = torch.randint(0, 4, (2,), generator=draw).tolist()
    lengths_B = case.step.lengths_B
    width = int(lengths_B.max())
    starts_B = left + (width - lengths_B) * torch.randint(0, 2, lengths_B.shape, generator=draw)
    at = torch.arange(left + width + right)
    mask_BT = (at >= starts_B[:, None]) & (at < (starts_B + lengths_B)[:, None])

    def through(column: Tensor) -> Tensor:
        empty = torch.full(mask_BT.shape, torch.nan if column.is_floating_point() else -7, dtype=column.dtype)
        return from_padded(empty.masked_scatter(mask_BT, column), mask_BT)[0]

    tokens = {name: through(column) for name, column in case.step.tokens.items()}
    count = int(lengths_B.sum())
    leaves = {
        name: through(leaf) if leaf.numel() == count and name != "score" else leaf for name, leaf in case.leaves.items()
    }
    return _difference(run(case), run(replace(case, step=replace(case.step, tokens=tokens), leaves=leaves)))


def order(objective: Objective, shape: Shape) -> float:
    """Return the error when the items are in another order."""
    case = build(objective, shape)
    items = torch.unique(case.step.items)
    shuffled = items[torch.randperm(items.numel(), generator=torch.Generator().manual_seed(shape.seed + 2))]
    rows = torch.cat([(case.step.items == item).nonzero().squeeze(1) for item in shuffled])
    return _difference(run(case), run(replace(case, step=case.step.select(rows))))


def micro_batches(objective: Objective, shape: Shape) -> float:
    """Return the error when the step is cut into micro-batches of any number of items."""
    case = build(objective, shape)
    return _difference(run(case), run(case, lambda step: _cut(step, shape.seed + 3)))


def processes(objective: Objective, shape: Shape) -> float:
    """Return the error when the step is split over processes, each of which cuts its rows into micro-batches."""

    def split_over_ranks(step: Ragged) -> list[Ragged]:
        ranks = 1 + shape.seed % 4
        _, index_B = torch.unique(step.items, return_inverse=True)
        parts = [step.select((index_B % ranks == rank).nonzero().squeeze(1)) for rank in range(ranks)]
        return [part for rank_part in parts if len(rank_part) for part in _cut(rank_part, shape.seed + 4)]

    case = build(objective, shape)
    return _difference(run(case), run(case, split_over_ranks))


def finite(objective: Objective, shape: Shape) -> float:
    """Return inf if a number is not finite in single precision.

    The cases include one-token rows, a policy that equals reference and sampler, and log-probs of 0 and -80 in all
    pairings.
    """
    worst = 0.0
    for longest in (1, shape.longest):
        case = build(objective, replace(shape, longest=longest)).cast(torch.float32)
        for policy, others in ((-1.0, -1.0), (0.0, 0.0), (-80.0, -80.0), (0.0, -80.0), (-80.0, 0.0), (-1e-9, -1e-9)):
            outcome = run(_filled(case, policy, others))
            numbers = [outcome.loss, *outcome.gradients.values()]
            bad = any(not bool(part.isfinite().all()) for part in numbers)
            bad = bad or not all(map(math.isfinite, outcome.state.values()))
            worst = Miss(math.inf, partial(_not_finite, outcome, policy, others)) if bad else worst
    return worst


def _not_finite(outcome: Outcome, policy: float, others: float) -> Example:
    numbers = {f"gradient by {name}": part for name, part in outcome.gradients.items()} | {"loss": outcome.loss}
    numbers |= {f"state {name}": torch.tensor(number) for name, number in outcome.state.items()}
    quantity, part = next((name, part) for name, part in numbers.items() if not bool(part.isfinite().all()))
    at = furthest(part.where(~part.isfinite(), 0.0))
    place = where(outcome.case.step, at)[1] if quantity == "gradient by logp" else "the whole step"
    inputs = {"logp": policy, "every other log-prob": others}
    return Example(place, inputs, quantity, float(part.flatten()[at]), "a finite number")


def tiles(objective: Objective, shape: Shape) -> float | None:
    """Return the error when the loss is cut between any two tokens, as training does with a `by_token` objective."""
    if not objective.by_token:
        return None
    case = build(objective, shape)
    return _difference(run(case), run(case, lambda step: [step], _cut_between_tokens))


def nothing_to_learn(objective: Objective, shape: Shape) -> float | None:
    """Return the gradient of equal rewards or answers.

    It must be 0; KL, penalty, entropy and likelihood terms are off.
    """
    if isinstance(objective, PolicyObjective):
        objective = without_extra_terms(objective, penalty=OFF)
        kind, whitened = objective.advantage, objective.config.whiten
        case = build(objective, shape)
        uncentred = kind.valued or (kind.token_rewards and not whitened)
        case = _with(case, "reward", 0.0 if uncentred else 0.7)
        for name in (name for name in case.step.rows if name.startswith("part.")):
            case = _with(case, name, 0.7)
        case = _with(case, "old_value", 0.0) if kind.valued else case
        return _by_logp(outcome := run(case), torch.zeros_like(outcome.gradients["logp"]))
    if isinstance(objective, PreferenceObjective) and isinstance(objective.loss_entry, PairLoss):
        if not objective.loss_entry.balanced:
            return None
        case = build(PreferenceObjective(objective.config.model_copy(update={"nll": 0.0})), shape)
        return _uncancelled(_at_start(case), "logp")
    if isinstance(objective, RewardObjective) and "side" in objective.needs and not objective.config.centring:
        return _uncancelled(build(objective, shape), "score")
    return None


def on_policy(objective: Objective, shape: Shape) -> float | None:
    """Return the error on samples of the policy itself.

    Their ratio is 1, nothing is clipped, and the gradient is -weight * advantage of each token.
    """
    if not isinstance(objective, PolicyObjective):
        return None
    objective = without_extra_terms(objective, **({"penalty": OFF} if "kl_old" in objective.needs else {}))
    case = _at_start(build(objective, shape))
    outcome = run(case)
    prepared = case.objective.prepare(case.step, dict(case.state)).step
    expected = torch.zeros_like(case.leaves["logp"])
    gradient = -prepared.tokens["weight"] * prepared.tokens["advantage"]
    if "dropped" in prepared.tokens:
        gradient = gradient.masked_fill(prepared.tokens["dropped"], 0.0)
    expected[prepared.tokens["token"]] = gradient
    clipped = outcome.metrics.get("clip_fraction", 0.0)
    deviation = abs(outcome.metrics["ratio"] - 1) + clipped
    name, wanted = ("clip_fraction", 0.0) if clipped else ("ratio", 1.0)
    return worst_of([number(name, outcome.metrics[name], wanted, deviation), _by_logp(outcome, expected)])


def _by_logp(outcome: Outcome, expected: Tensor) -> Miss:
    """Return how far the gradient with respect to the tokens' log-probs is from the expected one."""
    gradient = outcome.gradients["logp"]
    return by_token(outcome, "logp", gradient, expected, largest(gradient - expected))


def direction(objective: Objective, shape: Shape) -> float | None:
    """Return inf if a chosen or desirable answer does not gain.

    The rejected answer of its pair is as likely, or likelier. A labelled answer must move in the direction of its
    label.
    """
    if not isinstance(objective, PreferenceObjective):
        return None
    objective = replace(objective, config=objective.config.model_copy(update={"nll": 0.0}))
    case = build(objective, shape)
    if isinstance(objective.loss_entry, PairLoss):
        return max(_gains(case) for case in (_twins(case), _ahead(_twins(case))))
    label_B = case.step.rows["label"]
    gradient_B = case.step.sum_rows(run(case).gradients["logp"])
    return _all_below_0((gradient_B * label_B).masked_fill(label_B == 0, -1.0), partial(_of_label, case, gradient_B))


def _gains(twins: Case) -> float:
    """Return inf if a chosen answer does not gain on the rejected one."""
    apart_P = _apart(twins)
    logp_B = twins.step.sum_rows(twins.leaves["logp"])

    def example(pair: int) -> Example:
        chosen, rejected = logp_B[2 * pair : 2 * pair + 2].tolist()
        inputs = {"logp of the chosen answer": chosen, "logp of the rejected answer": rejected}
        quantity = "gradient by the chosen answer's log-probs minus the gradient by the rejected answer's"
        return Example(f"pair {pair}", inputs, quantity, float(apart_P[pair]), "below 0")

    return _all_below_0(apart_P, example)


def _of_label(case: Case, gradient_B: Tensor, row: int) -> Example:
    label = float(case.step.rows["label"][row])
    inputs = {"logp": float(case.step.sum_rows(case.leaves["logp"])[row]), "label": label}
    wanted = "below 0" if label > 0 else "above 0"
    return Example(f"row {row}", inputs, "gradient by its log-probs", float(gradient_B[row]), wanted)


def _all_below_0(parts: Tensor, example: Callable[[int], Example]) -> float:
    """Return inf if a number is not below 0, with the worst one as example."""
    worst = int(parts.nan_to_num(nan=math.inf).argmax())
    return 0.0 if bool((parts < 0).all()) else Miss(math.inf, partial(example, worst))


def single_precision(objective: Objective, shape: Shape) -> float | None:
    """Return the error of single precision. It is None if rounding decides which tokens are marked."""
    case = build(objective, shape)
    single = case.cast(torch.float32)
    if _marked(single) != _marked(case) and _has_ties(case):
        return None
    return _difference(run(case), run(single))


def _marked(case: Case) -> dict[str, list[bool]]:
    """Return the tokens that an objective marks by rank."""
    tokens = case.objective.prepare(case.step, dict(case.state)).step.tokens
    return {name: tokens[name].tolist() for name in ("dropped", "penalised") if name in tokens}


def _has_ties(case: Case) -> bool:
    """Tell whether changes as small as single-precision rounding change which tokens are marked."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(16):
        tokens, rows = dict(case.step.tokens), dict(case.step.rows)
        ranked = [(tokens, name) for name in ("old_logp", *sorted(STEP_COLUMNS)) if name in tokens]
        for columns, name in [*ranked, (rows, "reward")]:
            noise = torch.randn(columns[name].shape, generator=draw, dtype=torch.float64)
            columns[name] = columns[name] * (1 + 1e-6 * noise)
        if _marked(replace(case, step=replace(case.step, tokens=tokens, rows=rows))) != _marked(case):
            return True
    return False


CLIP_SIDE = (
    "a token that moved against its advantage keeps its gradient, at least as long as a token that moved with it"
)
IMPORTANCE = "a token's weight is the policy's probability over the sampler's, or less; not inverse or square"
LAWS: dict[str, Law] = {
    "padding": Law("loss and gradient do not change with the side or amount of padding", padding, 1e-12),
    "order": Law("loss and gradient do not change with the order of rows, pairs or groups", order, 1e-11),
    "micro-batches": Law("loss, gradient and metrics add up over micro-batches", micro_batches, 1e-11),
    "processes": Law("loss, gradient and metrics add up over processes", processes, 1e-11),
    "tiles": Law("where the loss is computed tile by tile, tokens may be cut anywhere", tiles, 1e-11),
    "finite": Law("loss, gradient and state are finite at the extremes, in single precision", finite, 0.0),
    "nothing to learn": Law("equal rewards, or equal answers, give no gradient", nothing_to_learn, 1e-12),
    "direction": Law("chosen and desirable answers gain; rejected and undesirable answers lose", direction, 0.0),
    "on-policy": Law("ratio 1, clip fraction 0, gradient -weight * advantage", on_policy, 1e-12),
    "clip side": Law(CLIP_SIDE, clip_side, 0.0),
    "importance": Law(IMPORTANCE, importance, 0.0),
    "pull": Law("a KL in the loss or the reward pulls the policy towards the reference", pull, 0.0),
    "single precision": Law("single precision agrees with double", single_precision, 2e-4),
}


def _cut(step: Ragged, seed: int) -> list[Ragged]:
    """Return parts of one to three items each."""
    draw = torch.Generator().manual_seed(seed)
    items = torch.unique(step.items)
    items = items[torch.randperm(items.numel(), generator=draw)]
    parts = []
    while items.numel():
        size = int(torch.randint(1, 4, (), generator=draw))
        part_items, items = items[:size], items[size:]
        parts.append(step.select(torch.cat([(step.items == item).nonzero().squeeze(1) for item in part_items])))
    return parts


def _cut_between_tokens(step: Ragged) -> list[Ragged]:
    """Return the tokens two by two, without their rows."""
    count = int(step.lengths_B.sum())
    return [step.tokens_in(slice(i, min(i + 2, count))) for i in range(0, count, 2)]


def _difference(first: Outcome, second: Outcome) -> float:
    """Return the largest relative difference of loss, gradients, metrics and state."""
    pairs = {"loss": (float(first.loss), float(second.loss))}
    pairs |= {f"metric {name}": (first.metrics[name], second.metrics[name]) for name in first.metrics}
    pairs |= {f"state {name}": (first.state[name], second.state[name]) for name in first.state}
    errors: list[Miss] = []
    for name, expected in first.gradients.items():
        gradient = second.gradients[name]
        error = largest(expected - gradient) / max(1.0, largest(expected))
        errors.append(by_token(first, name, gradient, expected, error))
    return worst_difference(errors, [number(name, b, a, relative(a, b)) for name, (a, b) in pairs.items()])


def relative(a: float, b: float) -> float:
    """Return the difference relative to 1 or to the larger number."""
    return abs(a - b) / max(1.0, abs(a), abs(b))


def largest(part: Tensor) -> float:
    """Return the largest absolute value."""
    return float(part.abs().max()) if part.numel() else 0.0


def _filled(case: Case, policy: float, others: float) -> Case:
    """Return the case with the policy's log-probs set to one number and all others' to another."""
    fixed = {name: torch.full_like(part, others) for name, part in case.step.tokens.items() if name.endswith("logp")}
    if "step_start_logp" in case.step.tokens:
        fixed["step_start_logp"] = torch.full_like(case.step.tokens["step_start_logp"], policy)
    leaves = {**case.leaves, "logp": torch.full_like(case.leaves["logp"], policy)}
    leaves |= {"score": case.leaves["score"] * 80} if "score" in case.leaves else {}
    return replace(case, step=case.step.with_tokens(**fixed), leaves=leaves)


def _with(case: Case, name: str, number: float) -> Case:
    step = case.step
    if name in step.rows:
        return replace(case, step=step.with_rows(**{name: torch.full_like(step.rows[name], number)}))
    return replace(case, step=step.with_tokens(**{name: torch.full_like(step.tokens[name], number)}))


def _at_start(case: Case) -> Case:
    """Return the case before the first update, where the policy equals the sampling and the step's start policy."""
    names = [name for name in ("old_logp", "recomputed_logp", "step_start_logp") if name in case.step.tokens]
    return replace(case, step=case.step.with_tokens(**dict.fromkeys(names, case.leaves["logp"])))


def _twins(case: Case) -> Case:
    """Return the case with equal answers in each pair, the chosen one first."""
    chosen = case.step.select((case.step.rows["side"] > 0).nonzero().squeeze(1))
    pairs = len(chosen)
    twice = chosen.select(torch.arange(pairs).repeat_interleave(2))
    step = twice.with_rows(side=torch.tensor([1.0, -1.0]).repeat(pairs), row=torch.arange(2 * pairs))
    step = replace(step, item_B=torch.arange(pairs).repeat_interleave(2))
    leaves = {
        name: leaf[twice.rows["row"] if name == "score" else twice.tokens["token"]]
        for name, leaf in case.leaves.items()
    }
    return replace(case, step=step.with_tokens(token=torch.arange(int(step.lengths_B.sum()))), leaves=leaves)


def _ahead(twins: Case) -> Case:
    """Return twins with a rejected answer that is likelier than the chosen one."""
    side = repeat_to_tokens(twins.step.rows["side"], twins.step.lengths_B)
    logp = twins.leaves["logp"].where(side > 0, twins.leaves["logp"] / 2)
    step = twins.step
    if "step_start_logp" in step.tokens:
        step = step.with_tokens(step_start_logp=logp)
    return replace(twins, step=step, leaves={**twins.leaves, "logp": logp})


def _apart(twins: Case) -> Tensor:
    """Return by how much the gradient of each chosen answer exceeds the rejected one's."""
    gradient_B = twins.step.sum_rows(run(twins).gradients["logp"])
    return gradient_B[0::2] - gradient_B[1::2]


def _uncancelled(case: Case, by: str) -> float:
    """Return the sum of the gradients of two equal answers."""
    twins = _twins(case)
    outcome, side = run(twins), twins.step.rows["side"]
    gradient = outcome.gradients[by]
    side = side if by == "score" else repeat_to_tokens(side, twins.step.lengths_B)
    expected = torch.empty_like(gradient)
    expected[side > 0], expected[side < 0] = -gradient[side < 0], -gradient[side > 0]
    return by_token(outcome, by, gradient, expected, largest(gradient[side > 0] + gradient[side < 0]))
