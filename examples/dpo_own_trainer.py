"""DPO in a training loop of your own: a model of transformers, an optimizer of torch, and `preference_loss`.

    python examples/dpo_own_trainer.py                    # a tiny random model learns to say it without "maybe"
    python examples/dpo_own_trainer.py --model PATH --algorithm ipo

Nothing of posttrain runs but the loss. It prints the loss and how often the chosen answer is the likelier one.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tiny import model_and_tokenizer
from torch import Tensor

from posttrain.losses import preference_loss, token_logprobs

PAIRS = [(f"{a} + {b}", str(a + b), f"maybe {a + b}") for a in range(6) for b in range(4)]
"""(prompt, chosen, rejected)."""


def collate(tokenizer: Any, pairs: Sequence[tuple[str, str, str]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [2B, T] and the mask of the answers' tokens: the chosen rows first, then the rejected ones."""
    rows = [(prompt, chosen) for prompt, chosen, _ in pairs] + [(prompt, rejected) for prompt, _, rejected in pairs]
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True,
                                      return_dict=False)
        for prompt, _ in rows
    ]  # fmt: skip
    answers = [
        tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] for _, answer in rows
    ]
    longest = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        mask[row, len(prompt) : end] = True
    return ids.to(device), mask.to(device)


def logprobs(model: Any, ids: Tensor) -> Tensor:
    """Log-probs of ids[:, 1:]; rows are padded on the right, where a causal model does not look."""
    return token_logprobs(model(ids).logits[:, :-1], ids[:, 1:])[0]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Train; gives the metrics of each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder")
    parser.add_argument("--algorithm", default="dpo", help="any algorithm on pairs that has a reference")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    model, tokenizer = model_and_tokenizer(args.model, args.seed)
    reference = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr or (1e-6 if args.model else 3e-3))
    generator = torch.Generator().manual_seed(args.seed)
    history = []
    for epoch in range(args.epochs):
        for batch in torch.randperm(len(PAIRS), generator=generator).split(8):
            ids, mask = collate(tokenizer, [PAIRS[place] for place in batch.tolist()], model.device)
            with torch.no_grad():
                ref_logp = logprobs(reference, ids)
            loss, metrics = preference_loss(args.algorithm, logprobs(model, ids), mask[:, 1:], ref_logp=ref_logp)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append({"loss": float(loss.detach()), **metrics})
        last = history[-1]
        print(f"epoch {epoch}  loss {last['loss']:.3f}  accuracy {last['accuracy']:.2f}  margin {last['margin']:.2f}")
    return history


if __name__ == "__main__":
    main()
