"""DPO by TRL's DPOTrainer, as a run of `external.runs` starts it (recipes/trl.yaml).

    POSTTRAIN_START=models/sft/main POSTTRAIN_DATA=data/compared/pairs.parquet POSTTRAIN_OUT=out \
        PYTHONPATH=.trl python examples/trl_dpo.py

Its defaults are those of `preference.runs` where a setting means the same. `make env-trl` installs TRL into .trl.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

from datasets import Dataset, load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

COLUMNS = {"loss": "loss", "rewards/accuracies": "accuracy", "rewards/margins": "margin", "grad_norm": "grad_norm"}
"""What TRL logs -> what the pipeline calls it."""


def pairs(file: str) -> Dataset:
    """Return the rows to learn from, with the columns that TRL knows."""
    rows = load_dataset("parquet", data_files=file, split="train").filter(lambda row: row["split"] == "train")
    return rows.select_columns(["prompt", "chosen", "rejected"])


def main() -> None:
    """Train; writes the model, its tokenizer and the metrics of each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=float, default=1.0)
    args = parser.parse_args()

    start, out = os.environ["POSTTRAIN_START"], os.environ["POSTTRAIN_OUT"]
    rows = pairs(os.environ["POSTTRAIN_DATA"])
    steps = int(args.epochs * len(rows) / args.batch)
    config = DPOConfig(
        output_dir=out, save_strategy="no", report_to="none", logging_steps=1, use_cpu=True, bf16=False,
        gradient_checkpointing=False, seed=int(os.environ.get("POSTTRAIN_SEED", "0")),
        beta=args.beta, per_device_train_batch_size=args.batch, num_train_epochs=args.epochs, max_length=None,
        learning_rate=args.lr, lr_scheduler_type="linear", warmup_steps=int(0.05 * steps),
        adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = AutoModelForCausalLM.from_pretrained(start)
    trainer = DPOTrainer(model, args=config, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(out)

    logged = [row for row in trainer.state.log_history if "loss" in row]
    if "POSTTRAIN_METRICS" in os.environ:
        with Path(os.environ["POSTTRAIN_METRICS"]).open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(["step", *COLUMNS.values()])
            table.writerows([row["step"], *(row[name] for name in COLUMNS)] for row in logged)


if __name__ == "__main__":
    main()
