"""The generated rows and their tokenizer, and the two sides that are measured, each a process of its own.

python -m benchmarks.data.sides tokens|datasets      in a folder that `write_inputs` has filled
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

ROWS_FILE: Final = Path("my/rows.jsonl")
EXAM_FILE: Final = Path("my/exam.jsonl")
TOKENIZER: Final = Path("models/base/tokenizer")
REPEATED: Final = 100
"""One row in so many is the same as the one before, and one is the same but for its last word."""
EXAM: Final = 1000
HELD_OUT: Final = 0.05
_VOCABULARY: Final = 20_000
_DRAWN: Final = 10_000
_LEARNED: Final = 5_000
"""Rows that the tokenizer is trained on."""


def generated(count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Prompts of 32 to 53 words and answers of 22 to 53, drawn by Zipf's law: about 100 tokens with the template."""
    draw = np.random.default_rng(seed)
    letters = [list("bcdfghlmnprst"), list("aeiou")]
    words = np.array(
        [
            "".join(str(draw.choice(some)) for _ in range(draw.integers(1, 5)) for some in letters)
            for _ in range(_VOCABULARY)
        ]
    )
    row: dict[str, str] = {}
    for start in range(0, count, _DRAWN):
        size = min(_DRAWN, count - start)
        drawn = words[np.minimum(draw.zipf(1.3, size=(size, 108)), _VOCABULARY) - 1]
        asked, answered = draw.integers(32, 54, size=size), draw.integers(22, 54, size=size)
        for nth in range(size):
            place = (start + nth) % REPEATED
            if place == 1:
                row = dict(row)
            elif place == 2:
                row = {**row, "completion": f"{row['completion']} {words[nth % _VOCABULARY]}"}
            else:
                prompt = " ".join(drawn[nth, : asked[nth]])
                row = {
                    "prompt": f"{prompt} {start + nth}?",
                    "completion": " ".join(drawn[nth, 54 : 54 + answered[nth]]),
                }
            yield row


def write_inputs(count: int) -> None:
    """The rows, an evaluation that repeats some of their prompts, and a tokenizer, in the current folder."""
    from posttrain.text.bpe import BpeParams, train_tokenizer

    ROWS_FILE.parent.mkdir(parents=True)
    texts: list[str] = []
    with ROWS_FILE.open("w", encoding="utf-8") as rows, EXAM_FILE.open("w", encoding="utf-8") as exam:
        for number, row in enumerate(generated(count)):
            rows.write(json.dumps(row) + "\n")
            if number < _LEARNED:
                texts += row.values()
            if number % (count // EXAM) == 0:
                exam.write(json.dumps({"prompt": row["prompt"], "split": "test"}) + "\n")
        exam.write(json.dumps({"prompt": "What is asked of training?", "split": "train"}) + "\n")
    train_tokenizer(texts, BpeParams(vocabulary=8192), TOKENIZER)


def tokens() -> None:
    """What `stages.sft` does with a table before it trains."""
    import stages  # noqa: F401 - what it sets for libraries
    from posttrain.models.files.store import load_tokenizer
    from posttrain.pipeline.tables.store import read_table
    from posttrain.text.chat import ChatText
    from posttrain.train.examples import RowLimit
    from posttrain.train.tokenize_tables import demonstrations

    text = ChatText(load_tokenizer(TOKENIZER), str(TOKENIZER))
    frame = read_table("data/rows/chat.parquet", "chat")
    sizes = {
        split: demonstrations(text, frame.filter(split=split), RowLimit(max_tokens=4096), "rows", "last").tokens
        for split in ("train", "heldout")
    }
    print(json.dumps({"rows": sum(map(len, sizes.values())), "tokens": sum(int(one.sum()) for one in sizes.values())}))


def with_datasets() -> None:
    """The same work by `datasets`: read, check, exact duplicates, split, tokenize with two processes."""
    import datasets

    from posttrain.models.files.store import load_tokenizer

    datasets.disable_progress_bars()
    tokenizer = load_tokenizer(TOKENIZER)
    seen: set[bytes] = set()

    def good_and_new(batch: dict[str, list[str]]) -> list[bool]:
        kept = []
        for prompt, completion in zip(batch["prompt"], batch["completion"], strict=True):
            key = hashlib.sha256(json.dumps([prompt, completion]).encode()).digest()
            kept.append(bool(prompt.strip() and completion.strip()) and key not in seen)
            seen.add(key)
        return kept

    def tokenized(batch: dict[str, list[str]]) -> dict[str, Any]:
        asked = [[{"role": "user", "content": one}] for one in batch["prompt"]]
        talks = [
            [*one, {"role": "assistant", "content": two}] for one, two in zip(asked, batch["completion"], strict=True)
        ]
        heads = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(talks, tokenize=False)
        rests = [one[len(head) :].removesuffix("\n") for one, head in zip(whole, heads, strict=True)]
        return {
            name: tokenizer(texts, add_special_tokens=False)["input_ids"]
            for name, texts in (("prompt_ids", heads), ("ids", rests))
        }

    rows = datasets.load_dataset("json", data_files=str(ROWS_FILE), split="train", cache_dir="cache")
    rows = rows.filter(good_and_new, batched=True)
    rows = rows.train_test_split(test_size=HELD_OUT, seed=0)
    rows = rows.map(tokenized, batched=True, num_proc=2, remove_columns=["prompt", "completion"])
    rows.save_to_disk("saved")
    count = sum(len(one["prompt_ids"]) + len(one["ids"]) for one in rows["test"])
    print(json.dumps({"rows": len(rows["train"]) + len(rows["test"]), "tokens in test": count}))


if __name__ == "__main__":
    {"tokens": tokens, "datasets": with_datasets}[sys.argv[1]]()
