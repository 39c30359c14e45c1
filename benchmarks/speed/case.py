"""What is measured: the models, the rows of ids, and how much of them, the same for every side.

Lengths are the quantile midpoints of a log-normal distribution, the same set in every batch and in a new order, as wide
as makes a batch padded to its longest row hold 2.35 times its real tokens. Ids are random: speed does not depend on
their meaning. A row's first 30 % is its prompt; the two answers of a pair have similar lengths and one prompt.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

PADDING = 2.35
"""Padded over real tokens of a batch of random rows, as met in chat data."""
PROMPT_SHARE = 0.3
STOP = 1
"""The token that ends a completion; 0 is the padding."""
LEARNING_RATE = 1e-4
BETAS = (0.9, 0.95)
CLIP = 1.0


@dataclass(frozen=True)
class Shape:
    """A model with random weights and tied embeddings: a Llama, or a Qwen3 where it says so."""

    name: str
    layers: int
    width: int
    heads: int
    feed_forward: int
    vocabulary: int
    family: Literal["llama", "qwen3"] = "llama"
    kv_heads: int | None = None
    head_size: int | None = None

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.head_size or self.width // self.heads


SHAPES = {
    "T": Shape("T", 4, 128, 4, 512, 64),
    "S": Shape("S", 8, 512, 8, 1368, 32_000),
    "control": Shape("control", 8, 512, 8, 1368, 512),
    "tiny": Shape("tiny", 2, 32, 2, 64, 97),
    "Q": Shape("Q", 28, 1024, 16, 3072, 151_936, "qwen3", kv_heads=8, head_size=128),
    "8B": Shape("8B", 36, 4096, 32, 12_288, 151_936, "qwen3", kv_heads=8, head_size=128),
    "tiny-qwen3": Shape("tiny-qwen3", 2, 32, 4, 64, 97, "qwen3", kv_heads=2, head_size=16),
}


@dataclass(frozen=True)
class Case:
    """A workload's size: `updates` optimizer steps are counted, after `warm` ones that are not."""

    shape: Shape
    batch: int
    longest: int
    updates: int
    warm: int = 1
    warm_longest: int = 16
    padding: float = PADDING
    prompt_share: float = PROMPT_SHARE
    group: int = 8
    longest_answer: int = 64
    device: Literal["cpu", "cuda"] = "cpu"

    def with_shape(self, **changes: Any) -> Case:
        """Return the same case on a changed model."""
        return replace(self, shape=replace(self.shape, **changes))


@dataclass(frozen=True)
class Row:
    """A prompt and its answer."""

    prompt: list[int]
    completion: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


def lengths(count: int, longest: int, padding: float, shortest: int = 4) -> list[int]:
    """The quantile midpoints of a log-normal distribution whose last is `longest`, `padding` times their mean."""
    quantiles = [NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)]
    low, high = 0.0, 5.0
    for _ in range(40):
        middle = (low + high) / 2
        shares = [math.exp(middle * (z - quantiles[-1])) for z in quantiles]
        low, high = (middle, high) if count / sum(shares) < padding else (low, middle)
    return [max(round(longest * share), shortest) for share in shares]


def batches(case: Case, answers: int = 1) -> list[list[list[Row]]]:
    """[update][item][answer]: the warm-up first, whose rows are short; the answers of an item share its prompt."""
    rng = random.Random(7)
    made = []
    for update in range(case.warm + case.updates):
        longest = case.warm_longest if update < case.warm else case.longest
        sizes = lengths(case.batch * answers, longest, case.padding)
        items = [sizes[i : i + answers] for i in range(0, len(sizes), answers)]
        rng.shuffle(items)
        made.append([_item(rng, mine, case) for mine in items])
    return made


def prompts(case: Case, count: int) -> list[list[int]]:
    """Prompts for online workloads, of lengths spread in the same way."""
    rng = random.Random(8)
    sizes = lengths(count, case.longest, case.padding)
    rng.shuffle(sizes)
    return [_ids(rng, size, case) for size in sizes]


def padding(items: Sequence[Sequence[Row]]) -> float:
    """Padded over real tokens when all rows are padded to the longest."""
    sizes = [len(row) for item in items for row in item]
    return max(sizes) * len(sizes) / sum(sizes)


def reward(ids: Sequence[int]) -> float:
    """Return a reward that any sample can get: the share of even tokens."""
    return sum(token % 2 == 0 for token in ids) / max(len(ids), 1)


def config(shape: Shape) -> Any:
    """Return the model's configuration for transformers."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    made, name = (LlamaConfig, "LlamaForCausalLM") if shape.family == "llama" else (Qwen3Config, "Qwen3ForCausalLM")
    return made(
        vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads or shape.heads, head_dim=shape.head,
        intermediate_size=shape.feed_forward, max_position_embeddings=4096, tie_word_embeddings=True, pad_token_id=0,
        bos_token_id=None, eos_token_id=STOP, architectures=[name],
    )  # fmt: skip


def language_model(shape: Shape, device: str = "cpu") -> Any:
    """Return the causal language model as transformers makes it on a device, the same weights for every side."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaForCausalLM
    from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return (LlamaForCausalLM if shape.family == "llama" else Qwen3ForCausalLM)(config(shape))


def scorer(shape: Shape) -> Any:
    """Return the same with a scalar head."""
    import torch
    from transformers.models.llama.modeling_llama import LlamaForSequenceClassification

    settings = config(shape)
    settings.num_labels = 1
    settings.architectures = ["LlamaForSequenceClassification"]
    torch.manual_seed(0)
    return LlamaForSequenceClassification(settings)  # type: ignore[no-untyped-call]


def tokenizer(shape: Shape) -> Any:
    """Return one word for each id; online trainers decode what they sample."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<stop>": STOP} | {f"w{i}": i for i in range(2, shape.vocabulary)}
    made = Tokenizer(WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<stop>"}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, padding_side="left", **special
    )


def words(ids: Sequence[int]) -> str:
    """Return the text of which `tokenizer` makes these ids."""
    return " ".join("<stop>" if i == STOP else f"w{i}" for i in ids)


def _item(rng: random.Random, sizes: Sequence[int], case: Case) -> list[Row]:
    prompt = _ids(rng, max(round(min(sizes) * case.prompt_share), 1), case)
    return [Row(prompt, [*_ids(rng, max(size - len(prompt) - 1, 1), case), STOP]) for size in sizes]


def _ids(rng: random.Random, count: int, case: Case) -> list[int]:
    return [rng.randrange(2, case.shape.vocabulary) for _ in range(count)]
