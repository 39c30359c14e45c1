"""Write the completions of a short GRPO run of TRL with a tiny model: python write_trl.py FOLDER, where trl is."""

from __future__ import annotations

import sys
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

words = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz0123456789 +?:\n"]
letters = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=letters, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
    chat_template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
)  # fmt: skip
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
model = Qwen2ForCausalLM(
    Qwen2Config(vocab_size=len(words), num_key_value_heads=1, eos_token_id=1, pad_token_id=0, **sizes)
)
rows = [{"prompt": [{"role": "user", "content": f"what is {n}+1?"}], "answer": str(n + 1)} for n in range(6)]


def brief(completions: Any, **_: Any) -> list[float]:
    """Score short completions."""
    return [1.0 / (1 + len(turns[0]["content"])) for turns in completions]


def right(completions: Any, answer: Any, log_extra: Any, **_: Any) -> list[float | None]:
    """Score right answers; a question has no score."""
    log_extra("gold", list(answer))
    said = [turns[0]["content"] for turns in completions]
    return [None if "?" in text else float(gold in text) for text, gold in zip(said, answer, strict=True)]


settings = GRPOConfig(
    output_dir=sys.argv[1], per_device_train_batch_size=4, num_generations=4, steps_per_generation=2, max_steps=4,
    max_completion_length=8, logging_steps=1, log_completions=True, report_to=[], use_cpu=True, save_strategy="no",
    reward_weights=[0.5, 1.0], seed=1, beta=0.0,
)  # fmt: skip
GRPOTrainer(
    model, [brief, right], args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
).train()
