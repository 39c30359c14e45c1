"""RLOO: completions per CPU second, from the prompt to the update."""

from __future__ import annotations

from typing import Any

from benchmarks.speed import bound_online, ours, theirs
from benchmarks.speed.case import Case
from benchmarks.speed.meter import Report

BETA = 0.05


def posttrain(case: Case) -> Report:
    """Return the stage's loop: sampling, reward, reference, updates."""
    return ours.online(case, "rloo", {"kl": {"beta": BETA}})


def bound(case: Case) -> Report:
    """Return the same rounds by hand, with the same draws."""
    return bound_online.online(case, bound_online.RLOO)


def trl(case: Case) -> Report:
    """TRL, tuned, with transformers' generation."""
    return _trl(case, theirs.tuned(case))


def trl_default(case: Case) -> Report:
    """TRL as it comes, with the same divergence price."""
    return _trl(case, {})


def _trl(case: Case, over: dict[str, Any]) -> Report:
    theirs.require()
    from trl import RLOOConfig, RLOOTrainer

    return theirs.online(RLOOTrainer, RLOOConfig, case, {"beta": BETA, **over})


SIDES = {"posttrain": posttrain, "bound": bound, "trl": trl, "trl_default": trl_default}
