"""The laws of the definitions as functions: an objective and a shape in, the error out (None: says nothing here)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posttrain.algorithms.objective import Objective, State
from posttrain.algorithms.policy import KlKnobs, PenaltyKnobs, PolicyObjective
from posttrain.algorithms.policy_knobs import VALUED
from posttrain.algorithms.preference import PreferenceObjective
from posttrain.algorithms.reward import ProcessObjective, RewardObjective
from posttrain.algorithms.supervised import DistillObjective, LikelihoodObjective
from posttrain.formulas.ragged import Ragged, from_padded, spread
from tests.laws import oracle
from tests.laws.cases import Case, Outcome, Shape, build, run

ALL = Objective
Check = Callable[[Objective, Shape], float | None]


@dataclass(frozen=True)
class Law:
    """What holds, how it is measured, and the largest error that counts as rounding."""

    text: str
    check: Check
    tolerance: float


def padding(objective: Objective, shape: Shape) -> float:
    """Padded on either side by any amount, with nan in the padding."""
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
    return _apart(run(case), run(replace(case, step=replace(case.step, tokens=tokens), leaves=leaves)))


def order(objective: Objective, shape: Shape) -> float:
    """Items in another order."""
    case = build(objective, shape)
    items = torch.unique(case.step.items)
    shuffled = items[torch.randperm(items.numel(), generator=torch.Generator().manual_seed(shape.seed + 2))]
    rows = torch.cat([(case.step.items == item).nonzero().squeeze(1) for item in shuffled])
    return _apart(run(case), run(replace(case, step=case.step.select(rows))))


def micro_batches(objective: Objective, shape: Shape) -> float:
    """Cut into micro-batches of any number of items."""
    case = build(objective, shape)
    return _apart(run(case), run(case, lambda step: _cut(step, shape.seed + 3)))


def processes(objective: Objective, shape: Shape) -> float:
    """Shared out over processes, each of which cuts its share into micro-batches."""

    def share_out(step: Ragged) -> list[Ragged]:
        ranks = 1 + shape.seed % 4
        _, index_B = torch.unique(step.items, return_inverse=True)
        shares = [step.select((index_B % ranks == rank).nonzero().squeeze(1)) for rank in range(ranks)]
        return [part for share in shares if len(share) for part in _cut(share, shape.seed + 4)]

    case = build(objective, shape)
    return _apart(run(case), run(case, share_out))


def finite(objective: Objective, shape: Shape) -> float:
    """Single precision, one-token rows, policy = reference = sampler, and log-probs of 0 and -80 in all pairings."""
    worst = 0.0
    for longest in (1, shape.longest):
        case = build(objective, replace(shape, longest=longest)).cast(torch.float32)
        for policy, others in ((-1.0, -1.0), (0.0, 0.0), (-80.0, -80.0), (0.0, -80.0), (-80.0, 0.0), (-1e-9, -1e-9)):
            outcome = run(_filled(case, policy, others))
            numbers = [outcome.loss, *outcome.gradients.values()]
            bad = any(not bool(part.isfinite().all()) for part in numbers)
            worst = math.inf if bad or not all(map(math.isfinite, outcome.state.values())) else worst
    return worst


def nothing_to_learn(objective: Objective, shape: Shape) -> float | None:
    """Equal rewards (or answers) give no gradient when KL, penalty, entropy and likelihood terms are off."""
    if isinstance(objective, PolicyObjective):
        knobs = objective.knobs
        quiet = {"kl": KlKnobs(), "penalty": PenaltyKnobs(), "entropy": 0.0, "ptx": 0.0}
        objective = PolicyObjective(knobs.model_copy(update=quiet), objective.max_length)
        case = build(objective, shape)
        unmoored = knobs.advantage in VALUED or (knobs.advantage == "return_to_go" and not knobs.whiten)
        case = _with(case, "reward", 0.0 if unmoored else 0.7)
        case = _with(case, "old_value", 0.0) if knobs.advantage in VALUED else case
        return float(run(case).gradients["logp"].abs().max())
    if isinstance(objective, PreferenceObjective) and "side" in objective.needs:
        if objective.knobs.loss == "apo_down":
            return None  # pushes both answers down, equal or not
        return _cancelled(build(PreferenceObjective(objective.knobs.model_copy(update={"nll": 0.0})), shape), "logp")
    if isinstance(objective, RewardObjective) and "side" in objective.needs and not objective.knobs.centring:
        return _cancelled(build(objective, shape), "score")
    return None


def on_policy(objective: Objective, shape: Shape) -> float | None:
    """Samples of the very policy: ratio 1, nothing clipped, and the gradient is -weight * advantage for every row."""
    if not isinstance(objective, PolicyObjective):
        return None
    quiet = {"kl": KlKnobs(), "entropy": 0.0, "ptx": 0.0}
    objective = PolicyObjective(objective.knobs.model_copy(update=quiet), objective.max_length)
    case = build(objective, shape)
    same = {name: case.leaves["logp"] for name in ("old_logp", "recomputed_logp") if name in case.step.tokens}
    case = replace(case, step=case.step.with_tokens(**same))
    if "kl_old" in case.leaves:
        case = replace(case, leaves={name: leaf for name, leaf in case.leaves.items() if name != "kl_old"})
        objective = PolicyObjective(
            objective.knobs.model_copy(update={"penalty": PenaltyKnobs()}), objective.max_length
        )
        case = replace(case, objective=objective)
    outcome = run(case)
    prepared = case.objective.prepare(case.step, dict(case.state)).step
    expected = torch.zeros_like(case.leaves["logp"])
    expected[prepared.tokens["token"]] = -prepared.tokens["weight"] * prepared.tokens["advantage"]
    seen = abs(outcome.metrics["ratio"] - 1) + outcome.metrics.get("clip_fraction", 0.0)
    return max(seen, float((outcome.gradients["logp"] - expected).abs().max()))


def value(objective: Objective, shape: Shape) -> float:
    """Double precision against loops in plain Python."""
    case = _stirred(build(objective, shape))
    return _relative(float(run(case).loss), plain(case, case.leaves, case.leaves))


def gradient(objective: Objective, shape: Shape) -> float:
    """The gradient by every column against finite differences of the plain Python."""
    case = _stirred(build(objective, replace(shape, groups=min(shape.groups, 2), longest=min(shape.longest, 3))))
    outcome, step, worst = run(case), 1e-6, 0.0
    for name, leaf in case.leaves.items():
        for i in range(leaf.numel()):
            ends = []
            for sign in (1, -1):
                moved = leaf.clone()
                moved[i] += sign * step
                ends.append(plain(case, {**case.leaves, name: moved}, case.leaves))
            slope = (ends[0] - ends[1]) / (2 * step)
            worst = max(worst, _relative(float(outcome.gradients[name][i]), slope))
    return worst


def single_precision(objective: Objective, shape: Shape) -> float:
    """Single against double precision."""
    case = build(objective, shape)
    return _apart(run(case), run(case.cast(torch.float32)))


LAWS: dict[str, Law] = {
    "padding": Law("loss and gradient do not change with the side or amount of padding", padding, 1e-12),
    "order": Law("loss and gradient do not change with the order of rows, pairs or groups", order, 1e-11),
    "micro-batches": Law("loss, gradient and metrics add up over micro-batches", micro_batches, 1e-11),
    "processes": Law("loss, gradient and metrics add up over processes", processes, 1e-11),
    "finite": Law("loss, gradient and state are finite at the extremes, in single precision", finite, 0.0),
    "nothing to learn": Law("equal rewards, or equal answers, give no gradient", nothing_to_learn, 1e-12),
    "on-policy": Law("ratio 1, clip fraction 0, gradient -weight * advantage", on_policy, 1e-12),
    "value": Law("the loss is that of the plain Python oracle", value, 1e-10),
    "gradient": Law("the gradient is the oracle's, by finite differences", gradient, 1e-6),
    "single precision": Law("single precision agrees with double", single_precision, 2e-4),
}


def plain(case: Case, leaves: dict[str, Tensor], still: dict[str, Tensor]) -> float:
    """The case's loss by the oracle, stop-gradient terms taken at `still`."""
    objective, rows = case.objective, _as_rows(case.step, leaves)
    match objective:
        case PolicyObjective():
            return oracle.policy(objective.knobs, objective.max_length, rows, case.state, _as_rows(case.step, still))
        case PreferenceObjective():
            return oracle.preference(objective.knobs, rows, case.state)
        case RewardObjective():
            return oracle.reward(objective.knobs, rows)
        case ProcessObjective():
            return oracle.process(objective.knobs, rows)
        case LikelihoodObjective():
            return oracle.tokens(objective.knobs, rows, "logp", -1.0)
        case DistillObjective():
            return oracle.tokens(objective.knobs, rows, "teacher_kl", 1.0)
    raise AssertionError(f"the oracle does not know {type(objective).__name__}: write it down from its definition")


def _as_rows(step: Ragged, leaves: dict[str, Tensor]) -> oracle.Rows:
    rows: oracle.Rows = [{"item": int(item)} for item in step.items]
    ends = step.lengths_B.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    for name, column in {**step.rows, **step.tokens, **leaves}.items():
        values = column.tolist()
        per_row = name in step.rows or name == "score"
        for i, row in enumerate(rows):
            row[name] = values[i] if per_row else values[starts[i] : ends[i]]
    return rows


def _cut(step: Ragged, seed: int) -> list[Ragged]:
    """Parts of one to three items each."""
    draw = torch.Generator().manual_seed(seed)
    items = torch.unique(step.items)
    items = items[torch.randperm(items.numel(), generator=draw)]
    parts = []
    while items.numel():
        size = int(torch.randint(1, 4, (), generator=draw))
        taken, items = items[:size], items[size:]
        parts.append(step.select(torch.cat([(step.items == item).nonzero().squeeze(1) for item in taken])))
    return parts


def _apart(one: Outcome, other: Outcome) -> float:
    """The largest relative difference of loss, gradients, metrics and state."""
    pairs = [(float(one.loss), float(other.loss))]
    pairs += [(one.metrics[name], other.metrics[name]) for name in one.metrics]
    pairs += [(one.state[name], other.state[name]) for name in one.state]
    worst = max(_relative(a, b) for a, b in pairs)
    for name, expected in one.gradients.items():
        scale = max(1.0, float(expected.abs().max()))
        worst = max(worst, float((expected - other.gradients[name]).abs().max()) / scale)
    return worst


def _relative(a: float, b: float) -> float:
    return abs(a - b) / max(1.0, abs(a), abs(b))


def _filled(case: Case, policy: float, others: float) -> Case:
    """The policy's log-probs at one number, all others' at another."""
    fixed = {name: torch.full_like(part, others) for name, part in case.step.tokens.items() if name.endswith("logp")}
    if "anchor" in case.step.tokens:
        fixed["anchor"] = torch.full_like(case.step.tokens["anchor"], policy)
    leaves = {**case.leaves, "logp": torch.full_like(case.leaves["logp"], policy)}
    leaves |= {"score": case.leaves["score"] * 80} if "score" in case.leaves else {}
    return replace(case, step=case.step.with_tokens(**fixed), leaves=leaves)


def _with(case: Case, name: str, number: float) -> Case:
    step = case.step
    if name in step.rows:
        return replace(case, step=step.with_rows(**{name: torch.full_like(step.rows[name], number)}))
    return replace(case, step=step.with_tokens(**{name: torch.full_like(step.tokens[name], number)}))


def _cancelled(case: Case, by: str) -> float:
    """Both answers of each pair the same: what moves the chosen one moves the rejected one as much the other way."""
    chosen = case.step.select((case.step.rows["side"] > 0).nonzero().squeeze(1))
    pairs = len(chosen)
    twice = chosen.select(torch.arange(pairs).repeat_interleave(2))
    step = twice.with_rows(side=torch.tensor([1.0, -1.0]).repeat(pairs), row=torch.arange(2 * pairs))
    step = replace(step, item_B=torch.arange(pairs).repeat_interleave(2))
    leaves = {
        name: leaf[twice.rows["row"] if name == "score" else twice.tokens["token"]]
        for name, leaf in case.leaves.items()
    }
    step = step.with_tokens(token=torch.arange(int(step.lengths_B.sum())))
    slope = run(replace(case, step=step, leaves=leaves)).gradients[by]
    side = step.rows["side"] if by == "score" else spread(step.rows["side"], step.lengths_B)
    return float((slope[side > 0] + slope[side < 0]).abs().max())


def _stirred(case: Case) -> Case:
    """A state that is no longer the first one, where an objective has a state."""
    later: State = dict(case.state)
    for name, number in (
        ("beta", 0.07),
        ("penalty", 0.8),
        ("moved", 0.05),
        ("baseline", 0.3),
        ("baseline_weight", 0.4),
    ):
        if later.get(name, 0.0) or (name in ("moved", "baseline", "baseline_weight") and name in later):
            later[name] = number
    for name, number in (("shift", 0.2), ("steps", 3.0)):
        if name in later:
            later[name] = number
    return replace(case, state=later)
