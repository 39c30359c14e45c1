"""What is tested with the second device needs it from the start; without it the one file that starts such a process."""

from __future__ import annotations

import sys
from pathlib import Path

STARTS = "test_second_device.py"
with_device = "tests.second_device.device" in sys.modules
collect_ignore = [one.name for one in Path(__file__).parent.glob("test_*.py") if (one.name == STARTS) == with_device]
