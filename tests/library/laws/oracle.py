"""The definitions once more, in plain Python: loops over rows and tokens, no tensors, nothing shared with the library.

Rows are dicts; token columns are lists. `still` holds the rows at which stop-gradient terms are taken, so that finite
differences of these functions are the gradients that the definitions mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from types import SimpleNamespace
from typing import Any

Rows = list[dict[str, Any]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x >= 0 else x - math.log1p(math.exp(x))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def clipped(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def estimate(kind: str, logp: float, ref: float) -> float:
    d = logp - ref
    return {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) + d - 1}[kind]


def policy(knobs: Any, longest: int, rows: Rows, state: dict[str, float], still: Rows) -> float:
    """The loss of a policy row."""
    state = state | {"beta": part_way(knobs.kl, state).beta} if getattr(knobs.kl, "steps", None) else state
    knobs = SimpleNamespace(**{**dict(knobs), "surrogate": part_way(knobs.surrogate, state)})
    acted = [(row, old) for row, old in zip(rows, still, strict=True) if not (knobs.ptx and row["pretrain"])]
    text = [row for row in rows if knobs.ptx and row["pretrain"]]
    total = _policy_term(knobs, longest, [a for a, _ in acted], [b for _, b in acted], state)
    if text:
        tokens = [x for row in text for x in row["logp"]]
        total += knobs.ptx * -mean(tokens)
    return total


def part_way(options: Any, state: dict[str, float]) -> Any:
    """Options whose numbers have gone their part of a straight line to their ends."""
    if not getattr(options, "steps", None):
        return options
    values = options.model_dump()
    part = min(state["next_step"] / options.steps, 1.0)
    for name, end in (("beta", "end"), ("low", "low_end"), ("high", "high_end")):
        if values.get(end) is not None:
            values[name] += part * (values[end] - values[name])
    return SimpleNamespace(**values)


def _policy_term(knobs: Any, longest: int, rows: Rows, still: Rows, state: dict[str, float]) -> float:
    sampled = "old_logp" if knobs.correction.type == "none" else "recomputed_logp"
    advantages, returns = _advantages(knobs, rows, state["beta"], sampled, state)
    if knobs.advantage.type == "gdpo":
        advantages = _decoupled(rows)
    counted = [not (knobs.truncated == "mask" and row["truncated"]) and not row.get("opponent") for row in rows]
    if knobs.whiten:
        advantages = _whitened(advantages, counted)
    price = _price(knobs, rows, sampled, state)
    chosen = marked(knobs, rows, advantages, counted)
    kept = [i for i, keep in enumerate(counted) if keep]
    tokens = sum(len(rows[i]["logp"]) for i in kept)
    total = 0.0
    for i in kept:
        row, length = rows[i], len(rows[i]["logp"])
        weight = {
            "sequence_sum": 1 / len(kept),
            "sequence_mean": 1 / (len(kept) * length),
            "token_mean": 1 / tokens,
            "fixed_length": 1 / (len(kept) * longest),
        }[knobs.aggregation]
        for t in range(length):
            at = Token(row, still[i], sampled, t, advantages[i][t], i, chosen, met(rows, advantages, sampled, row))
            item = -SURROGATES[knobs.surrogate.type](knobs.surrogate, at) * _correction(knobs, row, t)
            if knobs.kl.type == "loss":
                item += state["beta"] * estimate(knobs.kl.estimator, row["logp"][t], row["ref_logp"][t])
            if knobs.penalty.type == "exact":
                item += price * row["kl_old"][t]
            if knobs.penalty.type == "sampled":
                moved = row["logp"][t] - row[sampled][t]
                item += price * (math.exp(moved) - 1 - moved)
            if "teacher_kl" in row:
                item += knobs.teacher_coef * row["teacher_kl"][t]
            item -= knobs.entropy * row["entropy"][t]
            if returns:
                item += knobs.advantage.value_coef * _critic(knobs, row, t, returns[i][t])
            total += weight * item
    return total


def _price(knobs: Any, rows: Rows, sampled: str, state: dict[str, float]) -> float:
    """What moving costs in this step; only a fresh batch after a reused one changes it."""
    if knobs.penalty.type == "none":
        return 0.0
    if any(row["age"] > 0 for row in rows) or knobs.penalty.target is None or state["last_kl_old"] == 0:
        return state["penalty"]
    if state["last_kl_old"] < knobs.penalty.target / 1.5:
        return state["penalty"] / 2
    return state["penalty"] * (2 if state["last_kl_old"] > knobs.penalty.target * 1.5 else 1)


def _correction(knobs: Any, row: dict[str, Any], t: int) -> float:
    o = knobs.correction
    if o.type == "none":
        return 1.0
    apart = [a - b for a, b in zip(row["recomputed_logp"], row["old_logp"], strict=True)]
    w = math.exp({"token": apart[t], "sequence": sum(apart), "geometric": mean(apart)}[o.level])
    low = 0.0 if o.low is None else o.low
    if o.type == "truncate":
        return clipped(w, low, o.high)
    return (w if o.type == "mask" else 1.0) if low <= w <= o.high else 0.0


@dataclass(frozen=True)
class Token:
    """One token of a row; `still` is the row at which stop-gradient terms are taken."""

    row: dict[str, Any]
    still: dict[str, Any]
    sampled: str
    t: int
    advantage: float
    place: int
    marked: set[tuple[int, int]]
    met: list[tuple[float, float]]
    """Advantage and ratio at the step's start of each sample of the prompt, of a surrogate that compares them."""

    @property
    def logp(self) -> float:
        return float(self.row["logp"][self.t])

    def steps(self, of: dict[str, Any]) -> list[float]:
        """The log ratios of a row."""
        return [a - b for a, b in zip(of["logp"], of[self.sampled], strict=True)]

    def ratio(self, of: dict[str, Any]) -> float:
        return math.exp(self.steps(of)[self.t])


def pessimistic(ratio: float, advantage: float, low: float, high: float) -> float:
    return min(ratio * advantage, clipped(ratio, 1 - low, 1 + high) * advantage)


def ppo_clip(o: Any, at: Token) -> float:
    return pessimistic(at.ratio(at.row), at.advantage, o.low, o.high)


def cispo(o: Any, at: Token) -> float:
    return clipped(at.ratio(at.still), 0.0 if o.low is None else 1 - o.low, 1 + o.high) * at.advantage * at.logp


def gspo(o: Any, at: Token) -> float:
    return pessimistic(math.exp(mean(at.steps(at.row))), at.advantage, o.low, o.high)


def sapo(o: Any, at: Token) -> float:
    tau = o.tau_pos if at.advantage > 0 else o.tau_neg
    return 4 / tau * sigmoid(tau * (at.ratio(at.row) - 1)) * at.advantage


def gmpo(o: Any, at: Token) -> float:
    held = [min(x, o.edge) if at.advantage > 0 else max(x, -o.edge) for x in at.steps(at.row)]
    return math.exp(mean(held)) * at.advantage


def dppo(divergence: Callable[[float, float], float]) -> Callable[[Any, Token], float]:
    def item(o: Any, at: Token) -> float:
        pi, mu = math.exp(at.still["logp"][at.t]), math.exp(at.still[at.sampled][at.t])
        far = divergence(pi, mu)
        if (at.advantage > 0 and pi > mu and far > o.limit_pos) or (at.advantage < 0 and pi < mu and far > o.limit_neg):
            return 0.0
        return min(pi / mu, o.cap) * at.advantage * at.logp

    return item


def gspo_token(o: Any, at: Token) -> float:
    s = math.exp(mean(at.steps(at.still))) * math.exp(at.logp - at.still["logp"][at.t])
    return pessimistic(s, at.advantage, o.low, o.high)


def met(rows: Rows, advantages: list[list[float]], sampled: str, row: dict[str, Any]) -> list[tuple[float, float]]:
    found = []
    for other, advantage in zip(rows, advantages, strict=True):
        if "step_start_logp" in row and "group" in row and other["group"] == row["group"]:
            moved = sum(a - b for a, b in zip(other["step_start_logp"], other[sampled], strict=True))
            found.append((advantage[0], math.exp(moved)))
    return found


def p3o(o: Any, at: Token) -> float:
    steps, terms = at.steps(at.row), []
    for advantage, ratio in at.met:
        terms.append(pessimistic(math.exp(sum(steps)), (at.advantage - advantage) * ratio, o.low, o.high))
    return mean(terms) / len(steps)


def kl_cov(o: Any, at: Token) -> float:
    charge = o.beta * abs(at.steps(at.row)[at.t]) if (at.place, at.t) in at.marked else 0.0
    return at.ratio(at.row) * at.advantage - charge


SURROGATES: dict[str, Callable[[Any, Token], float]] = {
    "reinforce": lambda o, at: at.advantage * at.logp,
    "importance": lambda o, at: at.ratio(at.row) * at.advantage,
    "ppo_clip": ppo_clip,
    "cispo": cispo,
    "gspo": gspo,
    "sapo": sapo,
    "gmpo": gmpo,
    "dppo_tv": dppo(lambda pi, mu: abs(pi - mu)),
    "dppo_kl": dppo(lambda pi, mu: mu * math.log(mu / pi) + (1 - mu) * math.log((1 - mu) / (1 - pi))),
    "gspo_token": gspo_token,
    "dual_clip": lambda o, at: max(ppo_clip(o, at), o.floor * at.advantage) if at.advantage < 0 else ppo_clip(o, at),
    "clip_cov": lambda o, at: 0.0 if (at.place, at.t) in at.marked else ppo_clip(o, at),
    "top_entropy": lambda o, at: ppo_clip(o, at) if (at.place, at.t) in at.marked else 0.0,
    "kl_cov": kl_cov,
    "p3o": p3o,
}
"""The oracle's formula of each surrogate."""
ADVANTAGES = frozenset(
    {"group_zscore", "group_centred", "leave_one_out", "maxrl", "gdpo", "batch_centred", "moving_average", "win_rate"}
    | {"return_to_go", "gae", "outcome_value", "opo", "pass_at_k"}
)
LOSSES = frozenset(
    {"dpo", "robust_dpo", "exo", "ipo", "apo_zero", "apo_down", "slic", "simpo", "orpo"}
    | {"kto", "bco", "nca", "sppo"}
    | {"aot", "aot_unpaired"}
)
"""What the oracle has besides; the laws that need it say nothing about other entries, and one test lists them."""


def _apart(values: dict[Any, float]) -> dict[Any, float]:
    """Differences from the mean; 0 where they are rounding alone."""
    middle, largest = mean(list(values.values())), max(map(abs, values.values()), default=0.0)
    return {key: 0.0 if abs(value - middle) <= 1e-12 * largest else value - middle for key, value in values.items()}


def marked(knobs: Any, rows: Rows, advantages: list[list[float]], counted: list[bool]) -> set[tuple[int, int]]:
    """The tokens that clip_cov leaves out, kl_cov charges or top_entropy learns from, as (row, position)."""
    name, o = knobs.surrogate.type, knobs.surrogate
    places = [(i, t) for i, row in enumerate(rows) if counted[i] for t in range(len(row["logp"]))]
    if name == "top_entropy":
        most = max(1, math.floor(o.share * len(places)))
        entropy = {(i, t): rows[i]["step_start_entropy"][t] for i, t in places}
        return set(sorted(places, key=lambda at: (-entropy[at], rows[at[0]]["sample_key"], at[1]))[:most])
    if name not in ("clip_cov", "kl_cov"):
        return set()
    apart_a, apart_l = (
        _apart({(i, t): values(i)[t] for i, t in places})
        for values in (lambda i: advantages[i], lambda i: rows[i]["step_start_logp"])
    )
    cov = {place: apart_a[place] * apart_l[place] for place in places}
    most = max(1, math.floor(o.share * len(places)))
    if name == "kl_cov":
        return set(sorted(places, key=lambda at: (-cov[at], rows[at[0]]["sample_key"], at[1]))[:most])

    def whole(i: int, t: int) -> bool:
        old = rows[i]["old_logp" if knobs.correction.type == "none" else "recomputed_logp"]
        ratio = math.exp(rows[i]["step_start_logp"][t] - old[t])
        return not (ratio > 1 + o.high and advantages[i][t] > 0) and not (ratio < 1 - o.low and advantages[i][t] < 0)

    band = [at for at in places if o.cov_low <= cov[at] <= o.cov_high and whole(*at)]
    return set(sorted(band, key=lambda at: draw(rows[at[0]]["sample_key"], at[1]))[:most])


def draw(key: int, place: int) -> float:
    """SplitMix64's number at a position, in arithmetic modulo 2^64."""
    golden = ((place + 1) * -7046029254386353131) % 2**63
    x = (key + golden) % 2**64
    x = (x ^ (x >> 30)) * (-4658895280553007687 % 2**64) % 2**64
    x = (x ^ (x >> 27)) * (-7723592293110705685 % 2**64) % 2**64
    return ((x ^ (x >> 31)) >> 11) / 2**53


def _critic(knobs: Any, row: dict[str, Any], t: int, target: float) -> float:
    value, old = row["value"][t], row["old_value"][t]
    plain = (value - target) ** 2
    if knobs.advantage.value_clip is None:
        return 0.5 * plain
    near = clipped(value, old - knobs.advantage.value_clip, old + knobs.advantage.value_clip)
    return 0.5 * max(plain, (near - target) ** 2)


def _advantages(
    knobs: Any, rows: Rows, beta: float, sampled: str, state: dict[str, float]
) -> tuple[list[list[float]], list[list[float]]]:
    charge = [[0.0] * len(row["logp"]) for row in rows]
    if knobs.kl.type.startswith("reward"):
        charge = [
            [beta * estimate(knobs.kl.estimator, a, b) for a, b in zip(row[sampled], row["ref_logp"], strict=True)]
            for row in rows
        ]
    if knobs.advantage.type in ("gae", "return_to_go"):
        return _per_token(knobs, rows, charge)
    reduce = mean if getattr(knobs.kl, "reduce", "sum") == "mean" else sum
    if knobs.advantage.type == "win_rate":
        won = [_won(knobs, rows, row) - reduce(costs) for row, costs in zip(rows, charge, strict=True)]
        return [[a] * len(row["logp"]) for a, row in zip(won, rows, strict=True)], []
    rewards = [row["reward"] - reduce(costs) for row, costs in zip(rows, charge, strict=True)]
    if knobs.advantage.type == "outcome_value":
        returns = [[reward] * len(row["logp"]) for reward, row in zip(rewards, rows, strict=True)]
        return [
            [a - v for a, v in zip(rs, row["old_value"], strict=True)] for rs, row in zip(returns, rows, strict=True)
        ], returns
    if knobs.advantage.type == "gdpo":
        return [], []
    compared = [_compared(knobs, rows, rewards, i, state) for i in range(len(rows))]
    return [[a] * len(row["logp"]) for a, row in zip(compared, rows, strict=True)], []


def _won(knobs: Any, rows: Rows, row: dict[str, Any]) -> float:
    met = [other["reward"] for other in rows if other["group"] == row["group"] and other["opponent"]]
    return mean([sigmoid((row["reward"] - r) / knobs.advantage.scale) - 0.5 for r in met]) if met else 0.0


def _compared(knobs: Any, rows: Rows, rewards: list[float], i: int, state: dict[str, float]) -> float:
    if knobs.advantage.type == "batch_centred":
        return rewards[i] - mean(rewards)
    if knobs.advantage.type == "moving_average":
        seen = state["baseline_weight"]
        return rewards[i] - (state["baseline"] / seen if seen else mean(rewards))
    mine = [rewards[j] for j in range(len(rows)) if rows[j]["group"] == rows[i]["group"]]
    if knobs.advantage.type == "leave_one_out":
        others = [rewards[j] for j in range(len(rows)) if rows[j]["group"] == rows[i]["group"] and j != i]
        return rewards[i] - mean(others)
    centred = rewards[i] - mean(mine)
    if knobs.advantage.type == "group_centred":
        return centred
    if knobs.advantage.type == "opo":
        sizes = [len(rows[j]["logp"]) for j in range(len(rows)) if rows[j]["group"] == rows[i]["group"]]
        return rewards[i] - sum(n * r for n, r in zip(sizes, mine, strict=True)) / sum(sizes) if sum(sizes) else 0.0
    if knobs.advantage.type == "pass_at_k":
        return _in_sets(min(knobs.advantage.k, len(mine)), knobs.advantage.threshold, mine, rewards[i])
    if knobs.advantage.type == "maxrl":
        return centred / mean(mine) if sum(mine) else 0.0
    return _zscore(rewards[i], mine)


def _in_sets(k: int, threshold: float, mine: list[float], reward: float) -> float:
    """By counting every set: the passing share of those with a sample of this reward, against that of all."""
    right = [r >= threshold for r in mine]
    sets = [[right[j] for j in chosen] for chosen in combinations(range(len(mine)), k)]
    share = mean([float(any(chosen)) for chosen in sets])
    me = mine.index(reward)
    own = mean([float(any(right[j] for j in chosen)) for chosen in combinations(range(len(mine)), k) if me in chosen])
    return (own - share) / math.sqrt(share * (1 - share)) if 0 < share < 1 else 0.0


def _zscore(x: float, mine: list[float]) -> float:
    if max(mine) == min(mine):
        return 0.0
    deviation = math.sqrt(sum((r - mean(mine)) ** 2 for r in mine) / (len(mine) - 1))
    return (x - mean(mine)) / (deviation + 1e-4)


def _decoupled(rows: Rows) -> list[list[float]]:
    totals = [0.0] * len(rows)
    for part in [name for name in rows[0] if name.startswith("part.")]:
        for i, row in enumerate(rows):
            mine = [other[part] for other in rows if other["group"] == row["group"]]
            totals[i] += row[part.replace("part.", "weight.")] * _zscore(row[part], mine)
    whole = _whitened([[total] for total in totals], [True] * len(rows))
    return [whole[i] * len(row["logp"]) for i, row in enumerate(rows)]


def _per_token(knobs: Any, rows: Rows, charge: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    advantages, returns = [], []
    for row, costs in zip(rows, charge, strict=True):
        length = len(row["logp"])
        rewards = [-cost for cost in costs]
        rewards[-1] += row["reward"]
        if knobs.advantage.type == "return_to_go":
            advantages.append(
                [sum(knobs.advantage.gamma ** (s - t) * rewards[s] for s in range(t, length)) for t in range(length)]
            )
            continue
        values = [*row["old_value"], 0.0]
        delta = [rewards[t] + knobs.advantage.gamma * values[t + 1] - values[t] for t in range(length)]
        by_lam = {
            lam: [
                sum((knobs.advantage.gamma * lam) ** (s - t) * delta[s] for s in range(t, length))
                for t in range(length)
            ]
            for lam in (knobs.advantage.lam, knobs.advantage.value_lam)
            if lam is not None
        }
        advantages.append(by_lam[knobs.advantage.lam])
        known = by_lam.get(knobs.advantage.value_lam, by_lam[knobs.advantage.lam])
        returns.append([a + v for a, v in zip(known, values, strict=False)])
    return advantages, returns


def _whitened(advantages: list[list[float]], counted: list[bool]) -> list[list[float]]:
    seen = [a for row, keep in zip(advantages, counted, strict=True) if keep for a in row]
    if len(seen) < 2 or max(seen) == min(seen):
        return [[0.0] * len(row) for row in advantages]
    middle = mean(seen)
    deviation = math.sqrt(sum((a - middle) ** 2 for a in seen) / (len(seen) - 1) + 1e-8)
    return [[(a - middle) / deviation for a in row] for row in advantages]


def preference(knobs: Any, rows: Rows, state: dict[str, float], still: Rows) -> float:
    """The loss of a preference row."""
    if knobs.loss.type in ("kto", "bco"):
        return _unpaired(knobs, rows, state)
    if knobs.loss.type in ("aot", "aot_unpaired"):
        return _sorted(knobs, rows, still)
    items = sorted({row["item"] for row in rows})
    total = 0.0
    for item in items:
        (chosen,) = [row for row in rows if row["item"] == item and row["side"] > 0]
        (rejected,) = [row for row in rows if row["item"] == item and row["side"] < 0]
        loss = _pair(knobs.loss, _relative(knobs, chosen, "logp"), _relative(knobs, rejected, "logp"))
        total += (loss - knobs.nll * mean(chosen["logp"])) / len(items)
    return total


def _sorted(knobs: Any, rows: Rows, still: Rows) -> float:
    """Each rank of the chosen side against the same rank of the other side; who has which rank, by the step's start."""
    pairs = []
    for item in sorted({row["item"] for row in rows}):
        places = [place for place, row in enumerate(rows) if row["item"] == item]
        pairs.append(sorted(places, key=lambda place: -rows[place]["side"]))

    def cost(h: float, l: float) -> float:  # noqa: E741
        return -log_sigmoid(knobs.loss.beta * (h - l)) / len(pairs)

    def start(place: int) -> float:
        return _relative(knobs, rows[place], "step_start_logp")

    def reference(pair: list[int]) -> float:
        reduce = sum if knobs.reduce == "sum" else mean
        return float(reduce(rows[pair[0]]["ref_logp"]) - reduce(rows[pair[1]]["ref_logp"]))

    total = 0.0
    if knobs.loss.type == "aot":
        ranked = sorted(pairs, key=lambda pair: start(pair[0]) - start(pair[1]) + reference(pair))
        shifts = [(pair, reference(pair) - m) for pair, m in zip(ranked, sorted(map(reference, pairs)), strict=True)]
        sides = [(pair[0], start(pair[1]) - shift, pair[1], start(pair[0]) + shift) for pair, shift in shifts]
    else:
        chosen, rejected = (sorted((pair[side] for pair in pairs), key=start) for side in (0, 1))
        sides = [(a, start(b), b, start(a)) for a, b in zip(chosen, rejected, strict=True)]
    for a, against_a, b, against_b in sides:
        total += cost(_relative(knobs, rows[a], "logp"), against_a)
        total += cost(against_b, _relative(knobs, rows[b], "logp")) - cost(
            against_b, _relative(knobs, still[b], "logp")
        )
        total -= knobs.nll * mean(rows[a]["logp"]) / len(pairs)
    return total


def _relative(knobs: Any, row: dict[str, Any], name: str) -> float:
    shifts = [a - (b if knobs.reference else 0) for a, b in zip(row[name], row.get("ref_logp", row[name]), strict=True)]
    return sum(shifts) if knobs.reduce == "sum" else mean(shifts)


def _log_odds(m: float) -> float:
    return m - math.log(1 - math.exp(m))


def _pair(options: Any, h: float, l: float) -> float:  # noqa: E741
    m, s = getattr(options, "beta", 0.0) * (h - l), getattr(options, "label_smoothing", 0.0)
    match options.type:
        case "dpo":
            return -(1 - s) * log_sigmoid(m) - s * log_sigmoid(-m)
        case "robust_dpo":
            return (-(1 - s) * log_sigmoid(m) + s * log_sigmoid(-m)) / (1 - 2 * s)
        case "exo":
            p = sigmoid(m)
            return p * math.log(p / (1 - s)) + (1 - p) * math.log((1 - p) / s)
        case "ipo":
            return (h - l - 1 / (2 * options.beta)) ** 2
        case "apo_zero":
            return 1 - sigmoid(options.beta * h) + sigmoid(options.beta * l)
        case "apo_down":
            return sigmoid(options.beta * h) + 1 - sigmoid(m)
        case "slic":
            return max(0.0, options.delta - (h - l))
        case "simpo":
            return -log_sigmoid(m - options.gamma)
        case "nca":
            b = options.beta
            return -log_sigmoid(b * h) - 0.5 * log_sigmoid(-b * h) - 0.5 * log_sigmoid(-b * l)
        case "sppo":
            return (h - 0.5 / options.beta) ** 2 + (l + 0.5 / options.beta) ** 2
        case "orpo":
            return -options.beta * log_sigmoid(_log_odds(h) - _log_odds(l))
    raise AssertionError(f"the oracle has no formula for '{options.type}': write it down from its paper")


def _unpaired(knobs: Any, rows: Rows, state: dict[str, float]) -> float:
    if knobs.loss.type == "kto":
        elsewhere = [_relative(knobs, row, "step_start_logp") for row in rows if row["label"] == 0]
        shift = max(0.0, mean(elsewhere)) if elsewhere else 0.0
    else:
        now = mean([_relative(knobs, row, "step_start_logp") for row in rows if row["label"] != 0])
        shift = (state["shift"] * state["steps"] + now) / (state["steps"] + 1)
    kept = [row for row in rows if row["label"] != 0]
    total = 0.0
    for row in kept:
        good = row["label"] > 0
        gain = knobs.loss.beta * (_relative(knobs, row, "logp") - shift) * (1 if good else -1)
        loss = 1 - sigmoid(gain) if knobs.loss.type == "kto" else -log_sigmoid(gain)
        total += (knobs.loss.desirable if good else knobs.loss.undesirable) * loss / len(kept)
        total -= knobs.nll * mean(row["logp"]) / len(kept) if good else 0.0
    return total


def reward(knobs: Any, rows: Rows) -> float:
    """Bradley-Terry over all pairs of an item, mean over the items that have a pair."""
    losses = []
    for item in sorted({row["item"] for row in rows}):
        mine = [row for row in rows if row["item"] == item]
        place = (lambda row: row["rank"]) if knobs.compare == "ranks" else (lambda row: -row["side"])
        pairs = [(a, b) for a in mine for b in mine if place(a) < place(b)]
        if pairs:
            margins = [knobs.margin + (a["margin"] if knobs.margins == "column" else 0) for a, _ in pairs]
            each = [
                -log_sigmoid(a["score"] - b["score"] - m) + knobs.centring * (a["score"] + b["score"]) ** 2
                for (a, b), m in zip(pairs, margins, strict=True)
            ]
            losses.append(mean(each))
    return mean(losses)


def tokens(knobs: Any, rows: Rows, name: str, sign: float) -> float:
    """The mean of a token column, over all tokens or over rows first."""
    if knobs.aggregation == "token_mean":
        return sign * mean([x for row in rows for x in row[name]])
    return sign * mean([mean(row[name]) for row in rows])
