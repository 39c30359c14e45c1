"""Post-training of language models as DVC stages; without its packages it ends with one line, not a traceback."""

import sys
from importlib.util import find_spec

if find_spec("psutil") is None:  # which nearly every module needs, and a Python outside .venv lacks
    how = "Run `source .venv/bin/activate` first (`make env` makes .venv)"
    sys.exit(f"error: the packages of posttrain are not installed in {sys.executable}. {how}")
