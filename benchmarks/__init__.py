"""What this project is compared with, and what it costs; each file that can be run says how in its first lines."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
