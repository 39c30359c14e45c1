"""The side `bound` of each workload: the loops around bound.py's model."""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from benchmarks.speed.bound import Adam, Llama, Logp, Packed, logps, token_step
from benchmarks.speed.case import Case, batches, language_model, scorer
from benchmarks.speed.meter import Meter, Report


def sft(case: Case) -> Report:
    """-mean log p over the batch's completion tokens."""
    torch.set_num_threads(1)
    model, meter = Llama(language_model(case.shape), case.shape), Meter(case.warm)
    adam, losses, tokens = Adam(model.parameters), [], 0
    given = batches(case)
    for items in given:
        meter.update()
        rows = Packed([(row.prompt, row.completion) for item in items for row in item])
        weight = 1 / rows.target.numel()
        loss, _ = token_step(
            model,
            rows,
            lambda _, logp, w=weight: (-w * logp, torch.full_like(logp, -w)),  # type: ignore[misc]
        )
        adam.step()
        losses.append(loss)
    meter.end()
    tokens = sum(len(row) for items in given[case.warm :] for item in items for row in item)
    return meter.report(tokens, losses)


def reward(case: Case) -> Report:
    """-logsigmoid(chosen - rejected), with accuracy and margin."""
    torch.set_num_threads(1)
    source = scorer(case.shape)
    model, meter = Llama(source, case.shape), Meter(case.warm)
    head = source.score.weight.detach().clone().requires_grad_()
    adam, losses = Adam([*model.parameters, head]), []
    for items in batches(case, 2):
        meter.update()
        rows = Packed([(row.prompt, row.completion) for item in items for row in item])
        score = model.states(rows)[rows.last_B] @ head[0]
        gap = score[0::2] - score[1::2]
        loss = -logsigmoid(gap).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        _ = float((gap > 0).float().mean()), float(gap.detach().mean())
        losses.append(loss.item())
    meter.end()
    return meter.report(case.batch * case.updates, losses)


def dpo(case: Case) -> Report:
    """-logsigmoid(beta (h - l)) against a frozen reference, with accuracy and margin."""
    torch.set_num_threads(1)
    source = language_model(case.shape)
    model, reference, meter = Llama(source, case.shape), Llama(source, case.shape), Meter(case.warm)
    del source
    adam, losses = Adam(model.parameters), []
    for items in batches(case, 2):
        meter.update()
        rows = Packed([(row.prompt, row.completion) for item in items for row in item])
        with torch.no_grad():
            before = logps(reference.states(rows)[rows.source], reference.embedding, rows.target)
        logp = Logp.apply(model.states(rows)[rows.source], model.embedding, rows.target)  # type: ignore[no-untyped-call]
        relative = torch.segment_reduce(logp - before, "sum", lengths=rows.lengths, unsafe=True)
        gap = 0.1 * (relative[0::2] - relative[1::2])
        loss = -logsigmoid(gap).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        _ = float((gap > 0).float().mean()), float(gap.detach().mean())
        losses.append(loss.item())
    meter.end()
    return meter.report(case.batch * case.updates, losses)
