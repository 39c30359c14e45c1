"""GPO's preference module: from a few answers of a group it has never seen, it predicts the group's other answers.

    python examples/group_preferences.py

Each group weighs the six features of an option in its own way, which nobody says. The printed share of new groups'
favourite options that are predicted rises with training, and with the number of answers in the context.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.losses import GroupPreferences, group_preference_loss

WIDTH, OPTIONS, QUESTIONS = 6, 4, 16
CONTEXTS = (0, 4, 8)
"""How many answers of a new group are known."""


def ask(groups: int) -> tuple[Tensor, Tensor]:
    """New groups and questions: the options' features [B, Q, O, WIDTH] and the shares that chose each [B, Q, O]."""
    weights, options = torch.randn(groups, 1, 1, WIDTH), torch.randn(groups, QUESTIONS, OPTIONS, WIDTH)
    return options, (weights * options).sum(-1).softmax(-1)


def first(known: int, groups: int) -> Tensor:
    """A mask [B, Q] of the first questions."""
    return (torch.arange(QUESTIONS) < known).expand(groups, -1)


def main(arguments: Sequence[str] | None = None) -> list[list[float]]:
    """Train; gives, of new groups and for each of CONTEXTS, the accuracy before and after each 200 steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    module = GroupPreferences(WIDTH)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    options, shares = ask(200)

    @torch.no_grad()
    def held_out() -> list[float]:
        masks = [first(known, 200) for known in CONTEXTS]
        return [group_preference_loss(module(options, shares, mask), shares, mask)[1]["accuracy"] for mask in masks]

    history = [held_out()]
    for step in range(1, 601):
        asked, answered = ask(16)
        known = first(int(torch.randint(QUESTIONS - 2, ())), 16)
        loss, _ = group_preference_loss(module(asked, answered, known), answered, known)
        loss.backward()
        optimizer.step(), optimizer.zero_grad()
        if step % 200 == 0:
            history.append(held_out())
            said = ", ".join(f"{right:.2f} with {known}" for known, right in zip(CONTEXTS, history[-1], strict=True))
            print(f"step {step}  loss {loss:.3f}  right by known answers: {said}")
    return history


if __name__ == "__main__":
    main()
