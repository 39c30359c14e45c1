"""mDPO: a tiny LLaVA learns to say the colour that it sees, from pairs of answers and pairs of images.

    python examples/mdpo.py

Images are a coloured square on grey with noise. The rejected answer is another colour; the other image has a square of
that colour. The printed share of new images whose colour is the likeliest answer rises from chance.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from posttrain.losses import mdpo_loss, token_logprobs

COLOURS = torch.tensor([[1.0, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, 1, -1], [1, -1, 1], [-1, 1, 1]])
IMAGE, QUESTION, END, PATCHES = len(COLOURS), len(COLOURS) + 1, len(COLOURS) + 2, 16
"""Tokens: the colours' names, an image's patch, the question, the end."""


def tiny_llava() -> Any:
    """A random vision-language model."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = CLIPVisionConfig(image_size=16, patch_size=4, **sizes)
    text = LlamaConfig(vocab_size=END + 1, max_position_embeddings=64, **sizes)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=IMAGE, image_seq_length=PATCHES)
    return LlavaForConditionalGeneration(config)


def images_of(colours: Tensor) -> Tensor:
    """A square of each colour somewhere in an image [B, 3, 16, 16]."""
    images = torch.zeros(len(colours), 3, 16, 16)
    for image, colour in zip(images, COLOURS[colours], strict=True):
        top, left = torch.randint(9, (2,)).tolist()
        image[:, top : top + 8, left : left + 8] = colour[:, None, None]
    return images + 0.2 * torch.randn(images.shape)


def logprobs(model: Any, images: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs [B, T] of the tokens after the first, and the mask of the answer's."""
    start = torch.tensor([*PATCHES * [IMAGE], QUESTION]).expand(len(answers), -1)
    ids = torch.cat([start, answers[:, None], torch.full((len(answers), 1), END)], 1)
    logits = model(input_ids=ids, pixel_values=images).logits
    mask = (torch.arange(ids.shape[1] - 1) >= PATCHES).expand(len(ids), -1)
    return token_logprobs(logits[:, :-1], ids[:, 1:])[0], mask


@torch.no_grad()
def accuracy(model: Any, images: Tensor, colours: Tensor) -> float:
    """How often the right colour is the likeliest of all."""
    rows = [logprobs(model, images, torch.full_like(colours, name)) for name in range(len(COLOURS))]
    likeliest = torch.stack([(logp * mask).sum(1) for logp, mask in rows]).argmax(0)
    return float((likeliest == colours).float().mean())


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train; gives the accuracy on new images before, and after each fifty steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = tiny_llava()
    reference = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    held_out = torch.arange(120) % len(COLOURS)
    new = images_of(held_out)
    history = [accuracy(model, new, held_out)]
    for step in range(1, 201):
        right = torch.randint(len(COLOURS), (16,))
        wrong = (right + torch.randint(1, len(COLOURS), (16,))) % len(COLOURS)
        seen = images_of(right)
        images, answers = torch.cat([seen, seen, images_of(wrong)]), torch.cat([right, wrong, right])
        logp, mask = logprobs(model, images, answers)
        with torch.no_grad():
            ref_logp, _ = logprobs(reference, images, answers)
        loss, metrics = mdpo_loss(logp, mask, ref_logp, beta=0.5)
        loss.backward()
        optimizer.step(), optimizer.zero_grad()
        if step % 50 == 0:
            history.append(accuracy(model, new, held_out))
            pairs = metrics["image_accuracy"]
            print(f"step {step}  loss {loss:.3f}  image pairs {pairs:.2f}  right on new images {history[-1]:.2f}")
    return history


if __name__ == "__main__":
    main()
