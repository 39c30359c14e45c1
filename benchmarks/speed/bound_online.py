"""The side `bound` of GRPO and RLOO: a decoding loop of bare tensor calls, and the updates by bound.py's model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from benchmarks.speed.bound import EPS, Adam, Llama, Packed, logps, token_step
from benchmarks.speed.case import STOP, Case, language_model, prompts, reward, tokenizer
from benchmarks.speed.meter import Meter, Report
from posttrain.formulas.ragged import row_keys, uniform

Advantage = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Algorithm:
    """What differs between the two."""

    beta: float
    on_policy_gradient: bool


GRPO, RLOO = Algorithm(0.04, False), Algorithm(0.05, True)


class Decoder:
    """Rows in equal groups by prompt; finished rows leave their groups' slots behind until whole groups can shrink."""

    def __init__(self, model: Llama, given: list[list[int]], group: int, room: int) -> None:
        self.model, self.group, self.used = model, group, 0
        heads, size = model.heads, model.size
        packed = Packed([(prompt, []) for prompt in given])
        longest = max(len(prompt) for prompt in given)
        self.bias = torch.zeros(len(given) * heads, 1, longest)
        self.keys: list[list[Tensor]] = []
        place = torch.repeat_interleave(torch.arange(len(given)), torch.tensor([len(p) for p in given]))
        for i, prompt in enumerate(given):
            self.bias[i * heads : (i + 1) * heads, 0, len(prompt) :] = -torch.inf
        states = self._prefill(packed, place, longest, len(given))
        self.state = states[torch.tensor([len(p) for p in given]).cumsum(0) - 1].repeat_interleave(group, 0)
        rows = len(given) * group
        self.own = torch.empty(len(model.layers), 2, rows * heads, room, size)
        self.slots: Tensor | None = None
        self.scale = size**-0.5

    def _prefill(self, packed: Packed, place: Tensor, longest: int, count: int) -> Tensor:
        model = self.model
        x = model.embedding[packed.ids]
        cos, sin = model.cos[packed.positions][:, None], model.sin[packed.positions][:, None]
        for norm1, qkv, out, norm2, gate_up, down in model.layers:
            split = (_norm(x, norm1) @ qkv.T).view(-1, 3 * model.heads, model.size)
            turned = _turn(split[:, : 2 * model.heads], cos, sin)
            k, v = turned[:, model.heads :], split[:, 2 * model.heads :]
            kept = []
            for part in (k, v):
                padded = part.new_zeros(count, longest, model.heads, model.size)
                padded[place, packed.positions] = part
                kept.append(padded.transpose(1, 2).reshape(count * model.heads, longest, model.size))
            self.keys.append([kept[0].transpose(1, 2), kept[1]])
            x = x + packed.attend(turned[:, : model.heads], k, v).flatten(1) @ out.T
            gate, up = (_norm(x, norm2) @ gate_up.T).chunk(2, 1)
            x = x + (silu(gate) * up) @ down.T
        return _norm(x, model.norm)

    def step(self, token: Tensor, position: Tensor) -> None:
        """One more token of each row."""
        model, heads, size = self.model, self.model.heads, self.model.size
        x = model.embedding[token]
        rows = x.shape[0]
        cos, sin = model.cos[position][:, None], model.sin[position][:, None]
        self.used += 1
        for i, (norm1, qkv, out, norm2, gate_up, down) in enumerate(model.layers):
            split = (_norm(x, norm1) @ qkv.T).view(rows, 3 * heads, size)
            turned = _turn(split[:, : 2 * heads], cos, sin)
            own_k, own_v = self.own[i, 0], self.own[i, 1]
            own_k[:, self.used - 1] = turned[:, heads:].reshape(-1, size)
            own_v[:, self.used - 1] = split[:, 2 * heads :].reshape(-1, size)
            q = turned[:, :heads] * self.scale
            grouped = self._grouped(q)
            seen = torch.baddbmm(self.bias, grouped, self.keys[i][0])
            seen = self._rows(seen).reshape(rows * heads, 1, -1)
            alone = torch.bmm(q.reshape(rows * heads, 1, size), own_k[:, : self.used].transpose(1, 2))
            p = torch.cat([seen, alone], 2).softmax(2)
            width = seen.shape[2]
            mixed = torch.bmm(p[:, :, width:], own_v[:, : self.used]).view(rows, heads, size)
            mixed += self._rows(torch.bmm(self._grouped(p[:, 0, :width].view(rows, heads, width)), self.keys[i][1]))
            x = torch.addmm(x, mixed.view(rows, -1), out.T)
            gate, up = (_norm(x, norm2) @ gate_up.T).chunk(2, 1)
            x = torch.addmm(x, silu(gate).mul_(up), down.T)
        self.state = _norm(x, model.norm)

    def _grouped(self, part: Tensor) -> Tensor:
        """[R, H, X] -> [P H, slots, X]."""
        _, heads, width = part.shape
        if self.slots is not None:
            part = part.new_zeros(self.bias.shape[0] // heads * self.group, heads, width).index_copy_(
                0, self.slots, part
            )
        return part.view(-1, self.group, heads, width).transpose(1, 2).reshape(-1, self.group, width)

    def _rows(self, part: Tensor) -> Tensor:
        heads, width = self.model.heads, part.shape[2]
        part = part.view(-1, heads, self.group, width).transpose(1, 2).flatten(0, 1)
        return part if self.slots is None else part[self.slots]

    def keep(self, rows: Tensor) -> None:
        """Drop the others."""
        heads, size = self.model.heads, self.model.size
        self.slots = rows if self.slots is None else self.slots[rows]
        layers, two, _, room, _ = self.own.shape
        fresh = torch.empty(layers, two, rows.numel() * heads, room, size)
        old = self.own.view(layers, two, -1, heads, room, size)
        fresh.view(layers, two, -1, heads, room, size)[:, :, :, :, : self.used] = old[:, :, rows, :, : self.used]
        self.own = fresh


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch.rms_norm(x, x.shape[1:], weight, EPS)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)


@torch.no_grad()
def decode(
    model: Llama, given: list[list[int]], names: list[str], group: int, room: int
) -> tuple[list[list[int]], list[list[float]]]:
    """Return the same draws as the library's, so that the samples are the same."""
    decoder = Decoder(model, given, group, room)
    draws = uniform(row_keys(0, [f"{name}:{i}" for name in names for i in range(group)]), room)
    rows = torch.arange(len(given) * group)
    position = torch.tensor([len(p) for p in given]).repeat_interleave(group)
    tokens = torch.full((rows.numel(), room), STOP)
    found = torch.zeros(rows.numel(), room)
    live = torch.ones(rows.numel(), dtype=torch.bool)
    for t in range(room):
        logits = decoder.state @ model.embedding.T
        p = logits.softmax(1)
        cdf = p.cumsum(1, dtype=torch.float64)
        token = torch.searchsorted(cdf, draws[:, t, None] * cdf[:, -1:], right=True).clamp_(max=cdf.shape[1] - 1)
        logp = logits.gather(1, token) - (logits.amax(1) - p.amax(1).log_())[:, None]
        token = token[:, 0]
        tokens[rows, t], found[rows, t] = token, logp[:, 0]
        live &= token != STOP
        left = int(live.sum())
        if left == 0 or t + 1 == room:
            break
        if left <= 0.8 * rows.numel():
            kept = live.nonzero()[:, 0]
            decoder.keep(kept)
            rows, position, token, draws, live = rows[kept], position[kept], token[kept], draws[kept], live[kept]
        decoder.step(token, position + t)
    ids = [row[: row.index(STOP) + 1] if STOP in row else row for row in tokens.tolist()]
    return ids, [row[: len(one)] for row, one in zip(found.tolist(), ids, strict=True)]


def online(case: Case, algorithm: Algorithm) -> Report:
    """Rounds of samples, each in two updates, as the library's own loop takes them."""
    torch.set_num_threads(1)
    source = language_model(case.shape)
    model, reference, meter = Llama(source, case.shape), Llama(source, case.shape), Meter(case.warm)
    del source
    count = case.batch // case.group
    given, words, adam = prompts(case, count), tokenizer(case.shape), Adam(model.parameters)
    losses: list[float] = []
    lengths: list[int] = []
    for number in range((case.warm + case.updates) // 2):
        meter.update()
        lap = torch.randperm(count, generator=torch.Generator().manual_seed(number)).tolist()
        asked = [given[i] for i in lap]
        ids, logp = decode(model, asked, [f"p{i}:{number}:0" for i in lap], case.group, case.longest_answer)
        for one in ids:
            words.decode(one, skip_special_tokens=True)
        rewards = torch.tensor([reward(one) for one in ids])
        rows = [(asked[i // case.group], one) for i, one in enumerate(ids)]
        with torch.no_grad():
            packed = Packed(rows)
            before = logps(reference.states(packed)[packed.source], reference.embedding, packed.target)
        ref = torch.split(before, [len(one) for one in ids])
        order = torch.randperm(count, generator=torch.Generator().manual_seed(number * 1009))
        for half, part in enumerate(order.tensor_split(2)):
            if half:
                meter.update()
            mine = [g * case.group + i for g in part.tolist() for i in range(case.group)]
            packed = Packed([rows[i] for i in mine])
            old = torch.cat([torch.tensor(logp[i]) for i in mine])
            losses.append(
                _update(model, adam, packed, algorithm, old, torch.cat([ref[i] for i in mine]), rewards[mine], case)
            )
        lengths += [len(one) for one in ids] if number * 2 >= case.warm else []
    meter.end()
    return meter.report(case.batch * case.updates / 2, losses, length=sum(lengths) / len(lengths))


def _update(
    model: Llama,
    adam: Adam,
    packed: Packed,
    algorithm: Algorithm,
    old: Tensor,
    ref: Tensor,
    rewards: Tensor,
    case: Case,
) -> float:
    lengths = packed.lengths
    rows = lengths.numel()
    if algorithm.on_policy_gradient:
        charge = torch.segment_reduce(old - ref, "sum", lengths=lengths, unsafe=True) * algorithm.beta
        groups = (rewards - charge).view(-1, case.group)
        spread = ((groups - (groups.sum(1, keepdim=True) - groups) / (case.group - 1)) / rows).flatten()
        slope = spread.repeat_interleave(lengths)
        loss, _ = token_step(model, packed, lambda part, logp: (-slope[part] * logp, -slope[part]))
    else:
        groups = rewards.view(-1, case.group)
        advantage = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        advantage = advantage.repeat_interleave(lengths)
        weight = (1 / (rows * lengths)).repeat_interleave(lengths)

        def item(part: slice, logp: Tensor) -> tuple[Tensor, Tensor]:
            ratio = (logp - old[part]).exp()
            clipped = ratio.clamp(0.8, 1.2)
            a, w, gap = advantage[part], weight[part], ref[part] - logp
            inside = ratio * a <= clipped * a
            back = gap.exp()
            loss = w * (-torch.minimum(ratio * a, clipped * a) + algorithm.beta * (back - gap - 1))
            return loss, w * (-torch.where(inside, ratio * a, 0.0) + algorithm.beta * (1 - back))

        loss, _ = token_step(model, packed, item)
    adam.step()
    return loss
