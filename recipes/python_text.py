"""Write Python's help texts (PSF licence; English with code) as rows of a corpus: python_text.py FILE."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

target = Path(sys.argv[1])
target.parent.mkdir(parents=True, exist_ok=True)
rows = (
    json.dumps({"text": text.strip(), "split": "heldout" if number else "train"})  # a table needs a row to train on
    for number, (_, text) in enumerate(sorted(topics.items()))
)
target.write_text("\n".join(rows) + "\n", encoding="utf-8")
print(f"{target}: {len(topics)} texts")
