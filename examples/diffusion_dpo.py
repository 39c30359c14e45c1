"""Diffusion-DPO: a small denoiser of points in the plane learns which of its samples people like.

    python examples/diffusion_dpo.py

It is trained on four clusters. Annotators mostly prefer the point that lies further right. The printed share of new
samples on the right rises, and samples stay in the clusters.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posttrain.losses import diffusion_dpo_loss

STEPS = 30
KEPT = torch.linspace(1e-3, 0.3, STEPS).neg().log1p().cumsum(0).exp()  # of the variance, at each step
CENTRES = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])


def predict(model: nn.Module, points: Tensor, steps: Tensor) -> Tensor:
    """The noise in points [B, 2]."""
    noise: Tensor = model(torch.cat([points, nn.functional.one_hot(steps, STEPS)], 1))
    return noise


def noised(points: Tensor, noise: Tensor, steps: Tensor) -> Tensor:
    """Points as they are at these steps."""
    kept = KEPT[steps, None]
    return kept.sqrt() * points + (1 - kept).sqrt() * noise


@torch.no_grad()
def draw(model: nn.Module, count: int) -> Tensor:
    """Samples, from noise back to step 0 (DDIM)."""
    points = torch.randn(count, 2)
    for step in reversed(range(STEPS)):
        left, noise = KEPT[step], predict(model, points, torch.full((count,), step))
        clean = ((points - (1 - left).sqrt() * noise) / left.sqrt()).clamp(-1.5, 1.5)
        noise = (points - left.sqrt() * clean) / (1 - left).sqrt()
        points = noised(clean, noise, torch.full((count,), step - 1)) if step else clean
    return points


def shares(model: nn.Module) -> tuple[float, float]:
    """Of 2000 new samples: how many lie on the right, and how many near a cluster."""
    points = draw(model, 2000)
    near = torch.cdist(points, CENTRES).min(1).values < 0.3
    return float((points[:, 0] > 0).float().mean()), float(near.float().mean())


def main(arguments: Sequence[str] | None = None) -> list[tuple[float, float]]:
    """Train; gives `shares` before, and after each hundred steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(2 + STEPS, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000)
    for _ in range(2000):
        points = CENTRES[torch.randint(4, (256,))] + 0.08 * torch.randn(256, 2)
        noise, steps = torch.randn(256, 2), torch.randint(STEPS, (256,))
        (predict(model, noised(points, noise, steps), steps) - noise).square().mean().backward()
        optimizer.step(), schedule.step(), optimizer.zero_grad()

    reference, history = copy.deepcopy(model).requires_grad_(requires_grad=False), [shares(model)]
    pairs = draw(reference, 10_000).view(-1, 2, 2)
    likes_first = torch.rand(len(pairs)) < torch.sigmoid(3 * (pairs[:, 0, 0] - pairs[:, 1, 0]))
    pairs = torch.where(likes_first[:, None, None], pairs, pairs.flip(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for step in range(1, 401):
        points = pairs[torch.randint(len(pairs), (256,))].transpose(0, 1).flatten(0, 1)  # the chosen ones first
        noise, steps = torch.randn(256, 2).repeat(2, 1), torch.randint(STEPS, (256,)).repeat(2)
        given = noised(points, noise, steps), steps
        loss, _ = diffusion_dpo_loss(predict(model, *given), predict(reference, *given), noise, beta=5.0)
        loss.backward()
        optimizer.step(), optimizer.zero_grad()
        if step % 100 == 0:
            history.append(shares(model))
            print(f"step {step}  loss {loss:.3f}  right {history[-1][0]:.2f}  near a cluster {history[-1][1]:.2f}")
    return history


if __name__ == "__main__":
    main()
